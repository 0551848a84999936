"""The CUDA engine: kernels and their host code side by side, one pair an operation."""
