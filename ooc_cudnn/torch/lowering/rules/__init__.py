"""The table of ATen's operations that the library has, one file a family."""

from ooc_cudnn.torch.lowering.rules import (
    attention,
    class_sums,
    elementwise,
    losses,
    normalizations,
    shapes,
    windows,
)

__all__ = [
    "attention",
    "class_sums",
    "elementwise",
    "losses",
    "normalizations",
    "shapes",
    "windows",
]
