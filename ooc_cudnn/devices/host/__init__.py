"""The host as a device: NumPy computes, threads are the streams."""
