"""`torch.jit.isinstance` in forward, as MONAI's U-Nets ask whether a skip is a tensor."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._dynamo.variables import BuiltinVariable, SkipFunctionVariable

from ooc_cudnn.torch.thread_patches import rules_in_this_thread

#: These by themselves are an error: they need what they hold, `list[int]`.
_CONTAINERS = (list, dict, tuple, set)


class _JitIsinstance(SkipFunctionVariable):
    """Ask Python's `isinstance` for a plain class; types of what containers hold are refused."""

    def call_function(self, tx: Any, args: Any, kwargs: Any) -> Any:
        if len(args) == 2 and not kwargs and _is_plain(args[1]):
            return BuiltinVariable(isinstance).call_function(tx, args, kwargs)
        return super().call_function(tx, args, kwargs)


def _is_plain(kind: Any) -> bool:
    if not kind.is_python_constant():
        return False
    found = kind.as_python_constant()
    return isinstance(found, type) and found not in _CONTAINERS and typing.get_origin(found) is None


@contextmanager
def jit_isinstance_followed() -> Iterator[None]:
    """Let Dynamo, which skips `torch.jit.isinstance` since 2.13, follow it for plain classes."""
    with rules_in_this_thread({torch.jit.isinstance: _JitIsinstance}):
        yield
