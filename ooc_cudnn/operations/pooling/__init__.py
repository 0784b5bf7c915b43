"""Pooling by windows and over whole images: forward, gradients, where maxima are."""
