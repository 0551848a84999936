"""CUDA C++ on the CPU: translation, compilation and the C++ runtime behind ``pcnn_cuda.emulated_device``."""
