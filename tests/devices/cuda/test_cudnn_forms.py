"""What cuDNN computes in place of an operation is the same; no GPU needed."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from ooc_cudnn.devices.cuda.cudnn_forms import (
    UNFOLDED,
    forms,
    pad_channels,
    pad_symmetrically,
    unfold,
    widen_inputs,
)
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.fused_forward import FusedConvolution
from ooc_cudnn.operations.convolution.gradients import (
    AddedBackwardData,
    ConvolutionBackwardData,
    ConvolutionBackwardFilter,
    forward_of,
    input_shapes,
    result_dtype,
)

PADDINGS = [((1, 0), 1), ((0, 2), (1, 1)), ((3, 1), 0), ((1, 1), 1), ((1, 0), (0, 1)), (1, (2, 0))]
GRADIENTS = (ConvolutionBackwardData, ConvolutionBackwardFilter)


def forward(padding, dtype="float64", channels=4, **options):
    w = (6, channels // 2, 3, 2)
    return Convolution.of((2, channels, 6, 5), w, padding=padding, groups=2, dtype=dtype, **options)


@pytest.mark.parametrize("kind", [None, *GRADIENTS])
@pytest.mark.parametrize("padding", PADDINGS, ids=str)
def test_symmetric_rows_leave_the_result_as_it_is(padding, kind):
    convolution = forward(padding)
    operation = kind(convolution, "float64") if kind else convolution
    form = pad_symmetrically(operation)
    axis = 3 if padding == (1, (2, 0)) else 2
    before, after = forward_of(form.operation).padding[axis - 2]
    assert before == after
    random = np.random.default_rng(0)
    inputs = [random.standard_normal(shape) for shape in input_shapes(operation)]
    given = list(inputs)
    for place, copy in enumerate(form.inputs):
        if copy is not None:
            assert copy.row_axis == axis
            rows = [(0, 0)] * 4
            rows[axis] = (copy.before, copy.after)
            given[place] = np.pad(inputs[place], rows)
            assert copy.shape == given[place].shape
    result = form.operation.reference(*given)
    if form.result is not None:
        assert form.result.shape == result.shape
        rows = range(form.result.before, result.shape[axis] - form.result.after)
        result = result.take(rows, axis)
    assert np.allclose(result, operation.reference(*inputs), rtol=1e-12)


def test_who_gets_which_form():
    def names(dtype, *, tf32=True, **options):
        convolution = forward(((1, 0), 1), dtype, channels=32, allow_tf32=tf32, **options)
        result = "float32" if dtype == "float16" else dtype
        operations = (
            replace(convolution, y_dtype=result),
            *(k(convolution, result) for k in GRADIENTS),
        )
        return [[form.name for form in forms(operation)] for operation in operations]

    rows = "symmetric rows"
    assert names("float16") == [["", "widened"], ["", "widened"], ["widened", ""]]
    assert names("float32") == [[""], [""], [""]]
    assert names("float32", tf32=False) == [[""], [""], [rows, ""]]
    assert names("float32", tf32=False, stride=2) == [[""], [rows, ""], [rows, ""]]
    assert names("float64") == [[rows, ""], [rows, ""], [rows, ""]]


@pytest.mark.parametrize("kind", [None, *GRADIENTS])
@pytest.mark.parametrize(("channels", "results"), [(3, 16), (8, 2), (1, 5)])
@pytest.mark.parametrize("layout", ["channels_last", "channels_first"])
def test_channels_of_zeros_leave_the_result_as_it_is(layout, kind, channels, results):
    convolution = Convolution.of(
        (2, channels, 6, 5), (results, channels, 3, 2), padding=1, dtype="bfloat16"
    )
    convolution = replace(convolution, layout=layout)
    operation = kind(convolution, "float32") if kind else convolution
    form = pad_channels(operation)
    assert forward_of(form.operation).layout == "channels_last"
    copies = [copy for copy in (*form.inputs, form.result) if copy]
    assert all(copy.layout == "channels_last" for copy in copies)
    assert layout == "channels_last" or len(copies) == 3, "in another order, all are copied"
    random = np.random.default_rng(0)
    inputs = [random.standard_normal(shape) for shape in input_shapes(operation)]
    given = list(inputs)
    for place, copy in enumerate(form.inputs):
        if copy is not None:
            is_wider = copy.shape != inputs[place].shape
            assert (copy.before, copy.after, copy.is_wider) == (0, 0, is_wider)
            given[place] = np.zeros(copy.shape)
            given[place][tuple(map(slice, inputs[place].shape))] = inputs[place]
    result = form.operation.reference(*given)
    if form.result is not None:
        assert form.result.shape == result.shape
    result = result[tuple(map(slice, operation.output_shape))]
    assert np.allclose(result, operation.reference(*inputs), rtol=1e-12)
    assert all(a.offset + a.nbytes == b.offset for a, b in itertools.pairwise(copies))


def test_who_gets_channels_of_zeros():
    """Half types alone, of which tensor cores take no such numbers."""

    def names(channels=3, results=16, **how):
        layout = how.pop("layout", "channels_last")
        how = {"dtype": "float16", **how}
        forward = Convolution.of((2, channels, 6, 5), (results, channels, 3, 2), **how)
        forward = replace(forward, layout=layout)
        return [[form.name for form in forms(each)]
                for each in (forward, ConvolutionBackwardFilter(forward, "float32"))]  # fmt: skip

    assert names(8, 2) == [["", "padded"], ["padded", "widened"]]
    assert names() == [["unfolded", "", "padded"], ["unfolded", "padded", "widened"]]
    assert names(layout="channels_first") == [["", "padded"], ["widened", ""]]
    assert names(8) == names(8, layout="channels_first") == [[""], ["widened", ""]]
    assert names(dtype="float32") == [[""], [""]]
    fused = FusedConvolution(replace(Convolution.of((2, 8, 6, 5), (2, 8, 3, 2), dtype="float16"),
                                     layout="channels_last"))  # fmt: skip
    assert [form.name for form in forms(fused)] == [""], "its biases are as many as before"
    forward = Convolution.of((2, 8, 6, 5), (2, 8, 3, 2), dtype="float16")
    added = AddedBackwardData(forward, "float16")
    assert [form.name for form in forms(added)] == [""], "what is added lies in the other order"


FEW = [
    # x, w, padding, stride
    ((2, 3, 6, 11), (8, 3, 5, 7), ((2, 2), (3, 1)), (2, 2)),
    ((1, 1, 3, 4, 9), (16, 1, 2, 3, 3), ((0, 1), (1, 0), (1, 1)), (1, 2, 1)),
    ((3, 2, 12), (8, 2, 4), ((0, 0),), (4,)),
]


@pytest.mark.parametrize("kind", [None, ConvolutionBackwardFilter])
@pytest.mark.parametrize("case", FEW, ids=str)
def test_columns_as_channels_leave_the_result_as_it_is(case, kind):
    """The copies are made by NumPy as the kernels are to make them (tests/kernels)."""
    x_shape, w_shape, padding, stride = case
    convolution = Convolution.of(x_shape, w_shape, padding=padding, stride=stride, dtype="bfloat16")
    convolution = replace(convolution, layout="channels_last")
    operation = kind(convolution, "float32") if kind else convolution
    form = unfold(operation)
    random = np.random.default_rng(0)
    x, other = (random.standard_normal(shape) for shape in input_shapes(operation))
    (before, after), columns = padding[-1], w_shape[-1]
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(before, after)])
    seen = np.lib.stride_tricks.sliding_window_view(padded, columns, -1)[..., :: stride[-1], :]
    seen = np.moveaxis(seen, -1, 1).reshape(x_shape[0], -1, *seen.shape[2:-1])
    images, second = form.inputs
    given = np.zeros(images.shape)
    given[:, : seen.shape[1]] = seen
    # a filter's elements go to where its strided view says
    filters = form.result if kind else second
    place = np.arange(np.prod(filters.shape)).reshape(filters.shape[0], *filters.shape[2:], -1)
    flat = np.zeros(place.size)
    view = filters._columns(DeviceView(256, "bfloat16", w_shape, w_shape), 0)
    steps = np.tensordot(np.indices(w_shape), view.strides, axes=(0, 0))
    if kind:
        assert second is None
        result = form.operation.reference(given, other)
        result = np.moveaxis(result, 1, -1).ravel()[steps]
    else:
        flat[steps] = other
        filled = np.moveaxis(flat[place], -1, 1)
        result = form.operation.reference(given, filled)
    assert np.allclose(result, operation.reference(x, other), rtol=1e-12)
    assert form.nbytes == images.nbytes + filters.nbytes
    assert filters.offset == images.nbytes


def test_who_gets_columns_as_channels():
    """Half types, channels-last, whose images have few channels; data gradients have no image."""

    def has(w=(16, 3, 3, 3), **how):
        layout = how.pop("layout", "channels_last")
        groups = how.get("groups", 1)
        how = {"dtype": "float16", **how}
        forward = Convolution.of((2, w[1] * groups, 6, 7), w, **how)
        forward = replace(forward, layout=layout)
        kinds = [UNFOLDED in [form.name for form in forms(each)] for each in (
            forward, ConvolutionBackwardFilter(forward, "float32"), FusedConvolution(forward),
        )]  # fmt: skip
        assert not unfold(ConvolutionBackwardData(forward, "float16"))
        assert len({*kinds}) == 1
        return kinds[0]

    assert has()
    assert has(dilation=(2, 1))
    assert not has(w=(16, 8, 3, 3))
    assert not has(w=(12, 3, 3, 3))
    assert not has(w=(16, 3, 3, 1))
    assert not has(dilation=2)
    assert not has(groups=2)
    assert not has(dtype="float32")
    assert not has(layout="channels_first")


def test_copies_lie_apart_and_are_counted():
    for kind in GRADIENTS:
        operation = kind(forward(1, "bfloat16"), "float32")
        form = widen_inputs(operation)
        first, second = form.inputs
        assert first.offset == 0
        assert second.offset >= 4 * np.prod(first.shape)
        assert second.offset % 256 == form.nbytes % 256 == 0
        assert form.nbytes >= second.offset + 4 * np.prod(second.shape)
        assert forward_of(form.operation).dtype == result_dtype(form.operation) == "float32"
