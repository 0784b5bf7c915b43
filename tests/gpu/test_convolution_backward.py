"""Gradients of convolutions on the card: cuDNN's and our own, against PyTorch's in float64.

Results and workspaces are filled with NaN beforehand, and what lies around a result must stay.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ooc_cudnn.devices.cuda.convolutions import Convolutions
from ooc_cudnn.devices.engines import Tables
from ooc_cudnn.devices.kernels.convolution_direct import run as run_direct
from ooc_cudnn.devices.kernels.launch import Call
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.gradients import (
    ConvolutionBackwardData,
    ConvolutionBackwardFilter,
)
from tests.support.device_operand import GUARD_BYTES, NUMPY, Operand

cupy = pytest.importorskip("cupy")
torch = pytest.importorskip("torch")

torch.set_num_threads(1)  # several workers share the machine

#: What is computed: type, whether TF32 is allowed, type of the result, bound of the error.
PRECISIONS = {
    "float16": ("float16", True, "float16", 1e-3),
    "bfloat16": ("bfloat16", True, "bfloat16", 8e-3),
    "float16-sum": ("float16", True, "float32", 1e-5),
    "bfloat16-sum": ("bfloat16", False, "float32", 1e-5),
    "tf32": ("float32", True, "float32", 1e-3),
    "float32": ("float32", False, "float32", 3e-6),
    "float64": ("float64", True, "float64", 1e-13),
}
LAYOUTS = ("channels_first", "channels_last")
GRADIENTS = {"data": ConvolutionBackwardData, "filter": ConvolutionBackwardFilter}


def case(x, w, padding, stride=1, dilation=1):
    """A convolution; groups follow from the channels."""
    options = {"padding": padding, "stride": stride, "dilation": dilation}
    return Convolution.of(x, w, **options, groups=x[1] // w[1])


X, W = (2, 8, 13, 11), (12, 8, 3, 3)
WIDE = (64, 64, 3, 3)
#: Pieces of every kind: a first one has padding before its rows and none after, one in the middle
#: has none, a last one the reverse; and what users may ask for.
CASES = {
    "whole": case(X, W, 1),
    "first": case(X, W, ((1, 0), 1)),
    "middle": case(X, W, (0, 1)),
    "last": case(X, W, ((0, 1), 1)),
    "columns-before": case(X, W, (1, (1, 0))),
    "columns-after": case(X, W, (1, (0, 1))),
    "corner": case(X, W, ((1, 0), (1, 0))),
    "opposite": case(X, W, ((0, 2), (2, 0))),
    "padding-of-a-window": case(X, W, 3),
    "padding-beyond-the-window": case(X, W, ((0, 5), (5, 0))),
    "padding-beyond-the-window-before": case(X, W, ((6, 1), 1)),
    "stride": case(X, W, ((1, 0), 1), 2),
    "stride-rows-unseen": case((2, 8, 14, 12), W, 0, 3),
    "stride-beyond-window": case(X, (12, 8, 2, 1), ((0, 1), 0), (3, 2)),
    "strides-differ": case(X, W, ((0, 1), (2, 0)), (1, 3)),
    "dilation": case(X, W, ((2, 0), 2), 1, 2),
    "stride-and-dilation": case(X, W, ((0, 3), 1), (3, 2), 2),
    "groups": case(X, (12, 4, 3, 3), ((1, 0), 1)),
    "groups-last": case(X, (12, 2, 3, 3), ((0, 1), (1, 0)), 2),
    "depthwise": case((3, 8, 13, 11), (8, 1, 3, 3), 1),
    "depthwise-first": case((3, 8, 13, 11), (8, 1, 3, 3), ((1, 0), 1)),
    "depthwise-columns": case((3, 8, 13, 11), (8, 1, 3, 3), ((0, 1), (1, 0))),
    "depthwise-twice": case((3, 8, 13, 11), (16, 1, 5, 5), (2, (1, 3))),
    "one-channel": case((3, 1, 9, 9), (1, 1, 3, 3), ((0, 1), (2, 0))),
    "points": case(X, (12, 8, 1, 1), 0),
    "points-strided": case(X, (12, 8, 1, 1), ((2, 0), (0, 1)), 2),
    "window-5": case(X, (12, 8, 5, 5), 2),
    "window-5-first": case(X, (12, 8, 5, 5), ((2, 0), 2)),
    "window-7-colours": case((2, 3, 20, 22), (16, 3, 7, 7), ((3, 0), 3), 2),
    "window-row": case(X, (12, 8, 1, 7), (0, 3)),
    "to-few-channels": case((2, 16, 13, 11), (3, 16, 3, 3), ((0, 1), 1)),
    "wide": case((3, 64, 18, 20), WIDE, 1),
    "wide-first": case((1, 64, 18, 20), WIDE, ((1, 0), 1)),
    "wide-last-odd": case((3, 64, 17, 19), WIDE, ((0, 1), 1)),
    "wide-middle-odd": case((3, 64, 17, 19), WIDE, (0, 1)),
    "wide-strided": case((2, 64, 18, 21), WIDE, ((1, 0), 1), 2),
    "large-filter": case((1, 256, 10, 12), (256, 256, 3, 3), ((1, 0), 1)),
    "large-filter-odd": case((1, 256, 9, 11), (256, 256, 3, 3), 1),
    "ragged-channels": case((2, 63, 10, 12), (65, 63, 3, 3), ((0, 1), 1)),
    "one-row": case((2, 8, 1, 11), W, ((2, 0), 1)),
    "1d": case((2, 8, 23), (12, 8, 3), ((1, 0),)),
    "1d-depthwise": case((3, 8, 23), (8, 1, 3), ((1, 0),)),
    "1d-strided": case((2, 8, 23), (12, 4, 5), ((0, 3),), 2),
    "3d": case((2, 8, 6, 7, 9), (12, 8, 3, 3, 3), ((1, 0), 1, (0, 1))),
    "3d-strided": case((2, 8, 6, 7, 9), (12, 4, 3, 3, 3), ((0, 1), 1, 1), (2, 1, 2)),
    "3d-depthwise": case((2, 8, 6, 7, 9), (8, 1, 3, 3, 3), (1, 1, (1, 0))),
}


def gradient_of(name, direction, precision, layout, *, deterministic=False):
    dtype, tf32, result, _ = PRECISIONS[precision]
    forward = CASES[name] if isinstance(name, str) else name
    options = {"dtype": dtype, "y_dtype": dtype, "allow_tf32": tf32, "layout": layout}
    forward = replace(forward, **options, deterministic=deterministic)
    return GRADIENTS[direction](forward, result)


def packed(shape, dtype, layout, values=None):
    return Operand(shape, dtype, layout.removeprefix("channels_"), data=values)


def pitched(shape, dtype, layout, values=None):
    """Some rows of a larger tensor, one element off any alignment."""
    rows = f"{layout.removeprefix('channels_')}_rows"
    return Operand(shape, dtype, rows, offset=1, data=values)


def rounded(random, shape, dtype):
    return random.standard_normal(shape).astype(NUMPY[dtype]).astype(np.float64)


def problem(operation):
    """Random inputs of a gradient, and what PyTorch computes from them."""
    forward = operation.forward
    random = np.random.default_rng(0)
    x, w, dy = (
        rounded(random, shape, forward.dtype)
        for shape in (forward.x_shape, forward.w_shape, forward.output_shape)
    )
    variables = [torch.from_numpy(array).requires_grad_() for array in (x, w)]
    convolve = getattr(torch.nn.functional, f"conv{len(x.shape) - 2}d")
    sides = [side for pair in reversed(forward.padding) for side in pair]
    y = convolve(
        torch.nn.functional.pad(variables[0], sides),
        variables[1],
        stride=forward.stride,
        dilation=forward.dilation,
        groups=forward.groups,
    )
    dx, dw = torch.autograd.grad(y, variables, torch.from_numpy(dy))
    if isinstance(operation, ConvolutionBackwardData):
        return (w, dy), dx.numpy()
    return (x, dy), dw.numpy()


def run(convolutions, operation, arrays, budget="all"):
    """The result's memory; workspace: what the plan asks for, or `budget` bytes, full of NaN."""
    forward = operation.forward
    inputs = tuple(packed(a.shape, forward.dtype, forward.layout, a) for a in arrays)
    result = packed(operation.output_shape, operation.result_dtype, forward.layout)
    if budget == "all":
        found = convolutions.executable(operation, None)
        budget = found.workspace_bytes if found else 0
    workspace = cupy.full(budget + GUARD_BYTES, 0xFF, np.uint8)
    stream = cupy.cuda.get_current_stream()
    views = tuple(operand.view for operand in inputs)
    convolutions.run(operation, views, result.view, (workspace.data.ptr, budget), stream)
    stream.synchronize()
    assert (workspace[budget:] == 0xFF).all()
    return result


