"""Rules of elementwise operations: activations, sums and products, dropout."""

from __future__ import annotations

import math
from typing import Any

import torch

from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.operations.elementwise.cast_scale import STORED
from ooc_cudnn.tensor import DTYPES, rounded_to
from ooc_cudnn.torch.lowering.lower import (
    GraphLowering,
    LoweredValue,
    UnsupportedPatternError,
    rule,
)
from ooc_cudnn.torch.tracing.graph import Value

_PLAIN = {
    "relu": "relu",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "silu": "swish",
    "hardswish": "hardswish",
    "hardsigmoid": "hardsigmoid",
    "mish": "mish",
}


def _activation(to: GraphLowering, x: Any, mode: str, coef: float | None = None) -> LoweredValue:
    if not isinstance(x, LoweredValue):
        raise UnsupportedPatternError("it does not read the inputs first")
    made = to.net.activation(x.tensor, mode, coef=coef, name=to.name("act"))
    return LoweredValue(made, x.axes)


def _enter(name: str, mode: str) -> None:
    @rule(name)
    def activation(to: GraphLowering, self: Any) -> LoweredValue:
        return _activation(to, self, mode)


for _name, _mode in _PLAIN.items():
    _enter(_name, _mode)


@rule("relu6")
def relu6(to: GraphLowering, self: Any) -> LoweredValue:
    return _activation(to, self, "clipped_relu", 6.0)


@rule("hardtanh")
def hardtanh(to: GraphLowering, self: Any, min_val: float, max_val: float) -> LoweredValue:
    if min_val != 0:
        raise UnsupportedPatternError(f"bounds {min_val} and {max_val}: the lower one is to be 0")
    return _activation(to, self, "clipped_relu", float(max_val))


@rule("leaky_relu")
def leaky_relu(to: GraphLowering, self: Any, negative_slope: float) -> LoweredValue:
    return _activation(to, self, "leaky_relu", float(negative_slope))


@rule("elu")
def elu(
    to: GraphLowering, self: Any, alpha: float, scale: float, input_scale: float
) -> LoweredValue:
    if (scale, input_scale) != (1, 1):
        raise UnsupportedPatternError(f"scales {scale} and {input_scale}")
    return _activation(to, self, "elu", float(alpha))


@rule("gelu")
def gelu(to: GraphLowering, self: Any, approximate: str) -> LoweredValue:
    return _activation(to, self, "gelu" if approximate == "none" else "gelu_tanh")


@rule("prelu")
def prelu(to: GraphLowering, self: Any, weight: Any) -> LoweredValue:
    if not isinstance(self, LoweredValue) or self.axes[1:2] != (1,):
        raise UnsupportedPatternError("its second axis is not that of channels")
    w = to.parameter(weight)
    per_channel = w.shape != (1,)
    y = to.net.prelu(self.tensor, per_channel=per_channel, w=w, name=to.name())
    return LoweredValue(y, self.axes)


@rule("dropout")
def dropout(
    to: GraphLowering, p: float, train: bool, input: Any = None, self: Any = None
) -> LoweredValue:
    return _dropped(to, self if input is None else input, p, train, per_channel=False)


@rule("feature_dropout")
def feature_dropout(
    to: GraphLowering, p: float, train: bool, input: Any = None, self: Any = None
) -> LoweredValue:
    return _dropped(to, self if input is None else input, p, train, per_channel=True)


def _dropped(
    to: GraphLowering, x: Any, p: float, train: bool, *, per_channel: bool
) -> LoweredValue:
    if not isinstance(x, LoweredValue):
        raise UnsupportedPatternError("it does not read the inputs first")
    if not train or p == 0:
        return x
    if per_channel and x.axes[:2] != (0, 1):
        raise UnsupportedPatternError("its axes were permuted before")
    name = to.name()
    y = to.net.dropout(x.tensor, float(p), per_channel=per_channel, name=name)
    to.drawn.append(f"{name}.state")
    return LoweredValue(y, x.axes)


@rule("alias", "clone", "contiguous", "lift_fresh_copy")
def same(to: GraphLowering, self: Any, **how: Any) -> LoweredValue:
    if not isinstance(self, LoweredValue):
        raise UnsupportedPatternError("it does not read the inputs first")
    return self


