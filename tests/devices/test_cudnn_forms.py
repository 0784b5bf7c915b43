"""What cuDNN computes in place of an operation is the same; no GPU needed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ooc_cudnn.devices.cudnn_forms import forms
from ooc_cudnn.devices.cudnn_graphs import forward_of, result_dtype
from ooc_cudnn.operations.convolution import Convolution
from ooc_cudnn.operations.convolution_backward import (
    ConvolutionBackwardData,
    ConvolutionBackwardFilter,
)

PADDINGS = [((1, 0), 1), ((0, 2), (1, 1)), ((3, 1), 0), ((1, 1), 1), ((1, 0), (0, 1))]


def forward(padding, dtype="float64", **options):
    return Convolution.of(
        (2, 4, 6, 5), (6, 2, 3, 2), padding=padding, groups=2, dtype=dtype, **options
    )


@pytest.mark.parametrize("padding", PADDINGS, ids=str)
def test_rows_of_zeros_leave_the_filter_gradient_as_it_is(padding):
    operation = ConvolutionBackwardFilter(forward(padding), "float64")
    random = np.random.default_rng(0)
    x = random.standard_normal(operation.forward.x_shape)
    dy = random.standard_normal(operation.forward.output_shape)
    tried = list(forms(operation))
    assert tried[-1].operation == operation
    for form in tried:
        copied = x
        if form.copies[0] is not None:
            rows = (form.copies[0].before, form.copies[0].after)
            copied = np.pad(x, ((0, 0), (0, 0), rows, (0, 0)))
            before, after = forward_of(form.operation).padding[0]
            assert before == after
            assert form.copies[0].shape == copied.shape
        result = form.operation.reference(copied, dy)
        assert np.allclose(result, operation.reference(x, dy), rtol=1e-12)


def test_who_gets_which_form():
    names = {}
    for dtype, tf32 in itertools.product(("float16", "float32", "float64"), (True, False)):
        convolution = forward(((1, 0), 1), dtype, allow_tf32=tf32)
        half = "float32" if dtype == "float16" else dtype
        for operation in (
            ConvolutionBackwardData(convolution, half),
            ConvolutionBackwardFilter(convolution, half),
        ):
            names[operation.name, dtype, tf32] = [form.name for form in forms(operation)]
    data, filters = "convolution_backward_data", "convolution_backward_filter"
    assert names == {
        (data, "float16", True): ["", "widened"],
        (data, "float16", False): ["", "widened"],
        (data, "float32", True): [""],
        (data, "float32", False): [""],
        (data, "float64", True): [""],
        (data, "float64", False): [""],
        (filters, "float16", True): ["", "widened"],
        (filters, "float16", False): ["", "widened"],
        (filters, "float32", True): [""],
        (filters, "float32", False): ["zero rows", ""],
        (filters, "float64", True): ["zero rows", ""],
        (filters, "float64", False): ["zero rows", ""],
    }


def test_copies_lie_apart_and_are_counted():
    for kind in (ConvolutionBackwardData, ConvolutionBackwardFilter):
        operation = kind(forward(1, "bfloat16"), "float32")
        form = list(forms(operation))[-1]
        first, second = form.copies
        assert first.offset == 0
        assert second.offset >= 4 * np.prod(first.shape)
        assert second.offset % 256 == form.nbytes % 256 == 0
        assert form.nbytes >= second.offset + 4 * np.prod(second.shape)
        assert forward_of(form.operation).dtype == result_dtype(form.operation) == "float32"