def check(values, expected, bound, label=""):
    norm = np.linalg.norm(expected)
    error = np.linalg.norm(values.astype(np.float64) - expected)
    assert error <= bound * norm, f"{label}: {error / norm if norm else error}"


@pytest.fixture(scope="module")
def convolutions():
    known = Tables()
    return Convolutions(lambda: known, lambda: None)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("direction", GRADIENTS)
@pytest.mark.parametrize("name", CASES)
def test_pieces(convolutions, name, direction, precision, layout):
    operation = gradient_of(name, direction, precision, layout)
    arrays, expected = problem(operation)
    found = convolutions.executable(operation, None)
    assert found is not None, "cuDNN does not support it"
    check(run(convolutions, operation, arrays).result(), expected, PRECISIONS[precision][3], found)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("direction", GRADIENTS)
def test_any_workspace_is_enough(convolutions, direction, precision, layout):
    for name in ("first", "wide-last-odd", "window-7-colours", "depthwise", "stride"):
        operation = gradient_of(name, direction, precision, layout)
        arrays, expected = problem(operation)
        for budget in (0, 2048, 65536):
            found = convolutions.executable(operation, budget)
            assert found is None or found.workspace_bytes <= budget
            result = run(convolutions, operation, arrays, budget)
            check(result.result(), expected, PRECISIONS[precision][3], f"{name} {budget} {found}")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("direction", GRADIENTS)
