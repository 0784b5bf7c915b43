"""What else a user could do, timed beside the library: PyTorch, loops by hand, Unified Memory.

``python -m benchmarks.contenders`` does what ``ooc-cudnn bench`` does, with the same arguments, on
the cases of `cases`: those of the package with more contenders, and VGG-16's training steps.
"""
