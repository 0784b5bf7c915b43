"""The kernels of local response normalization, beside references in float64.

tests/operations compares these with PyTorch.
"""

from __future__ import annotations

import numpy as np
import pytest

from ooc_cudnn.devices.kernels import arguments
from ooc_cudnn.devices.kernels import local_response as response_module
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.normalization.local_response import (
    WIDEST_WINDOW,
    LocalResponse,
    LocalResponseBackward,
)
from ooc_cudnn.tensor import packed_strides
from tests.support.device_operand import DTYPES, EPSILON, Operand, assert_close
from tests.support.kernel_runs import run

#: shape, size
RESPONSES = {
    "2d": ((2, 7, 5, 3), 5),
    "1d, even": ((3, 6, 11), 4),
    "more than the channels": ((2, 3, 4, 4), 9),
    "many channels": ((1, 96, 3, 2, 2), 5),
    "packs of all operands": ((2, 24, 4, 6), 5),
    "longer than a warp": ((1, 320, 2, 2), 5),
    "no spatial axes": ((5, 48), 3),
    "one channel": ((3, 1, 4, 5), 5),
    "one channel in each sum": ((2, 16, 3, 3), 1),
    "two": ((2, 16, 3, 3), 2),
    "the widest in registers": ((1, 40, 3, 3), 17),
    "even, nearly the widest": ((2, 35, 2, 2), 16),
    "wide": ((1, 40, 3, 3), 18),
    "all channels": ((2, 24, 2, 2), 100),
}
LAYOUTS = ["first first first", "last last last", "first last first", "last first last",
           "first_rows last_rows first", "last_rows last last_rows"]  # fmt: skip
BETAS = [0.5, 0.75, 1.0, 0.6, -0.5, 2.0, 0.0]


def drawn(shape, seed=0):
    return np.random.default_rng(seed).integers(-4, 5, shape) / 2


def check(operation, layouts, x=None, dy=None, offset=0):
    """Forward and backward beside their references."""
    shape, dtype = operation.shape, operation.dtype
    layout, dy_layout, result_layout = layouts.split()
    x = Operand(shape, dtype, layout, data=drawn(shape) if x is None else x, offset=offset)
    dy = Operand(shape, dtype, dy_layout, data=drawn(shape, 1) if dy is None else dy, offset=offset)
    slack = 64 * EPSILON["float64" if dtype == "float64" else "float32"]
    backward = LocalResponseBackward(operation)
    with np.errstate(all="ignore"):
        y, dx = operation.reference(x.wide), backward.reference(x.wide, dy.wide)
    for made, inputs, expected, bound in (
        (operation, (x,), y, slack),
        (backward, (x, dy), dx, 8 * slack),
    ):
        result = Operand(shape, dtype, result_layout, offset=offset)
        assert_close(run(response_module, made, inputs, result), expected, dtype, bound)


