"""Hints to arguments that a model does not take."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

from ooc_cudnn.torch.stored import STORED_DTYPES

#: What to do with images of integers.
_SCALE = (
    ". For images as they are stored give scale=1 / 255 (uint16: 1 / 65535) to limit, infer or plan"
    ": they are made floats on the card"
)


def hint(model: torch.nn.Module, why: str, tensors: Sequence[torch.Tensor]) -> str:
    """Return a hint to follow PyTorch's error; "" where there is none.

    >>> hint(torch.nn.Conv2d(3, 8, 3), "expected 3 channels", [torch.ones(1, 9, 9, 3)])[:56]
    '. Channels are the second axis: give x.movedim(-1, 1), o'
    """
    labels = re.search(r"(?i)\bindex tensor|\btarget|\bnll_loss", why) is not None
    if labels and any(_is_integer(x) and x.ndim > 2 and x.shape[1] == 1 for x in tensors):
        return ". Labels have no axis of channels: take target.squeeze(1)"
    if is_of_dtypes(why):
        return _of_dtypes(model, why, tensors)
    channels = _channels(model)
    if any(_has_channels_last(x, *channels) for x in tensors if channels):
        return ". Channels are the second axis: give x.movedim(-1, 1), or numpy.moveaxis(x, -1, 1)"
    return ""


def is_of_dtypes(why: str) -> bool:
    """True if PyTorch's words are of dtypes."""
    return re.search(r"\bd?types?\b", why) is not None


def _of_dtypes(model: torch.nn.Module, why: str, tensors: Sequence[torch.Tensor]) -> str:
    if any(each.dtype in STORED_DTYPES for each in tensors):
        return ". Labels are int64: take target.long()" if "index" in why else _SCALE
    dtype = next((each.dtype for each in model.parameters() if each.is_floating_point()), None)
    if dtype is None or "index" in why or all(each.dtype == dtype for each in tensors):
        return ""
    name = str(dtype).removeprefix("torch.")
    return f". The model is of {name}: give x.to({dtype}), or of NumPy x.astype({name!r})"


def _is_integer(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex()


def _channels(model: torch.nn.Module) -> tuple[int, int] | tuple[()]:
    """The channels that the first convolution takes, and the number of its spatial axes."""
    for each in model.modules():
        if re.fullmatch(r"(Lazy)?Conv[123]d", type(each).__name__):
            found: Any = each
            return found.in_channels, len(found.kernel_size)
    return ()


def _has_channels_last(x: torch.Tensor, channels: int, axes: int) -> bool:
    return x.ndim == axes + 2 and x.shape[1] != channels and x.shape[-1] == channels
