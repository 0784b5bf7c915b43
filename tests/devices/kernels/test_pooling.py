"""Which pooling and elementwise kernel runs. No GPU needed."""

from __future__ import annotations

import itertools
import math

import pytest

from ooc_cudnn.devices.kernels.elementwise import plan_activation_backward, plan_op_tensor
from ooc_cudnn.devices.kernels.pooling import plan_pooling
from ooc_cudnn.devices.kernels.pooling_gradient import (
    SHARED_BYTES,
    Tile,
    choose_tile,
    plan_pooling_backward,
)
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.memory.axes import merged_axes
from ooc_cudnn.operations.elementwise.activation_gradient import ActivationBackward
from ooc_cudnn.operations.elementwise.binary import OpTensor
from ooc_cudnn.operations.pooling.forward import Pooling
from ooc_cudnn.operations.pooling.gradient import PoolingBackward
from ooc_cudnn.tensor import packed_strides


def packed(shape, dtype="float32", order="first", pointer=4096):
    inner = (*range(1, len(shape)), 0)[:-1] if order == "first" else (*range(2, len(shape)), 1)
    strides, step = [0] * len(shape), 1
    for axis in (*reversed(inner), 0):
        strides[axis] = step
        step *= shape[axis]
    return DeviceView(pointer, dtype, tuple(shape), tuple(strides))


def names(operation, order, *, pointer=4096):
    x = packed(operation.x_shape, operation.dtype, order, pointer)
    y = packed(operation.output_shape, operation.dtype, order, pointer)
    forward = plan_pooling(operation, x, y)
    backward = plan_pooling_backward(PoolingBackward(operation, (0, x.shape[2])), y, y, x, x)
    assert forward is not None
    assert backward is not None
    return forward.expression, backward.expression


def test_the_common_windows_move_in_16_byte_packs():
    operation = Pooling.of((8, 64, 128, 128), window=3, stride=2, padding=1, dtype="float16")
    forward, backward = names(operation, "first")
    assert forward == "pool_rows<int, __half, MAX, 1, 3, 3, 1, 2, 2, 1, 8, 8, 8>"
    assert backward.startswith("unpool_planes<int, __half, MAX, ")
    forward, backward = names(operation, "last")
    assert forward == "pool_windows<int, __half, MAX, 8, 1, 3, 3, 1, 2, 2, 1, false, true>"
    assert backward.startswith("unpool_strips<int, __half, MAX, 4, ")
    forward, backward = names(operation, "last", pointer=4098)
    assert forward.startswith("pool_windows<int, __half, MAX, 1, ")
    assert backward.startswith("unpool_strips<int, __half, MAX, 1, ")


def test_large_windows_are_shared_by_a_warp_and_huge_tensors_have_long_offsets():
    assert names(Pooling.of((2, 3, 50, 50), window=50), "first")[0].startswith("pool_by_warp<int, ")
    forward, backward = names(Pooling.of((2, 64, 8192, 4096), window=2), "first")
    assert forward.startswith("pool_rows<long long, ")
    assert backward.startswith("unpool_strips<long long, float, MAX, ")


@pytest.mark.parametrize("sizes", [(1, 8, 1, 112, 112, 1), (3, 70, 9, 9, 9, 1), (1, 4, 1, 7, 7, 64),
                                   (1, 1, 1, 1, 10**6, 1), (1, 5, 3, 3, 3, 33)])  # fmt: skip
@pytest.mark.parametrize("window", [1, 2, 3, 7, 30])
@pytest.mark.parametrize("stride", [1, 2, 5])
def test_tiles_fit_shared_memory(sizes, window, stride):
    tile = choose_tile(sizes, 1, (1, window, window), (1, stride, stride), 8)
    assert tile is not None
    assert tile.windows((1, window, window), (1, stride, stride)) * 8 <= SHARED_BYTES
    extents = (*sizes[1:5], sizes[5])
    assert all(1 <= piece <= extent for piece, extent in zip(tile, extents, strict=True))


def test_no_tile_where_too_many_windows_overlap():
    assert choose_tile((1, 1, 1, 200, 200, 1), 1, (1, 100, 100), (1, 1, 1), 8) is None
    assert Tile(1, 1, 1, 1, 1).windows((1, 100, 100), (1, 1, 1)) == 10**4


