"""Convolutions: forward, fused with what follows, gradients, transposed."""
