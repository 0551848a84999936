"""The optimiser specs, one file a kind."""

from pcnn_bench.optimizers.sgd import SgdSpec

OptimizerSpec = SgdSpec
"""Every optimiser the config can name; a union once there is a second one."""

__all__ = ["OptimizerSpec", "SgdSpec"]
