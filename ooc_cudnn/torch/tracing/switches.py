"""Switches of the process that forward may set: as a capture found them, whatever came of it.

TorchDynamo's graph has them as nodes, and recording runs these. A call runs no such node, so what
forward leaves in another position is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.backends import cuda

from ooc_cudnn.torch.errors import UnsupportedModelError

#: What changes all that follows, in each call; PyTorch cannot always say what the second one is.
_NEVER_SET = ("set_default_dtype", "set_float32_matmul_precision")
_BACKENDS = ("cuda", "mkldnn")


class _Switch(NamedTuple):
    """A switch: how a user sets it, and what gets and sets its value."""

    name: str
    get: Callable[[], Any]
    set: Callable[[Any], Any]


def autograd_follows() -> bool:
    """Tell whether autograd follows what is made: in inference mode it does not, in any case.

    >>> with torch.inference_mode(), torch.enable_grad():
    ...     torch.is_grad_enabled(), autograd_follows()
    (True, False)
    """
    return torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


def _set_hooks(message: str | None) -> None:
    """Let hooks of saved tensors be disabled with a message, or not be."""
    hooks = torch._C._autograd
    if message is None:
        hooks._saved_tensors_hooks_enable()
    else:
        hooks._saved_tensors_hooks_disable(message)


def _matmul_precision() -> tuple[str | None, Sequence[str]]:
    """The name of the precision of products in float32, if there is one, and that by backend."""
    by_backend = [torch._C._get_fp32_precision_getter(each, "matmul") for each in _BACKENDS]
    try:
        return torch.get_float32_matmul_precision(), by_backend
    except RuntimeError:  # set by backend: PyTorch has no name for all of them
        return None, by_backend


def _set_matmul_precision(value: tuple[str | None, Sequence[str]]) -> None:
    name, by_backend = value
    if name is not None:
        torch.set_float32_matmul_precision(name)
    for backend, precision in zip(_BACKENDS, by_backend, strict=True):
        if torch._C._get_fp32_precision_getter(backend, "matmul") != precision:
            torch._C._set_fp32_precision_setter(backend, "matmul", precision)


def _switches() -> Iterator[_Switch]:
    autograd = torch._C._autograd
    yield _Switch("torch.set_grad_enabled", torch.is_grad_enabled, torch._C._set_grad_enabled)
    yield _Switch(
        "torch.use_deterministic_algorithms",
        torch.get_deterministic_debug_mode,
        torch.set_deterministic_debug_mode,
    )
    yield _Switch("torch.set_default_dtype", torch.get_default_dtype, torch.set_default_dtype)
    yield _Switch("torch.set_float32_matmul_precision", _matmul_precision, _set_matmul_precision)
    yield _Switch(
        "torch.autograd.graph.disable_saved_tensors_hooks",
        autograd._saved_tensors_hooks_get_disabled_error_message,
        _set_hooks,
    )
    for name in ("flash", "mem_efficient", "math", "cudnn"):
        key = f"enable_{name}_sdp"
        yield _Switch(
            f"torch.backends.cuda.{key}", getattr(cuda, f"{name}_sdp_enabled"), getattr(cuda, key)
        )
    order = getattr(torch._C, "_get_sdp_priority_order", None)
    if order is not None:
        yield _Switch(
            "torch.nn.attention.sdpa_kernel",
            lambda: list(order()),
            torch._C._set_sdp_priority_order,
        )


_SWITCHES = tuple(_switches())


def _values() -> list[Any]:
    return [each.get() for each in _SWITCHES]


@contextmanager
def switches_kept(first: Sequence[Any] | None = None) -> Iterator[Sequence[Any]]:
    """Give back the switches as they were, also where an error is raised.

    Parameters
    ----------
    first : sequence, optional
        As what they are within at first: what another one has given.

    Yields
    ------
    sequence
        As what they are at first.
    """
    before = _values()
    _set(before if first is None else first)
    try:
        yield before if first is None else first
    finally:
        _set(before)


def _set(values: Sequence[Any]) -> None:
    for each, value in zip(_SWITCHES, values, strict=True):
        if each.get() != value:
            each.set(value)


class SwitchesSet:
    """Notes where switches are set, from now on."""

    def __init__(self) -> None:
        self._before = self._now = _values()
        self._lines: dict[str, str] = {}

    def note(self, where: str) -> None:
        """Look at what a line may have set."""
        before, self._now = self._now, _values()
        for each, was, now in zip(_SWITCHES, before, self._now, strict=True):
            if was != now:
                self._lines[each.name] = where

    def check(self) -> None:
        """Refuse a switch that is left in another position than it was in at first.

        Raises
        ------
        UnsupportedModelError
            With its name, and the line that set it.
        """
        for each, was, now in zip(_SWITCHES, self._before, self._now, strict=True):
            if was != now:
                within = ", or by a context manager that sets it back"
                raise _refused(each.name, within, self._lines[each.name])


def check_switch(name: str, where: str) -> None:
    """Refuse to set a switch that is to be the same for all calls.

    Parameters
    ----------
    name : str
        Of the function that a graph calls.
    where : str

    Raises
    ------
    UnsupportedModelError
    """
    if name in _NEVER_SET:
        raise _refused(f"torch.{name}", "", where)


def _refused(name: str, or_within: str, where: str) -> UnsupportedModelError:
    line = f"\n  {where}" if where else ""
    return UnsupportedModelError(
        f"forward sets a switch of the whole process ({name}), and a call under a limit does not: "
        f"set it before the call{or_within}{line}"
    )
