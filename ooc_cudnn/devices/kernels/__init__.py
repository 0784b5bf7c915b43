"""What plans, compiles and launches the CUDA kernels whose sources are under `kernels/`."""
