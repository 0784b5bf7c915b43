"""Inference of large inputs, tile by tile."""
