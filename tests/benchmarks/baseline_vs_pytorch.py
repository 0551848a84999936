"""Is the baseline an honest one? Its training step against PyTorch's on the CPU, one thread each, interleaved.

Run it alone on the machine, from the repository root:

    env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE python tests/benchmarks/baseline_vs_pytorch.py

The exit code is 1 where the baseline takes longer than the limits below, 3 where the comparison cannot be made.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import click
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "baseline")]  # so that it runs with nothing installed

from pcnn_baseline.engine import BaselineEngine  # noqa: E402
from pcnn_baseline.threads import one_blas_thread  # noqa: E402
from pcnn_bench.config import load_config  # noqa: E402
from pcnn_bench.network import Layer, Network  # noqa: E402
from pcnn_bench.optimizers import SgdSpec  # noqa: E402

LIMITS = {"lenet5-fashion": 1.2, "simard2003": 1.2, "cifar-quick": 2.2}
"""The most that the baseline's time may be of PyTorch's, by config."""
BATCH_SIZE = 64
WARMUP_COUNT = 5
SIZES_UNSET = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
"""Variables that choose OpenBLAS's kernels by hand; with them set the figure is not the usual one."""
LOSS_ERROR = 1e-4
"""Relative difference of the first losses beyond which the two do not train the same network."""

Step = Callable[[], None]


def _module(torch: Any, layer: Layer) -> Any:
    """The PyTorch module of one layer."""
    nn, spec = torch.nn, layer.spec
    make: dict[str, Callable[[Any], Any]] = {
        "conv2d": lambda s: nn.Conv2d(
            layer.x_shape[0], s.out_channels, s.kernel, s.stride, s.padding
        ),
        "maxpool2d": lambda s: nn.MaxPool2d(s.size, s.stride),
        "avgpool2d": lambda s: nn.AvgPool2d(s.size, s.stride),
        "dense": lambda s: nn.Linear(layer.x_shape[0], s.out_features),
        "flatten": lambda s: nn.Flatten(),
        "tanh": lambda s: nn.Tanh(),
        "relu": lambda s: nn.ReLU(),
        "sigmoid": lambda s: nn.Sigmoid(),
    }
    return make[layer.kind](spec)


class _Torch:
    """The same network, parameters and optimiser in eager PyTorch."""

    def __init__(self, torch: Any, network: Network, sgd: SgdSpec) -> None:
        self._torch = torch
        self.model = torch.nn.Sequential(*(_module(torch, layer) for layer in network.layers))
        with torch.no_grad():
            values = network.initial_parameters(0).values()
            for parameter, value in zip(self.model.parameters(), values, strict=True):
                parameter.copy_(torch.from_numpy(value))
        self._optimizer = torch.optim.SGD(
            self.model.parameters(),
            lr=sgd.learning_rate,
            momentum=sgd.momentum,
            weight_decay=sgd.weight_decay,
        )

    def step(self, x: Any, labels: Any) -> Any:
        """One training step; the loss as a tensor."""
        self._optimizer.zero_grad()
        loss = self._torch.nn.functional.cross_entropy(self.model(x), labels)
        loss.backward()
        self._optimizer.step()
        return loss


def _timed(step: Step) -> float:
    """Milliseconds of one call."""
    start = perf_counter()
    step()
    return (perf_counter() - start) * 1e3


def compare(torch: Any, name: str, budget_s: float) -> dict[str, Any]:
    """Time one network: alternate single steps of both for ``budget_s`` seconds.

    Raises:
        SystemExit: the two do not start with the same loss.
    """
    config = load_config(ROOT / "configs" / f"{name}.yaml")
    network = config.build_network()
    # every network with momentum, which is what the figure is defined for
    sgd = config.training.optimizer.model_copy(update={"momentum": 0.9})
    rng = np.random.default_rng(0)
    x = rng.standard_normal((BATCH_SIZE, *network.input_shape), dtype=np.float32)
    labels = rng.integers(0, network.output_shape[0], BATCH_SIZE).astype(np.int32)

    engine = BaselineEngine(network, batch_size=BATCH_SIZE, optimizer=sgd)
    engine.load_parameters(network.initial_parameters(0))
    eager = _Torch(torch, network, sgd)
    tensors = torch.from_numpy(x), torch.from_numpy(labels).long()

    def baseline_step() -> None:
        engine.set_batch(x, labels)
        engine.step()

    def torch_step() -> None:
        eager.step(*tensors)

    baseline_step()
    ours, theirs = float(engine.take_losses().mean()), eager.step(*tensors).item()
    if not abs(ours - theirs) <= LOSS_ERROR * abs(theirs):
        raise SystemExit(f"{name}: first loss {ours}, PyTorch {theirs}: not the same network")
    for _ in range(WARMUP_COUNT):
        baseline_step()
        torch_step()
    baseline_ms: list[float] = []
    torch_ms: list[float] = []
    start, cpu_start = perf_counter(), process_time()
    while perf_counter() - start < budget_s:
        baseline_ms.append(_timed(baseline_step))
        torch_ms.append(_timed(torch_step))
    cpu_over_wall = (process_time() - cpu_start) / (perf_counter() - start)
    ratio = median(baseline_ms) / median(torch_ms)
    return {
        "network": name,
        "repeat_count": len(baseline_ms),
        "baseline_median_ms": median(baseline_ms),
        "baseline_min_ms": min(baseline_ms),
        "torch_median_ms": median(torch_ms),
        "torch_min_ms": min(torch_ms),
        "ratio_of_medians": ratio,
        "ratio_of_minima": min(baseline_ms) / min(torch_ms),
        "limit": LIMITS[name],
        "is_within_limit": ratio <= LIMITS[name],
        "cpu_over_wall": cpu_over_wall,
    }


@click.command(help=__doc__)
@click.option("--budget-s", default=20.0, show_default=True, help="Seconds for each network.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Also write this file.")
def main(budget_s: float, json_path: Path | None) -> None:
    """Measure every network of ``LIMITS`` and print a table."""
    try:
        import torch
    except ImportError:
        click.echo("PyTorch is not installed; pip install torch", err=True)
        sys.exit(3)
    set_by_hand = [name for name in SIZES_UNSET if name in os.environ]
    if set_by_hand:
        click.echo(f"unset {' and '.join(set_by_hand)} for this figure", err=True)
        sys.exit(3)
    torch.set_num_threads(1)
    click.echo(f"{'batch ' + str(BATCH_SIZE):16}{'baseline ms':>13}{'PyTorch ms':>13}"
               f"{'ratio':>8}{'of minima':>11}{'limit':>7}{'steps':>7}{'CPU/wall':>10}")  # fmt: skip
    rows = []
    with one_blas_thread() as pools:
        for name in LIMITS:
            row = compare(torch, name, budget_s)
            rows.append(row)
            click.echo(
                f"{name:16}{row['baseline_median_ms']:13.2f}{row['torch_median_ms']:13.2f}"
                f"{row['ratio_of_medians']:8.2f}{row['ratio_of_minima']:11.2f}{row['limit']:7.1f}"
                f"{row['repeat_count']:7}{row['cpu_over_wall']:10.2f}"
            )
    if json_path is not None:
        record = {
            "batch_size": BATCH_SIZE,
            "numpy": np.__version__,
            "torch": torch.__version__,
            "thread_pools": pools,
            "networks": rows,
        }
        json_path.write_text(json.dumps(record, indent=2, allow_nan=False) + "\n")
    sys.exit(0 if all(row["is_within_limit"] for row in rows) else 1)


if __name__ == "__main__":
    main()
