"""Checks of the public functions' arguments, before there is anything to cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ooc_cudnn.operations.chain_forms.windows_and_norms import Convolution as AppliedConvolution
from ooc_cudnn.operations.chain_forms.windows_and_norms import Incoming
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.settings_table import Settings
from ooc_cudnn.tensor import TensorSpec


def scalar(value: Any, name: str) -> float:
    """A finite number.

    Raises
    ------
    TypeError, ValueError
        Naming the argument.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name} must be a number, not {value!r}")
    number = float(value)
    if not np.isfinite(number):
        raise ValueError(f"{name} must be finite, not {value!r}")
    return number


def check_scaling(given: dict[str, Any]) -> None:
    """Make alpha and beta, where they are given, finite numbers: every function takes them."""
    for name in ("alpha", "beta"):
        if name in given:
            given[name] = scalar(given[name], name)


def shape_of(array: Any) -> tuple[int, ...]:
    """Shape of an operand as it was given, or () of what has none."""
    return tuple(getattr(array, "shape", ()))


def channel_vector(vector: Any, name: str, ndim: int) -> Any:
    """Accept one value per channel as (c,) or as cuDNN's (1, c, 1...)."""
    shape = shape_of(vector)
    if len(shape) > 1 and len(shape) == ndim:
        if all(extent == 1 for axis, extent in enumerate(shape) if axis != 1):
            if isinstance(vector, TensorSpec):
                return replace(vector, shape=(shape[1],), strides=(vector.strides[1],))
            return vector.reshape(shape[1])
        raise ValueError(f"{name} must have shape (c,) or (1, c, 1...), not {shape}")
    return vector


def wide_vector(vector: Any, ndim: int) -> Any:
    """Shape one value per channel, (c,), as (1, c, 1...), to be broadcast; others stay."""
    shape = shape_of(vector)
    if len(shape) != 1 or ndim < 2:
        return vector
    wide = (1, shape[0], *[1] * (ndim - 2))
    if isinstance(vector, TensorSpec):
        return TensorSpec(wide, vector.dtype, vector.placement)
    return vector.reshape(wide)


def check_dtype(specs: Mapping[str, TensorSpec], like: str, *names: str) -> str:
    """Check that operands have the dtype of `like`; return it."""
    dtype = specs[like].dtype
    for name in names:
        if specs[name].dtype != dtype:
            raise TypeError(f"{name} must be {dtype} like {like}, not {specs[name].dtype}")
    return dtype


def check_rank(specs: Mapping[str, TensorSpec], name: str) -> None:
    """Check that an operand has the axes n and c, and up to three spatial ones."""
    shape = specs[name].shape
    if len(shape) not in (2, 3, 4, 5):
        raise ValueError(f"{name} must have shape (n, c, up to 3 spatial axes), not {shape}")


def check_shape(
    specs: Mapping[str, TensorSpec], name: str, shape: tuple[int, ...], why: str
) -> None:
    """Check the shape of an operand."""
    if specs[name].shape != shape:
        raise ValueError(f"{name} must have shape {shape}, {why}, not {specs[name].shape}")


def check_vector(
    specs: Mapping[str, TensorSpec], name: str, channels: int, dtype: str, of: str
) -> None:
    """Check that an operand holds one value per channel."""
    if specs[name].shape != (channels,):
        raise ValueError(
            f"{name} must hold one value per channel of {of}, shape ({channels},), "
            f"not {specs[name].shape}"
        )
    if specs[name].dtype != dtype:
        raise TypeError(f"{name} must be {dtype}, not {specs[name].dtype}")


def make_convolution(
    x: TensorSpec, w: TensorSpec, geometry: tuple[Any, ...], settings: Settings
) -> Convolution:
    """The forward convolution of a call; `geometry` is (padding, stride, dilation, groups)."""
    padding, stride, dilation, groups = geometry
    applied = AppliedConvolution(
        w, padding=padding, stride=stride, dilation=dilation, groups=groups
    )
    return applied.bind(Incoming(x.shape, x.dtype, settings), (w,))
