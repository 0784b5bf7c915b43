"""Images as they are stored, in integers: widened and scaled on the card, before the model."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from ooc_cudnn.operations.elementwise.cast_scale import STORED

STORED_DTYPES = tuple(getattr(torch, each) for each in STORED)


def check_scale(scale: float | None) -> None:
    """Raise TypeError or ValueError if it is no finite number, or none.

    >>> check_scale(float("nan"))
    Traceback (most recent call last):
    ...
    ValueError: scale must be finite, not nan
    """
    if scale is None:
        return
    if isinstance(scale, bool) or not isinstance(scale, int | float):
        raise TypeError(f"scale must be a number, not {type(scale).__name__}")
    if not math.isfinite(scale):
        raise ValueError(f"scale must be finite, not {scale}")


def scaled_dtype(model: torch.nn.Module) -> torch.dtype:
    """Return the dtype that stored images are brought to: that of a model's parameters."""
    floating = (each.dtype for each in model.parameters() if each.is_floating_point())
    return next(floating, torch.get_default_dtype())


def widen(dtype: torch.dtype, scale: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the function that brings a stored image to a dtype, scaled.

    It is scaled in float32 at the least: a uint16 can be more than a float16.

    >>> widen(torch.float32, 0.5)(torch.tensor([3], dtype=torch.uint8))
    tensor([1.5000])
    """
    wide = torch.promote_types(dtype, torch.float32)

    def widened(image: torch.Tensor) -> torch.Tensor:
        return (image.to(wide) * scale).to(dtype)

    return widened