@pytest.mark.parametrize("layouts", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", RESPONSES)
def test_every_case(case, dtype, layouts):
    shape, size = RESPONSES[case]
    check(LocalResponse.of(shape, size, 0.5, 0.75, 1.0, dtype), layouts)


#: As above: those of which the gradient may lie where dy does, and sites that fill several blocks.
IN_PLACE = {name: case for name, case in RESPONSES.items() if case[1] <= WIDEST_WINDOW}
IN_PLACE |= {"rows that fill blocks": ((3, 96, 15, 15), 5), "long rows": ((2, 1030, 3, 3), 5)}


@pytest.mark.parametrize("layouts", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", IN_PLACE)
def test_gradients_in_place(case, dtype, layouts):
    """The same bits as elsewhere, wherever blocks and segments end, on any boundary."""
    shape, size = IN_PLACE[case]
    x_layout, layout, _ = layouts.split()
    backward = LocalResponseBackward(LocalResponse.of(shape, size, 0.5, 0.75, 1.0, dtype))
    for offset in (0, 1):
        x = Operand(shape, dtype, x_layout, data=drawn(shape), offset=offset)
        made = []
        for in_place in (False, True):
            dy = Operand(shape, dtype, layout, data=drawn(shape, 1), offset=offset)
            result = dy if in_place else Operand(shape, dtype, layout, offset=offset)
            made.append(run(response_module, backward, (x, dy), result))
        np.testing.assert_array_equal(*made)


@pytest.mark.parametrize("layout", ["first", "last"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [5, 20])
@pytest.mark.parametrize("beta", BETAS)
def test_every_beta(beta, size, dtype, layout):
    check(LocalResponse.of((2, 24, 3, 4), size, 0.5, beta, 1.0, dtype), f"{layout} " * 3)


@pytest.mark.parametrize("layout", ["first", "last"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_that_begin_on_no_wide_boundary(dtype, layout):
    check(LocalResponse.of((2, 24, 4, 6), 5, 0.5, 0.75, 1.0, dtype), f"{layout} " * 3, offset=1)


@pytest.mark.parametrize("layout", ["first", "last"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [5, 20])
def test_offsets_of_64_bits(size, dtype, layout, monkeypatch):
    monkeypatch.setattr(arguments, "SMALL_OFFSETS", 0)
    check(LocalResponse.of((2, 24, 4, 6), size, 0.5, 0.75, 1.0, dtype), f"{layout} " * 3)


@pytest.mark.parametrize("layout", ["first", "last"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [0.0, 1.0, -3.0])
@pytest.mark.parametrize("beta", [0.5, 0.75, 1.0, 0.6, 0.0])
@pytest.mark.parametrize("size", [5, 20])
def test_infinities_and_none(size, beta, k, dtype, layout):
    """Those of x reach the channels around, and no other; sums are zero or negative, too."""
    shape = (2, 24, 3, 4)
    x, dy = drawn(shape), drawn(shape, 1)
    x[:, ::2] = 0
    x[0, :9, 0] = 0
    for index, (channel, value) in enumerate([(0, np.nan), (23, np.inf), (11, -np.inf)]):
        x[0, channel, 1, index] = value
        dy[0, channel, 2, index] = value
        x[1, channel, 0, 3] = dy[1, channel, 0, 3] = value
    check(LocalResponse.of(shape, size, 0.5, beta, k, dtype), f"{layout} " * 3, x, dy)


@pytest.mark.parametrize("size", [2, 5, 8])
@pytest.mark.parametrize("shortest", [1, 3, 7])
def test_segments_of_channels(size, shortest, monkeypatch):
    monkeypatch.setattr(response_module, "SHORTEST_SEGMENT", shortest)
    monkeypatch.setattr(response_module, "SEGMENT_WINDOWS", 0)
    check(LocalResponse.of((2, 23, 3, 4), size, 0.5, 0.75, 1.0, "float32"), "first " * 3)


def planned(shape, layout, dtype="float32", size=5):
    _, channels, sites = shape
    last = (channels * sites, 1, channels)
    strides = last if layout == "last" else packed_strides(shape)
    view = DeviceView(4096, dtype, shape, strides)
    operation = LocalResponse.of(shape, size, 1e-4, 0.75, 1.0, dtype)
    return [
        response_module.plan(operation, view, dy, view).expression.split("<") for dy in (None, view)
    ]


def test_kernels_that_are_chosen():
    shape = (8, 64, 104)
    (forward, of), (backward, of_gradient) = planned(shape, "last")
    assert (forward, backward) == ("local_response_lanes", "local_response_lanes_backward")
    assert of == "int, float, 2, 2, THREE_QUARTERS, 4, 2>"
    assert of_gradient == "int, float, 2, 2, THREE_QUARTERS, 4>"
    (forward, of), (backward, _) = planned(shape, "first", "float16")
    assert (forward, backward) == ("local_response_walk", "local_response_walk_backward")
    assert of == "int, __half, 2, 2, THREE_QUARTERS, 8>"
    assert planned(shape, "last", size=18)[0][0] == "local_response_wide"
    # windows that no channel fills
    (_, of), _ = planned((8, 3, 100), "last", size=99)
    assert of.startswith("int, float, 2, 2,")
