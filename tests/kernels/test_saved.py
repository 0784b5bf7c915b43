"""What forward saves in little room: masks as bits, indices of maxima as bytes."""

from __future__ import annotations

import numpy as np
import pytest

from ooc_cudnn.devices.kernels import arguments, masks
from ooc_cudnn.devices.kernels.launch import Call
from ooc_cudnn.devices.kernels.masks import masked_gradient, slope_mask
from ooc_cudnn.devices.kernels.pooling_gradient import pooling_backward
from ooc_cudnn.devices.kernels.pooling_indices import _loaded, pooling_indices
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.elementwise.activation_bitmask import (
    MaskedGradient,
    SlopeMask,
    mask_shape,
    slope_below,
)
from ooc_cudnn.operations.pooling.forward import Pooling
from ooc_cudnn.operations.pooling.gradient import PoolingBackward
from ooc_cudnn.operations.pooling.indices import PoolingIndices
from ooc_cudnn.tensor import packed_strides
from tests.support.card import cupy
from tests.support.device_operand import DTYPES, NUMPY, Operand, assert_close, random

LAYOUTS = ["first", "last", "first_rows", "last_rows"]


class Bytes:
    """A packed array of bytes on the card, in either order of memory."""

    def __init__(self, shape, layout, data=None):
        self.shape = tuple(shape)
        self.strides = packed_strides(self.shape, f"channels_{layout.removesuffix('_rows')}")
        self.memory = np.full(int(np.prod(shape)), 0xAA, np.uint8)
        if data is not None:
            self._array(self.memory)[...] = data
        self.device = cupy.asarray(self.memory)
        self.view = DeviceView(self.device.data.ptr, "uint8", self.shape, self.strides)

    def _array(self, memory):
        return np.lib.stride_tricks.as_strided(memory, self.shape, self.strides)

    def result(self):
        return self._array(cupy.asnumpy(self.device)).copy()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3, 5, 21), (3, 4, 8), (2, 19), (2, 2, 3, 2, 9), (2, 3, 1),
                                   (2, 3, 4, 12)], ids=str)  # fmt: skip
def test_masks(shape, dtype, layout):
    data = random(shape, 1)
    data.ravel()[:2] = 0, np.nan
    x = Operand(shape, dtype, layout, data=data)
    gradients = random(shape, 2)
    gradients.ravel()[1:4] = np.inf, np.nan, -np.inf
    dy = Operand(shape, dtype, layout, data=gradients)
    modes = {"relu": (0.0,), "clipped_relu": (0.5,), "leaky_relu": (-0.25, 0.0)}
    for mode, coef in ((mode, coef) for mode, coefs in modes.items() for coef in coefs):
        for mask_layout in ("first", "last"):
            mask = Bytes(mask_shape(shape), mask_layout)
            operation = SlopeMask(shape, mode, coef, dtype)
            slope_mask(operation, Call((x.view,), mask.view))
            np.testing.assert_array_equal(mask.result(), operation.reference(x.array))
            gradient = MaskedGradient(shape, slope_below(mode, coef), dtype)
            dx = Operand(shape, dtype, layout)
            masked_gradient(gradient, Call((mask.view, dy.view), dx.view))
            with np.errstate(invalid="ignore"):
                expected = gradient.reference(mask.result(), dy.array)
            assert_close(dx.result(), expected, dtype)


def test_masks_with_indices_of_64_bits(monkeypatch):
    monkeypatch.setattr(arguments, "SMALL_OFFSETS", 0)
    test_masks((2, 3, 5, 21), "float32", "first")


def test_masks_of_large_tensors_have_indices_of_64_bits():
    def template(rows):
        views = [
            DeviceView(0, dtype, (rows, width), (width, 1))
            for dtype, width in (("uint8", 2**12), ("float32", 2**15))
        ]
        return masks._plan("slope_mask", ("float", "RELU"), views[0], *views).expression

    assert "<int" in template(2**15)
    assert "<long long" in template(2**16)


def test_masks_of_every_other_element():
    """Rows begin on boundaries, and their elements do not lie side by side."""
    shape = (2, 3, 4, 8)
    wide = Operand((2, 3, 4, 16), "float32", data=random((2, 3, 4, 16), 1))
    view = wide.view
    apart = DeviceView(view.pointer, "float32", shape, (*view.strides[:-1], 2))
    mask = Bytes(mask_shape(shape), "first")
    operation = SlopeMask(shape, "relu", 0.0, "float32")
    slope_mask(operation, Call((apart,), mask.view))
    np.testing.assert_array_equal(mask.result(), operation.reference(wide.array[..., ::2]))
    dx = Operand(shape, "float32")
    gradient = MaskedGradient(shape, None, "float32")
    masked_gradient(gradient, Call((mask.view, apart), dx.view))
    assert_close(dx.result(), gradient.reference(mask.result(), wide.array[..., ::2]), "float32")