@rule("detach")
def detached(to: GraphLowering, self: Any) -> LoweredValue:
    if not isinstance(self, LoweredValue):
        raise UnsupportedPatternError("it does not read the inputs first")
    if not to.differentiable:
        return self
    return LoweredValue(to.net.detach(self.tensor, name=to.name("detach")), self.axes)


@rule("to", "_to_copy")
def converted(to: GraphLowering, self: Any, dtype: Any = None, **how: Any) -> LoweredValue:
    if not isinstance(self, LoweredValue):
        raise UnsupportedPatternError("it does not read the inputs first")
    wanted = str(dtype).removeprefix("torch.")
    if dtype is None or wanted == self.tensor.dtype:
        return self
    if self.tensor.dtype in STORED and wanted in DTYPES:
        return LoweredValue(
            to.net.image(self.tensor, dtype=wanted, name=to.name("image")), self.axes
        )
    if self.tensor.is_floating and wanted in DTYPES:
        return to.cast(self, wanted)
    raise UnsupportedPatternError(f"from {self.tensor.dtype} to {wanted}")


# Sums and products ----------------------------------------------------------------------------


@rule("add")
def add(to: GraphLowering, self: Any, other: Any, alpha: float = 1) -> LoweredValue:
    _check_alpha(alpha, self, other)
    if alpha == 1:
        return _combined(to, "add", self, other)
    return _with_factor(to, self, other, alpha)


@rule("sub")
def subtract(to: GraphLowering, self: Any, other: Any, alpha: float = 1) -> LoweredValue:
    _check_alpha(alpha, self, other)
    _no_booleans(self, other)
    return _with_factor(to, self, other, -alpha)


@rule("rsub")
def subtract_from(to: GraphLowering, self: Any, other: Any, alpha: float = 1) -> LoweredValue:
    _check_alpha(alpha, self, other)
    _no_booleans(self, other)
    return _with_factor(to, other, self, -alpha)


@rule("mul")
def multiply(to: GraphLowering, self: Any, other: Any) -> LoweredValue:
    return _combined(to, "multiply", self, other)


@rule("div")
def divide(
    to: GraphLowering, self: Any, other: Any, rounding_mode: str | None = None
) -> LoweredValue:
    if rounding_mode is not None or not isinstance(self, LoweredValue):
        raise UnsupportedPatternError("of what is no map, or rounded")
    if isinstance(other, LoweredValue) and _size(other) > _size(self):
        raise UnsupportedPatternError("by a larger map")
    return _combined(to, "divide", self, other)


@rule("pow")
def power(to: GraphLowering, self: Any, exponent: Any) -> LoweredValue:
    if exponent != 2:
        raise UnsupportedPatternError(f"to the power of {exponent}")
    return _combined(to, "multiply", self, self)


@rule("square")
def square(to: GraphLowering, self: Any) -> LoweredValue:
    return _combined(to, "multiply", self, self)


@rule("addcmul")
def add_product(
    to: GraphLowering, self: Any, tensor1: Any, tensor2: Any, value: float = 1
) -> LoweredValue:
    product = _combined(to, "multiply", tensor1, tensor2)
    if value != 1 or DTYPES[product.tensor.dtype] == 2:
        raise UnsupportedPatternError("with a factor, or of a half type, rounded once")
    return _combined(to, "add", product, self)


@rule("neg")
def negate(to: GraphLowering, self: Any) -> LoweredValue:
    return _combined(to, "multiply", self, -1.0)


def _is_number(value: Any) -> bool:
    """True if it is a real number of Python's; True counts as 1."""
    return isinstance(value, int | float)


def _check_alpha(alpha: Any, *operands: Any) -> None:
    """Leave to PyTorch, which refuses it, what is no number of the type that it multiplies."""
    for operand in operands:
        if (
            isinstance(operand, LoweredValue)
            and operand.tensor.is_floating
            and math.isfinite(alpha)
            and math.isinf(rounded_to(operand.tensor.dtype, alpha))
        ):
            raise UnsupportedPatternError(
                f"alpha={alpha}, which {operand.tensor.dtype} does not hold"
            )
    _no_booleans(alpha)