def test_deterministic_is_bitwise(convolutions, direction, precision, layout):
    for name in ("wide", "wide-first", "window-7-colours", "depthwise-first", "3d"):
        operation = gradient_of(name, direction, precision, layout, deterministic=True)
        arrays, expected = problem(operation)
        first = run(convolutions, operation, arrays)
        check(first.result(), expected, PRECISIONS[precision][3], name)
        for _ in range(4):
            assert np.array_equal(run(convolutions, operation, arrays).bits(), first.bits()), name


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strict_float32_is_strict(convolutions, layout):
    for window in (3, 5):
        forward = case((4, 64, 48, 48), (64, 64, window, window), ((1, 0), 1))
        for direction in GRADIENTS:
            errors = {}
            for precision in ("tf32", "float32"):
                operation = gradient_of(forward, direction, precision, layout)
                arrays, expected = problem(operation)
                values = run(convolutions, operation, arrays).result()
                errors[precision] = np.linalg.norm(values - expected) / np.linalg.norm(expected)
            assert errors["float32"] < 5e-6 < 1e-5 < errors["tf32"] < 2e-3


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_forward_sums_of_half_types(convolutions, dtype, layout):
    """Float32 results of half types, which cuDNN supports in part, with a workspace of NaN."""
    for name, forward in CASES.items():
        options = {"dtype": dtype, "y_dtype": "float32", "layout": layout}
        operation = replace(forward, **options)
        random = np.random.default_rng(1)
        x, w = (rounded(random, s, dtype) for s in (forward.x_shape, forward.w_shape))
        found = convolutions.executable(operation, None)
        assert found is not None, name
        workspace = cupy.full(found.workspace_bytes + 1, 0xFF, np.uint8)
        inputs = [packed(a.shape, dtype, layout, a) for a in (x, w)]
        y = packed(operation.output_shape, "float32", layout)
        space = (workspace.data.ptr, found.workspace_bytes)
        stream = cupy.cuda.get_current_stream()
        convolutions.run(operation, tuple(i.view for i in inputs), y.view, space, stream)
        check(y.result(), operation.reference(x, w), 1e-5, f"{name} {found.engine}")


