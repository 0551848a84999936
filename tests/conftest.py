"""What holds for every test."""

from __future__ import annotations

from pcnn_cuda.emulation import runtime

# Tests build hundreds of kernels and run each for milliseconds: a quarter of the compiler's time is worth more than the
# speed of the code. The end of .ci/run, the command-line tests and users build them as they come.
runtime._KERNEL_FLAGS = tuple("-O1" if flag == "-O3" else flag for flag in runtime._KERNEL_FLAGS)
