"""A GPU as a device: CuPy's runtime, cuDNN's convolutions, copies direct and staged."""
