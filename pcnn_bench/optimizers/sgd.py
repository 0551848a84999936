"""Stochastic gradient descent with momentum and weight decay."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pcnn_bench.layers.base import FLOAT_BYTES, Float32, Strict


class SgdSpec(Strict):
    """v = momentum v + (grad + weight_decay parameter); parameter = parameter - learning_rate v.

    Source: the form of Sutskever et al. 2013 that PyTorch uses; weight decay also acts on biases.
    """

    kind: Literal["sgd"] = "sgd"
    learning_rate: Annotated[Float32, Field(gt=0)]
    momentum: Annotated[Float32, Field(ge=0, lt=1)] = 0.0
    weight_decay: Annotated[Float32, Field(ge=0)] = 0.0

    def update_flops(self, parameter_count: int) -> int:
        """Three multiply-adds a parameter."""
        return 6 * parameter_count

    def update_bytes(self, parameter_count: int) -> int:
        """grad, velocity and parameter read; velocity and parameter written."""
        return 5 * FLOAT_BYTES * parameter_count
