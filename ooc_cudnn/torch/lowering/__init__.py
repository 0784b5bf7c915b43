"""Lowering of a graph of ATen's operations to a network, and what PyTorch computes within it."""
