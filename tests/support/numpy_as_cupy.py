"""As much of CuPy as the double-buffered loop uses, on NumPy: copies are made at once."""

from __future__ import annotations

import ctypes
import math
from types import SimpleNamespace

import numpy as np


class Array:
    """An array of the "device"."""

    def __init__(self, values):
        self.values = values

    @property
    def data(self):
        return SimpleNamespace(ptr=self.values.ctypes.data)

    def __getattr__(self, name):
        return getattr(self.values, name)

    def __getitem__(self, key):
        return Array(self.values[key])

    def __setitem__(self, key, value):
        self.values[key] = value


class Stream:
    ptr = 7

    def __init__(self, non_blocking):
        assert non_blocking
        self.waits = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def synchronize(self):
        self.waits += 1


class Runtime:
    """Copies, counted by kind."""

    def __init__(self):
        self.copies = []

    def deviceSynchronize(self):
        pass

    def memcpyAsync(self, to, source, nbytes, kind, stream):
        assert stream == Stream.ptr
        self.copies.append(("1-D", kind))
        ctypes.memmove(to, source, nbytes)

    def memcpy2DAsync(self, to, to_pitch, source, pitch, width, height, kind, stream):
        assert stream == Stream.ptr
        assert width <= min(to_pitch, pitch)
        self.copies.append(("2-D", kind))
        for row in range(height):
            ctypes.memmove(to + row * to_pitch, source + row * pitch, width)


class Convolution:
    """For `ConvolutionPlan`: padded by one column, and by `row_padding` rows."""

    engine = "NumPy"

    def __init__(self, x_shape, w_shape, *, tf32, row_padding):
        self.x_shape, self.w_shape, self.rows = x_shape, w_shape, row_padding
        height = x_shape[2] - 2 + 2 * row_padding
        self.y_shape = (x_shape[0], w_shape[0], height, x_shape[3])

    def launch(self, x, w, y):
        x, w, y = (
            np.ctypeslib.as_array((ctypes.c_float * math.prod(shape)).from_address(pointer))
            .reshape(shape)
            for pointer, shape in ((x, self.x_shape), (w, self.w_shape), (y, self.y_shape))
        )  # fmt: skip
        padded = np.pad(x, ((0, 0), (0, 0), (self.rows, self.rows), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
        y[...] = np.einsum("nchwrs,kcrs->nkhw", windows, w)


class BiasActivation:
    """For `DirectBiasActivation`."""

    def __init__(self, y, b):
        self.y, self.b = y, b

    def __call__(self):
        np.maximum(self.y.values + self.b.values[:, None, None], 0, out=self.y.values)


def module():
    """What stands in for the module."""
    return SimpleNamespace(
        cuda=SimpleNamespace(Stream=Stream, runtime=Runtime()),
        empty=lambda shape, dtype: Array(np.full(shape, np.nan, dtype)),
        asarray=Array,
        get_default_memory_pool=lambda: SimpleNamespace(free_all_blocks=lambda: None),
    )
