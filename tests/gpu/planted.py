"""Launch one faulty kernel on the GPU.

``compute-sanitizer --tool memcheck python tests/gpu/planted.py out_of_bounds``
"""

from __future__ import annotations

import sys
from pathlib import Path

from pcnn_cuda import nvcc


def main(kind: str) -> None:
    """Build ``planted.cu`` and launch ``planted_<kind>`` with 64 threads on 64 floats."""
    import pycuda.driver as drv

    drv.init()
    device = drv.Device(0)
    context = device.retain_primary_context()
    context.push()
    try:
        arch = "sm_{}{}".format(*device.compute_capability())
        built = nvcc.find().build("planted.cu", {}, arch=arch, folder=Path(__file__).parent)
        kernel = drv.module_from_buffer(built.cubin).get_function(f"planted_{kind}")
        memory = drv.mem_alloc(4 * 64)
        kernel.prepare("P")
        stream = drv.Stream()
        kernel.prepared_async_call((1, 1, 1), (64, 1, 1), stream, int(memory))
        stream.synchronize()
        memory.free()
    finally:
        context.pop()
    print(f"planted_{kind} ran")


if __name__ == "__main__":
    main(sys.argv[1])
