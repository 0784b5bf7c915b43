"""What forward leaves in modules: while a model is captured, tensors that it keeps are fake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ooc_cudnn.torch.errors import UnsupportedModelError


@contextmanager
def nothing_left(model: torch.nn.Module) -> Iterator[None]:
    """Take from modules the attributes and buffers that they gain in this block.

    torch.export puts back no more than attributes that were there before.

    >>> model = torch.nn.Identity()
    >>> with nothing_left(model):
    ...     model.cache = torch.ones(2)
    ...     model.register_buffer("mask", torch.ones(2))
    >>> hasattr(model, "cache"), list(model.buffers())
    (False, [])
    """
    before = [
        (each, set(vars(each)), dict(each._buffers), set(each._non_persistent_buffers_set))
        for each in model.modules()
    ]
    try:
        yield
    finally:
        for module, names, buffers, passing in before:
            for name in vars(module).keys() - names:
                del vars(module)[name]
            module._buffers.clear()
            module._buffers.update(buffers)
            module._non_persistent_buffers_set = passing


def keeping_buffers(model: torch.nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    """The same forward, which refuses to put a tensor in place of a buffer: no later call would.

    One of another shape is no average of what was seen, but made anew for other images.
    """

    def checked(*args: Any, **kwargs: Any) -> Any:
        before = dict(model.named_buffers())
        made = forward(*args, **kwargs)
        now = dict(model.named_buffers())
        both = ((name, before[name], now[name]) for name in before if name in now)
        for name, buffer, after in both:
            if after is not buffer and (after.shape, after.dtype) == (buffer.shape, buffer.dtype):
                raise UnsupportedModelError(
                    f"forward of {type(model).__name__} puts another tensor in place of buffer "
                    f"{name}: take it out of forward, or limit the parts before and after it"
                )
        return made

    return checked
