"""Images as they are stored, in integers: widened and scaled on the card, before the model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ooc_cudnn.operations.images import STORED

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


def of_stored(
    model: torch.nn.Module, forward: Callable[..., Any], scale: float | None
) -> Callable[..., Any]:
    """A forward of a model that takes tensors of `STORED` types, scaled; none: as it is.

    They are widened to the dtype of the model's parameters, but scaled in float32 at the least: a
    uint16 can be more than a float16.

    >>> forward = of_stored(torch.nn.Linear(1, 1), torch.neg, 0.5)
    >>> forward(torch.tensor([3], dtype=torch.uint8)), forward(torch.tensor([3.0]))
    (tensor([-1.5000]), tensor([-3.]))
    """
    if scale is None:
        return forward
    floating = (each.dtype for each in model.parameters() if each.is_floating_point())
    dtype = next(floating, torch.get_default_dtype())
    wide = torch.promote_types(dtype, torch.float32)

    def widened(each: Any) -> Any:
        if isinstance(each, torch.Tensor) and each.dtype in STORED_DTYPES:
            return (each.to(wide) * scale).to(dtype)
        return each

    def scaled(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = pytree.tree_map(widened, (args, kwargs))
        return forward(*args, **kwargs)

    return scaled
