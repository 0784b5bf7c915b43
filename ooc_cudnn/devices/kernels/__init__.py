"""Planning, compiling and launching of the CUDA kernels whose sources are under `kernels/`."""
