"""What a call is asked: operands by name, options, and what float64 says the results must be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.support.bounded import Bounded, scaled
from tests.support.function_cases import DTYPES

#: What sums and channel vectors are held in.
WIDE = {"float16": "float32", "bfloat16": "float32", "float32": "float32", "float64": "float64"}

#: Relative error of a product of two numbers whose bits beyond TF32's are cut off.
TF32 = 2 * 2.0**-10 + 2.0**-20


@dataclass(frozen=True)
class Arithmetic:
    """How a call computes: `last` is what a result is held in before alpha, beta and rounding."""

    dtype: str
    tf32: bool = False
    rounded_twice: bool = False

    @property
    def last(self):
        return self.dtype if self.rounded_twice else WIDE[self.dtype]

    def factor(self, x):
        """A factor of a convolution, Bounded: TF32 cuts both factors, which is told of one."""
        x = x if isinstance(x, Bounded) else Bounded.exact(x)
        return Bounded(x.value, x.error + TF32 * (np.abs(x.value) + x.error)) if self.tf32 else x


@dataclass(frozen=True)
class Tensor:
    """An operand to be drawn: its shape, its dtype, and what kind of numbers it holds."""

    shape: tuple[int, ...]
    dtype: str
    kind: str = "normal"  # or few (many equal), positive, derived (from the others)
    scale: float = 1.0

    def draw(self, random):
        made = random.standard_normal(self.shape)
        if self.kind == "few":
            made = np.clip(np.rint(made), -2, 2)
        elif self.kind == "positive":
            made = 0.5 + np.abs(made)
        return (self.scale * made).astype(DTYPES[self.dtype])


@dataclass
class Problem:
    """A call, or several in a row, without its memory.

    Attributes
    ----------
    tensors : dict of Tensor
        Operands, positional ones first and in order; `keyword` names the others.
    results : dict
        Shape and dtype of each result, in the order in which they are returned.
    expected : callable
        Of (values, arithmetic): each result as Bounded, before alpha, beta and the last rounding.
    derive : callable
        Of (values): those of kind "derived".
    scaled : tuple of str
        The results that alpha and beta are for, which `out` takes.
    updated : tuple of str
        Operands that are changed in place; `expected` tells what to.
    exact_special : bool
        Whether infinities and NaN stand in places that one formula tells; else the result need
        only be non-finite where it says so.
    hidden : tuple of str
        Tensors that others are derived from and that the call does not take.
    needs_out : bool
        Whether the call means something else without `out`.
    may_give_out : bool
        Whether there is an `out` to be given.
    most_calls : int
        How many functions of the library it calls, one after the other.
    shape_option : str
        The option that `out` makes needless.
    invoke : callable, optional
        Of (arrays, options): calls another way than by position and keyword.
    """

    function: str
    dtype: str
    tensors: dict[str, Tensor]
    options: dict[str, Any]
    results: dict[str, tuple[tuple[int, ...], str]]
    expected: Callable
    derive: Callable = lambda values: {}
    keyword: tuple[str, ...] = ()
    scaled: tuple[str, ...] | None = None
    updated: tuple[str, ...] = ()
    exact_special: bool = True
    uses_tf32: bool = False
    has_scaling: bool = True
    shape_option: str = ""
    invoke: Callable | None = None
    words: str = ""
    hidden: tuple[str, ...] = ()
    needs_out: bool = False
    may_give_out: bool = True
    most_calls: int = 1

    def __post_init__(self):
        if self.scaled is None:
            self.scaled = tuple(self.results)

    def finished(self, values, old, alpha, beta, tf32, special, *, rounded_twice=False):
        """Every result, scaled, as Bounded; where numbers are not finite, as float64 has it."""
        arithmetic = Arithmetic(self.dtype, tf32, rounded_twice)
        with np.errstate(all="ignore"):
            made = self._scaled(values, old, alpha, beta, arithmetic)
            if not special:
                return made
            plain = self._scaled(self.tamed(values), old, alpha, beta, arithmetic)
        combined = {}
        for name, result in made.items():
            bound = 2 * plain[name].error
            finite = np.isfinite(result.error)
            error = np.where(finite, np.maximum(result.error, bound), bound)
            combined[name] = Bounded(result.value, error)
        return combined

    def _scaled(self, values, old, alpha, beta, arithmetic):
        made = self.expected(values, arithmetic)
        for name in self.scaled:
            wide = WIDE[self.results[name][1]]
            made[name] = scaled(made[name], alpha, beta, old.get(name), wide)
        return made

    def tamed(self, values):
        """The same values with moderate numbers for those that are not finite: for their bounds."""
        plain = {}
        for name, tensor in self.tensors.items():
            if tensor.kind == "derived":
                continue
            value = values[name].astype("f8")
            value = np.nan_to_num(value, nan=8.0, posinf=8.0, neginf=-8.0)
            plain[name] = value.astype(values[name].dtype)
        return plain | self.derive(plain)
