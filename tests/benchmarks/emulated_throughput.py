"""Images a second that the emulated device trains: ``python tests/benchmarks/emulated_throughput.py [CONFIG]``.

Prints the median of several blocks of steps and exits 1 below the figure that the project promises on two cores.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from pcnn_bench import engines
from pcnn_bench.config import load_config

ROOT = Path(__file__).resolve().parents[2]
PROMISED_IMAGES_PER_S = 600
BLOCK_COUNT = 9
STEPS_PER_BLOCK = 5


def main(path: Path) -> int:
    """Train on random images and compare with the promise."""
    config = load_config(path)
    network = config.build_network()
    batch_size = config.training.batch_size
    device = engines.open_device("emulated", nvcc_flags=(), say=print)
    engine = engines.make_cuda(
        network,
        batch_size=batch_size,
        optimizer=config.training.optimizer,
        device=device,
        rung="naive",
    )
    rng = np.random.default_rng(0)
    x = rng.standard_normal((batch_size, *network.input_shape), dtype=np.float32)
    labels = rng.integers(0, network.output_shape[0], batch_size).astype(np.int32)
    engine.set_batch(x, labels)
    engine.step()  # loads every library
    rates = []
    for _ in range(BLOCK_COUNT):
        start = perf_counter()
        for _ in range(STEPS_PER_BLOCK):
            engine.step()
        rates.append(STEPS_PER_BLOCK * batch_size / (perf_counter() - start))
    engine.close()
    device.close()
    rate = median(rates)
    print(
        f"{config.name}, batch {batch_size}: {rate:.0f} images/s "
        f"({min(rates):.0f} to {max(rates):.0f}); promised {PROMISED_IMAGES_PER_S} on two cores"
    )
    return 0 if rate >= PROMISED_IMAGES_PER_S else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "configs/lenet5-fashion.yaml"))
