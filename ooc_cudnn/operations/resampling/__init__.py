"""Interpolation, adaptive pooling, padding and cropping: runs of neighbours along an axis."""
