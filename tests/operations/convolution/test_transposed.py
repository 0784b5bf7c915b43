"""Transposed convolution against PyTorch: its shapes, its reference, patches of it in a chain."""

from __future__ import annotations

import numpy as np
import pytest

from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.operations.convolution.transposed import TransposedConvolution
from tests.support.cut_calls import check_patches

torch = pytest.importorskip("torch")

#: x, w, and how
CASES = {
    "1d": ((2, 4, 5), (4, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    "2d": ((2, 4, 3, 4), (4, 6, 3, 2), {"stride": (2, 3), "padding": (1, 0)}),
    "grouped": ((2, 4, 3, 4), (4, 2, 2, 2), {"groups": 2, "dilation": (2, 1)}),
    "3d": ((1, 2, 2, 3, 2), (2, 3, 2, 2, 3), {"stride": 2, "output_padding": (1, 0, 1)}),
}


@pytest.mark.parametrize("name", CASES)
def test_reference(name):
    x_shape, w_shape, how = CASES[name]
    random = np.random.default_rng(1)
    x, w = random.standard_normal(x_shape), random.standard_normal(w_shape)
    function = getattr(torch.nn.functional, f"conv_transpose{len(x_shape) - 2}d")
    exact = function(torch.from_numpy(x), torch.from_numpy(w), **how).numpy()
    operation = TransposedConvolution.of(x_shape, w_shape, dtype="float64", **how)
    assert operation.output_shape == exact.shape
    assert np.allclose(operation.reference(x, w), exact, rtol=1e-13, atol=1e-13)
    chain = Chain((operation,), "float64")
    for row_axis in chain.row_axes:
        check_patches(chain.along(row_axis), {"x": x, "w": w}, "y", exact, random)


@pytest.mark.parametrize(
    ("w_shape", "how", "why"),
    [
        ((3, 4, 2, 2), {}, "w must have shape"),
        ((2, 4, 2), {}, "w as many axes"),
        ((2, 4, 2, 2), {"output_padding": 1}, "output_padding must be smaller"),
        ((2, 4, 2, 2), {"padding": 3}, "padding must leave at least 1"),
    ],
)
def test_arguments_that_do_not_fit(w_shape, how, why):
    with pytest.raises(ValueError, match=why):
        TransposedConvolution.of((1, 2, 3, 3), w_shape, **how)
