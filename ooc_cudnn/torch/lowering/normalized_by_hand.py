"""Normalizations that a model spells out: (x - mean) / sqrt(mean((x - mean)^2) + epsilon)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from ooc_cudnn.torch.tracing.graph import Operation, Value

Makers = Mapping[Value, Operation]
#: The same numbers, where the dtype holds all of those before.
_COPIES = frozenset({"_to_copy", "to", "alias", "contiguous"})


class Normalization(NamedTuple):
    """A value is normalised over some of its axes, and multiplied by what is given, if anything."""

    x: Value
    dims: frozenset[int]
    epsilon: float
    factor: Value | None


def normalization(operation: Operation, makers: Makers) -> Normalization | None:
    """Find the normalization whose last step an operation is; None if it is none.

    >>> normalization(Operation(None, "div", (1.0,), {}, {"self": 1.0, "other": 2.0}, ()), {})
    """
    told = operation.arguments
    above, below = told.get("self"), told.get("other")
    if not isinstance(above, Value) or not isinstance(below, Value):
        return None
    if told.get("rounding_mode") is not None:
        return None
    variance = _under_root(below, makers, inverse=operation.name == "mul")
    if variance is None:
        return None
    squares, epsilon = variance
    squares, dims = _mean(squares, makers)
    centered = _square(squares, makers)
    if not dims or centered is None:
        return None
    factor = None
    pair = _centered(above, makers)
    if pair is None:
        product = _maker(above, makers)
        if product is None or product.name != "mul":
            return None
        sides = [product.arguments["self"], product.arguments["other"]]
        for one, other in (sides, sides[::-1]):
            if isinstance(other, Value) and isinstance(one, Value) and one not in makers:
                factor, pair = one, _centered(other, makers)
    if pair is None or pair != _centered(centered, makers):
        return None
    x, mean = pair
    if _mean(mean, makers) != (x, dims):
        return None
    return Normalization(x, dims, epsilon, factor)


def _source(value: Value, makers: Makers) -> Value:
    """The value that one is a copy of; a cast that rounds or cuts makes other numbers."""
    while value in makers and makers[value].name in _COPIES:
        before = makers[value].reads[0]
        widens = torch.promote_types(before.dtype, value.dtype) == value.dtype
        if before.dtype != value.dtype and not (before.dtype.is_floating_point and widens):
            break
        value = before
    return value


def _maker(value: Any, makers: Makers) -> Operation | None:
    return makers.get(_source(value, makers)) if isinstance(value, Value) else None


def _under_root(value: Value, makers: Makers, *, inverse: bool) -> tuple[Value, float] | None:
    """Match a root: return what it is taken of, and what is added to that."""
    root = _maker(value, makers)
    if root is None:
        return None
    powers = {"rsqrt": -0.5, "sqrt": 0.5, "pow": root.arguments.get("exponent")}
    if powers.get(root.name) != (-0.5 if inverse else 0.5):
        return None
    total = _maker(root.arguments["self"], makers)
    if total is None or total.name != "add" or total.arguments.get("alpha", 1) != 1:
        return None
    variance, epsilon = total.arguments["self"], total.arguments["other"]
    if not isinstance(variance, Value) or not isinstance(epsilon, float) or epsilon < 0:
        return None
    return variance, epsilon


def _mean(value: Value, makers: Makers) -> tuple[Value, frozenset[int]]:
    """Match a mean, or a mean of means: return what it is of, and its axes."""
    value, dims = _source(value, makers), set[int]()
    while value in makers and makers[value].name == "mean":
        told = makers[value].arguments
        if not told.get("keepdim") or not told.get("dim") or told.get("dtype") is not None:
            break
        dims |= {each % len(value.shape) for each in told["dim"]}
        value = _source(told["self"], makers)
    return value, frozenset(dims)


def _square(value: Value, makers: Makers) -> Value | None:
    """Match a square: return what it is of."""
    made = makers.get(value)
    if made is None:
        return None
    told = made.arguments
    if made.name == "square" or (made.name == "pow" and told.get("exponent") == 2):
        return _source(told["self"], makers)
    if made.name == "mul" and isinstance(told["self"], Value) and told["self"] is told["other"]:
        return _source(told["self"], makers)
    return None


def _centered(value: Value, makers: Makers) -> tuple[Value, Value] | None:
    """Match a difference: return what is subtracted from what."""
    made = _maker(value, makers)
    if made is None or made.name != "sub" or made.arguments.get("alpha", 1) != 1:
        return None
    one, other = made.arguments["self"], made.arguments["other"]
    if not isinstance(one, Value) or not isinstance(other, Value):
        return None
    return _source(one, makers), _source(other, makers)
