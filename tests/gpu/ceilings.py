"""Measure the ceilings of the GPU at two sizes: ``compute-sanitizer --tool memcheck python tests/gpu/ceilings.py``."""

from __future__ import annotations

from pcnn_bench.environment import MEBIBYTE
from pcnn_cuda.ceilings import measure
from pcnn_cuda.pycuda_device import PycudaDevice


def main() -> None:
    """Print what is measured; the results of the kernels are compared on the way."""
    device = PycudaDevice()
    try:
        print(measure(device, {"small": MEBIBYTE // 4, "large": 128 * MEBIBYTE}))
    finally:
        device.close()


if __name__ == "__main__":
    main()