POOLINGS = {
    "1d": ((2, 5, 19), {"window": 3, "stride": 2, "padding": 1}),
    "2d": ((2, 24, 8, 6), {"window": 2}),
    "ragged packs": ((2, 19, 5, 6), {"window": (3, 2), "stride": 2, "padding": 1}),
    "ends in a pack": ((1, 20, 7, 4), {"window": 3, "stride": (2, 3), "padding": 1}),
    "long rows": ((2, 16, 3, 21), {"window": (2, 11), "stride": (1, 4), "padding": (0, 3)}),
    "overlapping": ((2, 3, 9, 11), {"window": 3, "stride": 2, "padding": ((2, 1), 1)}),
    "stride beyond window": ((1, 2, 12, 5), {"window": (2, 1), "stride": (5, 3)}),
    "3d": ((1, 2, 5, 4, 7), {"window": 2, "stride": (2, 1, 3)}),
}


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_smallest_number_is_a_maximum_of_zeros(dtype):
    """Though arithmetic on a card takes it for zero."""
    forward = Pooling.of((1, 4, 4, 4), window=2, dtype=dtype)
    tiny = float(np.nextafter(NUMPY[dtype].type(0), NUMPY[dtype].type(1)))
    data = np.zeros(forward.x_shape)
    data[:, :, 1::2, 1::2] = tiny
    x, index = Operand(forward.x_shape, dtype, data=data), Bytes(forward.output_shape, "first")
    y = Operand(forward.output_shape, dtype)
    pooling_indices(PoolingIndices(forward), Call((x.view, y.view), index.view))
    assert (index.result() == 3).all()
    assert (y.result().astype("f8") == tiny).all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", POOLINGS)
def test_indices(case, dtype, layout):
    shape, geometry = POOLINGS[case]
    data = random(shape, 1)
    data.ravel()[::7] = np.nan
    x = Operand(shape, dtype, layout, data=data)
    forward = Pooling.of(shape, dtype=dtype, **geometry)
    operation = PoolingIndices(forward)
    dy = Operand(forward.output_shape, dtype, layout, data=random(forward.output_shape, 2))
    for index_layout in ("first", "last"):
        index = Bytes(forward.output_shape, index_layout)
        pooling_indices(operation, Call((x.view, None), index.view))
        np.testing.assert_array_equal(index.result(), operation.reference(x.array))
        behind = PoolingIndices(forward, positive=True)
        told = Bytes(forward.output_shape, index_layout)
        y = Operand(forward.output_shape, dtype, layout)
        pooling_indices(behind, Call((x.view, y.view), told.view))
        np.testing.assert_array_equal(told.result(), behind.reference(x.array))
        assert_close(y.result(), forward.reference(x.array), dtype)
        for rows in ((0, shape[2]), (1, shape[2] - 1)):
            backward = PoolingBackward(forward, rows, indexed=True)
            dx = Operand(backward.output_shape, dtype, layout)
            pooling_backward(backward, Call((index.view, dy.view), dx.view))
            expected = backward.reference(index.result(), dy.array)
            assert_close(dx.result(), expected, dtype, 2.0**-20 * np.abs(dy.wide).max() * 9)


@pytest.mark.parametrize(
    ("offset", "width", "padding", "loaded"),
    [(0, 16, 0, 4), (2, 16, 0, 2), (1, 16, 0, 1), (0, 18, 0, 2), (0, 16, 1, 1)],
)
def test_rows_are_loaded_in_packs_where_they_begin_on_boundaries(offset, width, padding, loaded):
    shape = (2, 2, 4, width)
    x = Operand(shape, "float32", offset=offset, data=random(shape, 1))
    forward = Pooling.of(shape, window=2, padding=(0, padding))
    assert _loaded(forward, x.view, 4) == loaded
    index = Bytes(forward.output_shape, "first")
    pooling_indices(PoolingIndices(forward), Call((x.view, None), index.view))
    np.testing.assert_array_equal(index.result(), PoolingIndices(forward).reference(x.array))
