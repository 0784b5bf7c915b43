"""Fused epilogue: bias, activation, alpha and beta in one elementwise pass.

    destination = alpha * activation(value + addend + shift) + beta * old

`addend` holds the sums over earlier pieces of cX, `shift` the bias, `old` what the output held.
Bias, activation, alpha and beta of a chain are fused into this one operation, so they apply once
per output element, after the last piece of cX.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ooc_cudnn.operations.core.activation_modes import exponentials
from ooc_cudnn.operations.core.elementwise import OneShape
from ooc_cudnn.operations.core.operation import Shape
from ooc_cudnn.tensor import DTYPES
from perfmodel import Work, pass_work


@dataclass(frozen=True)
class Pointwise:
    """The fused elementwise pass; which operands it has is what its launch names.

    Parameters
    ----------
    shape : tuple of int
        Of value, addend, old and destination; the shift holds one value per channel.
    value_dtype, dtype : str
        Of the value and of the destination (and old); sums may be held wider than the data.
    mode, coef : str, float
        The activation, after the shift.
    alpha, beta : float
        `old` is not read when beta is 0.
    """

    shape: Shape
    value_dtype: str
    dtype: str
    mode: str = "identity"
    coef: float = 0.0
    alpha: float = 1.0
    beta: float = 0.0
    has_addend: bool = False
    has_shift: bool = False

    name = "pointwise"
    any_strides = True

    def work(self) -> Work:
        """Bytes read and written; a shift is small enough to be free."""
        elements = math.prod(self.shape)
        per_element = DTYPES[self.value_dtype] * (1 + self.has_addend)
        per_element += DTYPES[self.dtype] * (2 if self.beta else 1)
        return pass_work(
            f"pointwise/{self.dtype}",
            device_bytes=elements * per_element,
            elements=elements,
            exponentials=elements * exponentials(self.mode, self.dtype),
            problem=self.mode,
        )


@dataclass(frozen=True)
class Relayout(OneShape):
    """Copy a tensor into another memory order (channels-first or channels-last), on the card."""

    shape: Shape
    dtype: str

    name = "relayout"
    any_strides = True

    def work(self) -> Work:
        """One read and one write."""
        return self.passes("/relayout", 2)
