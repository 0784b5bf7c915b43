"""Images of one site together: the same numbers as one by one, in every direction and layout."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ooc_cudnn.devices.host import convolution_backward, linear
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.gradients import (
    ConvolutionBackwardData,
    ConvolutionBackwardFilter,
)
from tests.support.host_operations import LAYOUTS, laid_out, run

DIRECTIONS = (Convolution, ConvolutionBackwardData, ConvolutionBackwardFilter)


@pytest.mark.parametrize("spatial", [(1,), (1, 1), (1, 1, 1)], ids=str)
@pytest.mark.parametrize("groups", [1, 2])
def test_images_of_one_site(spatial, groups):
    random = np.random.default_rng(1)
    n, c, f = 7, 6, 4
    x, dy = random.standard_normal((n, c, *spatial)), random.standard_normal((n, f, *spatial))
    w = random.standard_normal((f, c // groups, *spatial))
    apart = Convolution.of(x.shape, w.shape, groups=groups, dtype="float64", deterministic=True)
    together = replace(apart, deterministic=False)
    assert linear.join_sites(apart) is apart
    assert linear.join_sites(together).x_shape == (1, c, n)
    for layout in LAYOUTS:
        laid = {name: laid_out(a, layout) for name, a in (("x", x), ("w", w), ("dy", dy))}
        for takes, kind in zip((("x", "w"), ("w", "dy"), ("x", "dy")), DIRECTIONS, strict=True):
            inputs = [laid[name] for name in takes]
            results = []
            for forward in (apart, together):
                operation = forward if kind is Convolution else kind(forward, "float64")
                results.append(run(convolution_backward, operation, inputs, "float64", layout))
            np.testing.assert_allclose(*results, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    "others",
    [{"padding": 1}, {"x": (7, 4, 2, 1)}, {"x": (1, 4, 1, 1)}, {"stride": 2, "padding": 1}],
)
def test_what_is_not_joined(others):
    x = others.pop("x", (7, 4, 1, 1))
    forward = Convolution.of(x, (5, 4, 1, 1), **others)
    assert linear.join_sites(forward) is forward
