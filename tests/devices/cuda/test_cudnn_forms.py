"""What cuDNN computes in place of an operation is the same; no GPU needed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ooc_cudnn.devices.cuda.cudnn_forms import forms, pad_symmetrically, widen_inputs
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.gradients import (
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
