"""Patches of PyTorch's functions for one thread: others go on with PyTorch's.

A capture has TorchDynamo follow some things otherwise. Meanwhile a `torch.compile` of the user's
may trace in another thread.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import MethodType
from typing import Any

import torch

_NONE = object()


class _Own:
    """An attribute of a class that it has in one thread alone."""

    def __init__(self, name: str, function: Callable[..., Any], thread: int) -> None:
        self._name, self._function, self._thread = name, function, thread

    def __get__(self, instance: Any, owner: type) -> Any:
        if threading.get_ident() != self._thread:
            raise AttributeError(f"{owner.__name__} has no attribute {self._name}")
        return self._function if instance is None else MethodType(self._function, instance)


@contextmanager
def patched_in_this_thread(
    *places: tuple[Any, str, Callable[..., Any]], are_new: bool = False
) -> Iterator[None]:
    """Call functions of ours in the place of others, in this thread.

    Parameters
    ----------
    places : (module, class or dict, str, function)
        Where a function is, by which name, and what is called: with the function that was there,
        and what that is given.
    are_new : bool
        There is none yet, and ours is called with what it is given alone.

    Raises
    ------
    AttributeError
        If there is none, or one that is to be new: this version of PyTorch has others, and nothing
        would call ours.
    """
    for place, name, _ in places:
        if (name in place if isinstance(place, dict) else hasattr(place, name)) == are_new:
            there = "has already" if are_new else "has no"
            where = getattr(place, "__name__", "a table of TorchDynamo's")
            raise AttributeError(
                f"{where} {there} {name} in PyTorch {torch.__version__}, and TorchDynamo "
                "is not made to follow models there: take another version of PyTorch"
            )
    thread = threading.get_ident()
    with ExitStack() as stack:
        for place, name, ours in places:
            if isinstance(place, dict):
                stack.callback(place.__setitem__, name, place[name])
                place[name] = _instead(place[name], ours, thread, name)
                continue
            was = getattr(place, name, _NONE)
            if name in vars(place):
                stack.callback(setattr, place, name, vars(place)[name])
            else:
                stack.callback(delattr, place, name)
            setattr(place, name, _instead(was, ours, thread, name))
        yield


def _instead(was: Any, ours: Callable[..., Any], thread: int, name: str) -> Any:
    if was is _NONE:
        return _Own(name, ours, thread)

    @functools.wraps(was)
    def call(*args: Any, **how: Any) -> Any:
        if threading.get_ident() != thread:
            return was(*args, **how)
        return ours(was, *args, **how)

    if hasattr(was, "cache_clear"):  # `functools.wraps` leaves it out
        call.cache_clear = was.cache_clear  # type: ignore[attr-defined]
    return call


@contextmanager
def rules_in_this_thread(rules: Mapping[Any, Any]) -> Iterator[None]:
    """Have TorchDynamo trace functions by rules of ours: a kind of variable for each, or none."""
    from torch._dynamo import trace_rules  # TorchDynamo is imported at the first capture

    all_rules: dict[Any, Any] = {**trace_rules.get_torch_obj_rule_map(), **rules}
    place: Any = trace_rules
    with patched_in_this_thread((place, "get_torch_obj_rule_map", lambda was: all_rules)):
        yield
