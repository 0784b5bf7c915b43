"""Seconds over memory: the curve of a network, and its picture."""
