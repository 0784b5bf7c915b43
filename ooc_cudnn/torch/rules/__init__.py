"""The table of ATen's operations that the library has, one file a family."""

from ooc_cudnn.torch.rules import elementwise, normalizations, shapes, windows

__all__ = ["elementwise", "normalizations", "shapes", "windows"]
