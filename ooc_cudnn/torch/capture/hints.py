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
    found = (_of_axes(x, why, *channels) for x in tensors if channels)
    return next(filter(None, found), "")


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


def _of_axes(x: torch.Tensor, why: str, channels: int, axes: int) -> str:
    """Say what to do where the axes of an image are not (n, channels, spatial...), or lack.

    >>> _of_axes(torch.ones(9, 9, 3), "expected input to have 3 channels", 3, 2)[-33:]
    'or numpy.moveaxis(x, -1, 0)[None]'
    """
    of_channels, of_axes = "channels" in why, re.search(r"input to conv|got \dD input", why)
    is_last = x.ndim > axes and x.shape[-1] == channels
    if x.ndim == axes + 2 and is_last and x.shape[1] != channels:
        return ". Channels are the second axis: give x.movedim(-1, 1), or numpy.moveaxis(x, -1, 1)"
    if x.ndim == axes + 1 and is_last and x.shape[0] != channels and (of_channels or of_axes):
        return (
            ". Of one image, channels are the first axis: give x.movedim(-1, 0)[None], or "
            "numpy.moveaxis(x, -1, 0)[None]"
        )
    if x.ndim == axes + 1 and channels == 1 and of_channels:
        return ". Images of one channel have an axis for it, the second: give x[:, None]"
    if x.ndim == axes + 1 and x.shape[0] == channels and of_axes:
        return ". The first axis is that of images: give x[None]"
    if x.ndim == axes and channels == 1 and of_axes:
        return ". Images and channels have axes: give x[None, None]"
    if x.ndim == axes and channels and of_axes:
        sides = ", ".join(["-1"] * axes)
        return (
            f". The model takes {channels} channels, and here are none: for the same in each give "
            f"x.expand(1, {channels}, {sides}), or numpy.stack([x] * {channels})[None]"
        )
    return ""
