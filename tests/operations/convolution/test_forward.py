"""The description of a convolution: shapes, channels, groups, its float64 value."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.gradients import (
    ConvolutionBackwardData,
    ConvolutionBackwardFilter,
)
from ooc_cudnn.operations.core.ranges import ranges
from perfmodel import shipped
from tests.support import reference

GEOMETRIES = [
    ((2, 3, 7), (4, 3, 3), {"padding": 2, "stride": 2}),
    ((2, 4, 6, 5), (6, 2, 3, 2), {"padding": ((1, 2), 0), "dilation": (2, 1), "groups": 2}),
    ((1, 3, 6, 5), (6, 1, 3, 3), {"padding": 1, "groups": 3}),
    ((1, 2, 4, 5, 3), (2, 2, 2, 3, 1), {"padding": ((0, 1), 1, 0), "stride": (1, 2, 2)}),
    ((1, 1, 2, 2), (1, 1, 1, 1), {"padding": 5, "stride": 4}),
]


@pytest.mark.parametrize(("x_shape", "w_shape", "geometry"), GEOMETRIES)
def test_reference_and_shape(x_shape, w_shape, geometry, random):
    x, w = random.standard_normal(x_shape), random.standard_normal(w_shape)
    convolution = Convolution.of(x_shape, w_shape, **geometry)
    y = convolution.reference(x, w)
    assert y.shape == convolution.output_shape
    for expected in (
        reference.direct(x, w, **geometry),
        reference.convolution(x, w, **geometry),
    ):
        assert np.allclose(y, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("x_shape", "w_shape", "geometry"), GEOMETRIES)
def test_work_is_counted_in_the_operation(x_shape, w_shape, geometry):
    convolution = Convolution.of(x_shape, w_shape, **geometry)
    work = convolution.work()
    c_y = -(-w_shape[0] // convolution.groups // 32) * 32 * convolution.groups
    exact = 2 * c_y * np.prod(w_shape[1:]) * np.prod(convolution.output_shape[2:]) * x_shape[0]
    assert work.flops == pytest.approx(exact)
    elements = np.prod(x_shape) + np.prod(w_shape) + np.prod(convolution.output_shape)
    assert work.device_bytes == 4 * elements


@given(
    st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(1, 20), st.integers(1, 5)
)
def test_pieces_of_channels_cover_every_pair(groups, c_x, c_y, y_size, x_size):
    """Each output channel meets each input channel of its group once, and no other."""
    convolution = Convolution.of((1, groups * c_x, 1), (groups * c_y, c_x, 1), groups=groups)
    if not convolution.c_x_may_be_cut(y_size):
        x_size = c_x
    met = np.zeros((groups * c_y, groups * c_x), int)
    for y_range in convolution.c_y_ranges(y_size):
        for x_range in ranges(convolution.c_x_extent, x_size):
            piece = convolution.on_channels(1, y_range, x_range, convolution.input_rows((0, 1)))
            low, high = convolution.input_channels(y_range, x_range)
            assert piece.x_shape[1] == high - low == piece.groups * piece.w_shape[1]
            inputs, outputs = (high - low) // piece.groups, piece.w_shape[0] // piece.groups
            for group in range(piece.groups):
                rows = slice(y_range[0] + group * outputs, y_range[0] + (group + 1) * outputs)
                met[rows, low + group * inputs : low + (group + 1) * inputs] += 1
    expected = np.kron(np.eye(groups, dtype=int), np.ones((c_y, c_x), int))
    assert np.array_equal(met, expected)


def test_precision():
    assert Convolution.of((1, 1, 1), (1, 1, 1)).precision == "tf32"
    assert Convolution.of((1, 1, 1), (1, 1, 1), allow_tf32=False).precision == "float32"
    assert Convolution.of((1, 1, 1), (1, 1, 1), dtype="float16").precision == "float16"


@pytest.mark.parametrize(
    ("x", "w", "geometry", "pattern"),
    [
        ((1, 1), (1, 1), {}, "1 to 3 spatial axes"),
        ((1, 1, 4, 4), (1, 1, 3), {}, "as many axes as x"),
        ((1, 3, 4), (2, 2, 1), {}, "cX / groups"),
        ((1, 4, 4), (3, 2, 1), {"groups": 2}, "groups must divide"),
        ((1, 1, 4), (1, 1, 5), {}, "larger than x"),
        ((1, 1, 4), (1, 1, 3), {"dilation": 2}, "larger than x"),
        ((1, 1, 4), (1, 1, 3), {"groups": "1"}, "groups must"),
    ],
)
def test_what_does_not_fit(x, w, geometry, pattern):
    with pytest.raises((ValueError, TypeError), match=pattern):
        Convolution.of(x, w, **geometry)


def test_depthwise_windows_are_predicted_by_lines_of_their_own():
    """Milliseconds of the 7x7 windows of a ConvNeXt in bfloat16, measured on an H200."""
    measured = {"channels_first": (0.871, 0.869, 1.481), "channels_last": (0.577, 1.334, 0.418)}
    for layout, milliseconds in measured.items():
        forward = replace(
            Convolution.of((256, 96, 56, 56), (96, 1, 7, 7), padding=3, groups=96,
                           dtype="bfloat16"), layout=layout,
        )  # fmt: skip
        gradients = (ConvolutionBackwardData, ConvolutionBackwardFilter)
        operations = [forward, *(each(forward, "bfloat16") for each in gradients)]
        for operation, expected in zip(operations, milliseconds, strict=True):
            work = operation.work()
            assert work.key.endswith("/depthwise")
            seconds = shipped("h200").compute.seconds(work)
            assert seconds == pytest.approx(1e-3 * expected, rel=0.3)
            assert shipped("h100").compute.seconds(work) == pytest.approx(seconds, rel=0.7)
    strict = replace(forward, dtype="float32", y_dtype="float32", allow_tf32=False).work().key
    assert shipped("h200").compute.nearest_key(strict) == strict.removesuffix("/depthwise")
    grouped = Convolution.of((2, 8, 9, 9), (8, 2, 3, 3), groups=4)
    alone = Convolution.of((2, 1, 9, 9), (8, 1, 3, 3))
    assert not any(each.work().key.endswith("depthwise") for each in (grouped, alone))