def _no_booleans(*numbers: Any) -> None:
    if any(isinstance(each, bool) for each in numbers):
        raise UnsupportedPatternError("a boolean, which PyTorch does not subtract")


def _with_factor(to: GraphLowering, one: Any, other: Any, factor: float) -> LoweredValue:
    """one + factor * other; of half types rounded once, so in float32."""
    maps = [each for each in (one, other) if isinstance(each, LoweredValue)]
    is_exact = abs(factor) == 1 or _is_number(other)
    if is_exact or any(DTYPES.get(each.tensor.dtype) != 2 for each in maps):
        return _combined(to, "add", one, _times(to, other, factor))
    if len(maps) < 2:
        raise UnsupportedPatternError(f"{factor} times what is no map of a half type")
    dtype = maps[0].tensor.dtype if len({each.tensor.dtype for each in maps}) == 1 else "float32"
    one, other = (to.cast(each, "float32") for each in maps)
    return to.cast(_combined(to, "add", one, _times(to, other, factor)), dtype)


def _times(to: GraphLowering, x: Any, factor: float) -> Any:
    if _is_number(x):
        return x * factor
    if isinstance(x, LoweredValue):
        return _combined(to, "multiply", x, float(factor))
    if not x.dtype.is_floating_point:  # cut to integers, it would be another number
        raise UnsupportedPatternError(f"{factor} times {x.dtype}")
    return to.made_as(f"times_{factor}", lambda tensor: tensor * factor, x, x.dtype)


def _combined(to: GraphLowering, what: str, one: Any, other: Any) -> LoweredValue:
    """The sum or product, in either order, or the quotient of a map and what is broadcast to it.

    A number is computed with as PyTorch does: in float32 of half types, in the dtype of others.
    """
    if not isinstance(one, LoweredValue) or (
        isinstance(other, LoweredValue) and _size(other) > _size(one)
    ):
        one, other = other, one
    if not isinstance(one, LoweredValue):
        raise UnsupportedPatternError("it does not read the inputs first")
    build = getattr(to.net, what)
    if _is_number(other):
        return LoweredValue(build(one.tensor, float(other), name=to.name(what)), one.axes)
    if isinstance(other, LoweredValue):
        if len(other.axes) != len(one.axes):
            raise UnsupportedPatternError(f"of {one.shape} and {other.shape}")
        other = to.laid_as(other, one.axes)
        wide = torch.promote_types(*(getattr(torch, e.tensor.dtype) for e in (one, other)))
        dtype = str(wide).removeprefix("torch.")
        one, other = to.cast(one, dtype), to.cast(other, dtype)
        return LoweredValue(build(one.tensor, other.tensor, name=to.name(what)), one.axes)
    if not isinstance(other, Value):
        raise UnsupportedPatternError(f"with {other!r}, which is no real number")
    wide = torch.promote_types(getattr(torch, one.tensor.dtype), other.dtype)
    b = _broadcast(to, one, other, wide)
    a = to.cast(one, str(wide).removeprefix("torch."))
    y = LoweredValue(build(a.tensor, b, name=to.name(what)), one.axes)
    return to.cast(y, one.tensor.dtype) if other.shape == () else y  # one number promotes no map


def _size(held: LoweredValue) -> int:
    return math.prod(held.shape)


def _broadcast(to: GraphLowering, one: LoweredValue, other: Value, dtype: torch.dtype) -> Tensor:
    """A given value in a dtype, as it lies along the axes of a map."""
    if not other.dtype.is_floating_point:
        raise UnsupportedPatternError(f"of {one.tensor.dtype} and {other.dtype}")
    shape = [1] * len(one.axes)
    for index, extent in enumerate(reversed(other.shape)):
        if index >= len(one.axes):
            raise UnsupportedPatternError(f"of {one.shape} and {other.shape}")
        shape[one.axes[len(one.axes) - 1 - index]] = extent
    longer = [one.axes.index(axis) for axis in range(len(shape)) if shape[axis] > 1]
    if longer != sorted(longer):  # it would have to be permuted
        raise UnsupportedPatternError(f"of {one.shape} permuted and {other.shape}")
    return to.given(to.widened(other, dtype), shape)