def test_nothing_to_sum_is_zero(convolutions):
    stream = cupy.cuda.get_current_stream()
    for precision, layout in zip(PRECISIONS, LAYOUTS * 4, strict=False):
        dtype, _, result_dtype, _ = PRECISIONS[precision]
        of = {"dtype": dtype, "layout": layout}
        unseen = Convolution((2, 8, 1, 11), W, ((0, 0), (1, 1)), (1, 1), (1, 1), **of)
        nothing = Convolution((2, 8, 0, 11), W, ((2, 1), (1, 1)), (1, 1), (1, 1), **of)
        dx = packed(unseen.x_shape, result_dtype, layout)
        w = packed(W, dtype, layout)
        no_dy = packed((2, 12, 0, 11), dtype, layout)
        operation = ConvolutionBackwardData(unseen, result_dtype)
        assert convolutions.executable(operation, None) is None
        convolutions.run(operation, (w.view, no_dy.view), dx.view, (0, 0), stream)
        assert not dx.result().any()
        dw = packed(W, result_dtype, layout)
        no_x = packed(nothing.x_shape, dtype, layout)
        dy = packed(nothing.output_shape, dtype, layout, np.ones(nothing.output_shape))
        operation = ConvolutionBackwardFilter(nothing, result_dtype)
        assert convolutions.executable(operation, None) is None
        convolutions.run(operation, (no_x.view, dy.view), dw.view, (0, 0), stream)
        assert not dw.result().any()


# Our own kernels --------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("precision", [name for name in PRECISIONS if name != "tf32"])
@pytest.mark.parametrize("direction", GRADIENTS)
@pytest.mark.parametrize("kind", [packed, pitched])
def test_direct_kernels(kind, direction, precision, layout):
    stream = cupy.cuda.get_current_stream()
    for name in CASES:
        operation = gradient_of(name, direction, precision, layout)
        arrays, expected = problem(operation)
        dtype = operation.forward.dtype
        inputs = tuple(kind(array.shape, dtype, layout, array) for array in arrays)
        views = tuple(tensor.view for tensor in inputs)
        results = []
        for _ in range(2):
            result = kind(operation.output_shape, operation.result_dtype, layout)
            run_direct(operation, Call(views, result.view, (0, 0), stream))
            check(result.result(), expected, PRECISIONS[precision][3], name)
            results.append(result.bits())
        assert np.array_equal(*results)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_before_the_first_window_are_zero(convolutions, layout):
    """Negative padding, which a piece of dx can have, is left to the direct kernel."""
    whole = case((2, 4, 10, 6), (8, 4, 1, 3), (0, 1), (3, 1))
    arrays, expected = problem(ConvolutionBackwardData(whole, "float32"))
    forward = Convolution(
        (2, 4, 6, 6), (8, 4, 1, 3), ((-2, 0), (1, 1)), (3, 1), (1, 1), layout=layout
    )
    w, dy = arrays
    assert forward.output_shape[2] == 2
    operation = ConvolutionBackwardData(forward, "float32")
    assert convolutions.executable(operation, None) is None
    result = run(convolutions, operation, (w, dy[:, :, 1:3]))
    check(result.result(), expected[:, :, 1:7], 3e-6)


@pytest.mark.parametrize("direction", GRADIENTS)
def test_direct_kernels_refuse_what_does_not_fit(direction):
    operation = gradient_of("whole", direction, "float32", "channels_first")
    arrays, _ = problem(operation)
    first, second = (packed(a.shape, "float32", "channels_first", a).view for a in arrays)
    result = packed(operation.output_shape, "float32", "channels_first").view
    half = packed(operation.output_shape, "float16", "channels_first").view
    with pytest.raises(ValueError, match="do not fit the operation"):
        run_direct(operation, Call((second, first), result))
    with pytest.raises(ValueError, match="the result is float16"):
        run_direct(operation, Call((first, second), half))
