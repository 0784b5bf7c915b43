"""Initial values of parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ooc_cudnn.operations.core.operation import Shape
from ooc_cudnn.tensor import numpy_dtype

#: Makes an array of a shape and a dtype; what it draws comes from the generator.
Initial = Callable[[np.random.Generator, Shape, str], np.ndarray[Any, Any]]


def zeros(random: np.random.Generator, shape: Shape, dtype: str) -> np.ndarray[Any, Any]:
    """Zeros."""
    return np.zeros(shape, numpy_dtype(dtype))


def ones(random: np.random.Generator, shape: Shape, dtype: str) -> np.ndarray[Any, Any]:
    """Ones."""
    return np.ones(shape, numpy_dtype(dtype))


def random_state(random: np.random.Generator, shape: Shape, dtype: str) -> np.ndarray[Any, Any]:
    """A drawn seed, and no steps yet."""
    return np.array([random.integers(2**53), 0], numpy_dtype(dtype))


def constant(value: float) -> Initial:
    """One number."""
    return partial(_filled, value)


def he(fan_in: int) -> Initial:
    """Normal numbers of variance 2 / fan_in: rectified maps keep their size (He et al., 2015)."""
    return partial(_drawn, fan_in)


# Functions of the module: a network can be pickled.


def _filled(
    value: float, random: np.random.Generator, shape: Shape, dtype: str
) -> np.ndarray[Any, Any]:
    return np.full(shape, value, numpy_dtype(dtype))


def _drawn(
    fan_in: int, random: np.random.Generator, shape: Shape, dtype: str
) -> np.ndarray[Any, Any]:
    wide = np.float64 if dtype == "float64" else np.float32
    made = random.standard_normal(shape, wide)
    made *= math.sqrt(2 / fan_in)
    return made.astype(numpy_dtype(dtype), copy=False)