def test_axes_merge_to_the_same_elements():
    """Walking the merged axes meets the addresses that walking the tensor meets."""
    shape = (2, 3, 4, 5)
    operands = [(60, 20, 5, 1), (80, 20, 5, 1), (60, 1, 15, 3), (0, 1, 0, 0), (0, 0, 5, 1)]
    for strides in itertools.product(operands, repeat=3):
        if 0 in strides[0]:
            continue
        axes = merged_axes(shape, strides)
        expected = sorted(
            tuple(sum(i * s for i, s in zip(at, steps, strict=True)) for steps in strides)
            for at in itertools.product(*map(range, shape))
        )
        walked = (*axes.sizes, axes.inner)
        steps = [(*axes.strides[o], axes.inner_strides[o]) for o in range(3)]
        met = sorted(
            tuple(sum(i * s for i, s in zip(at, each, strict=True)) for each in steps)
            for at in itertools.product(*map(range, walked))
        )
        assert met == expected
        assert math.prod(walked) == math.prod(shape)


@pytest.mark.parametrize(
    ("shape", "b_shape", "order", "expected"),
    [
        ((2, 64, 8, 8), (1, 64, 1, 1), "first", "true, CONSTANT, 4, 4>"),
        ((2, 64, 8, 8), (1, 64, 1, 1), "last", "true, PACKED, 4, 4>"),
        ((2, 64, 7, 7), (1, 64, 1, 1), "first", "true, CARRIED, 4, 4>"),
        ((2, 64, 7, 7), (2, 64, 7, 7), "first", "true, PACKED, 4, 4>"),
    ],
)
def test_how_b_is_read(shape, b_shape, order, expected):
    a, b = packed(shape, order=order), packed(b_shape, order=order)
    launch = plan_op_tensor(OpTensor(shape, b_shape, "float32"), a, b, a)
    assert launch is not None
    assert launch.expression == f"op_tensor<int, float, ADD, {expected}"


def test_plans_refuse_operands_that_do_not_fit():
    a, b = packed((1, 2, 4)), packed((1, 2, 6))
    with pytest.raises(ValueError, match="y is float32"):
        plan_pooling(Pooling.of((1, 2, 4), window=2), a, b)
    with pytest.raises(ValueError, match="a is float32"):
        plan_op_tensor(OpTensor((1, 2, 4), (1, 2, 4), "float32"), b, a, a)
    with pytest.raises(ValueError, match="dy is float32"):
        plan_activation_backward(
            ActivationBackward((1, 2, 4), "relu", 0.0, "float32"), a, b, None, a
        )


HUGE = 2**33


@pytest.mark.parametrize("mode", ["max", "average_exclude_padding"])
@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((1, 1, 8, 64), (HUGE, HUGE, 64, 1)),  # a channel of a volume of 17 GB
        ((1, 3, 8, 64), (HUGE, 1, 192, 3)),
        ((1, 3, 1, 64), (HUGE, 64, HUGE, 1)),
    ],
)
def test_the_stride_of_an_axis_of_one_element_is_no_matter(shape, strides, mode):
    """It was refused as out of bounds for an int, though no step of it is ever taken."""
    operation = Pooling.of(shape, window=(min(2, shape[2]), 2), mode=mode)
    x = DeviceView(4096, "float32", shape, strides)
    order = "channels_last" if strides[1] == 1 else "channels_first"
    made = operation.output_shape
    y = DeviceView(2**20, "float32", made, packed_strides(made, order))
    backward = PoolingBackward(operation, (0, shape[2]))
    for launch in (
        plan_pooling(operation, x, y),
        plan_pooling_backward(backward, y, y, x, x),
    ):
        assert "<int, " in launch.expression


@pytest.mark.parametrize(("width", "index"), [(2**28, "int"), (2**29 + 2**28, "long long")])
def test_kernels_may_step_as_far_before_a_tensor_as_windows_begin(width, index):
    """In 32 bits a place two rows above an image of one wide row would be behind it."""
    operation = Pooling.of((1, 1, 2, width), window=3, stride=1, padding=1, dtype="float16")
    strides = packed_strides(operation.x_shape, "channels_first")
    x, y = (DeviceView(at, "float16", operation.x_shape, strides) for at in (2**12, 2**40))
    assert f"<{index}, " in plan_pooling(operation, x, y).expression
