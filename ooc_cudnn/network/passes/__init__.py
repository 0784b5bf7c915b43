"""Rewrites of a step, each a pass: fusion, rematerialization, micro-batches, row tiling."""
