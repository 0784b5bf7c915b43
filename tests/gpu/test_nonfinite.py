"""Infinities and NaN on the card: cuts change nothing, and padding is zeros that are multiplied.

Of what our own kernels compute. Where cuDNN computes, its engines decide: some skip the zeros of
padding, some multiply more of them, some spread NaN; docs/limitations.md says so.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.devices.kernels.convolution_direct import run as run_direct
from ooc_cudnn.devices.kernels.launch import Call
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.gradients import (
    ConvolutionBackwardData,
    ConvolutionBackwardFilter,
)
from tests.support.device_operand import Operand
from tests.support.forced import legal_splits
from tests.support.nonfinite import check_alike, outcome, sprinkled, sprinkled_split
from tests.support.splits import GEOMETRIES, LAYOUTS, MAKERS, RINGS, make, some

cupy = pytest.importorskip("cupy")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
SPLITS = 24
SEEDS = 3
#: Calls in which cuDNN computes nothing: all that they launch are kernels of this library.
OWN = [
    name
    for name in MAKERS
    if not name.startswith(
        ("gradient of data", "gradient of filter", "gradients", "fused", "chain")
    )
]


@pytest.fixture(autouse=True)
def true_float32():
    with ooc_cudnn.settings(allow_tf32=False):
        yield


def check_cuts(name):
    for seed in range(SEEDS):
        made = sprinkled_split(make(name), seed, device="cuda")
        expected = outcome(made, made.splittable.extents)
        ways = itertools.cycle(itertools.product(RINGS, LAYOUTS))
        for split in some(list(legal_splits(made.splittable)), SPLITS):
            (depth, kept), layout = next(ways)
            found = outcome(made, split, depth=depth, whole=kept, layout=layout)
            check_alike(found, expected, f"{name} {seed} {split}")


@pytest.mark.parametrize("name", OWN)
def test_cuts_change_nothing(name):
    check_cuts(name)


@pytest.mark.parametrize("name", OWN)
def test_the_card_and_the_host_agree(name):
    for seed in range(SEEDS):
        card, host = (sprinkled_split(make(name), seed, device=on) for on in ("cuda", "host"))
        expected = outcome(host, host.splittable.extents)
        check_alike(outcome(card, card.splittable.extents), expected, f"{name} {seed}")


# The direct kernels -------------------------------------------------------------------------------


def drawn(random, shape):
    data = random.standard_normal(shape).astype("f4")
    sprinkled(random, data)
    return Operand(shape, "float32", data=data)


def check_like_reference(result, reference, where):
    check_alike({"it": ("float32", result.astype("f8"))}, {"it": ("float32", reference)}, where)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_direct_kernels_multiply_padding(name):
    x_shape, w_shape, geometry = GEOMETRIES[name]
    forward = Convolution.of(x_shape, w_shape, **geometry)
    for seed in range(8):
        random = np.random.default_rng(seed)
        x, w, dy = (drawn(random, shape) for shape in (x_shape, w_shape, forward.output_shape))
        y = Operand(forward.output_shape, "float32")
        run_direct(forward, Call((x.view, w.view), y.view))
        check_like_reference(y.result(), forward.reference(x.wide, w.wide), f"{name} {seed} y")
        for gradient, inputs, shape in (
            (ConvolutionBackwardData(forward, "float32"), (w, dy), x_shape),
            (ConvolutionBackwardFilter(forward, "float32"), (x, dy), w_shape),
        ):
            result = Operand(shape, "float32")
            views = tuple(operand.view for operand in inputs)
            run_direct(gradient, Call(views, result.view))
            reference = gradient.reference(*(operand.wide for operand in inputs))
            check_like_reference(result.result(), reference, f"{name} {seed} {gradient.name}")


@pytest.mark.parametrize("x_shape", [(2, 3, 0, 4), (2, 3, 0)], ids=str)
def test_a_piece_that_lies_in_padding_alone(x_shape):
    """Zeros, by what is infinite: NaN, in its channel alone."""
    axes = len(x_shape) - 2
    padding = ((4, 0),) + ((1, 1),) * (axes - 1)
    w_shape = (4, 3, *(3,) * axes)
    forward = Convolution(x_shape, w_shape, padding, (1,) * axes, (1,) * axes)
    convolutions = ooc_cudnn.devices.get_device("cuda").convolutions
    stream = cupy.cuda.get_current_stream()
    data = np.ones(w_shape, "f4")
    data[2].flat[0] = np.inf
    x, w = Operand(x_shape, "float32"), Operand(w_shape, "float32", data=data)
    y = Operand(forward.output_shape, "float32")
    convolutions.run(forward, (x.view, w.view), y.view, (0, 0), stream)
    found = y.result()
    assert np.isnan(found[:, 2]).all()
    assert not found[:, [0, 1, 3]].any()
    gradient = np.ones(forward.output_shape, "f4")
    gradient[1, 1].flat[0] = -np.inf
    dy, dw = Operand(gradient.shape, "float32", data=gradient), Operand(w_shape, "float32")
    operation = ConvolutionBackwardFilter(forward, "float32")
    convolutions.run(operation, (x.view, dy.view), dw.view, (0, 0), stream)
    found = dw.result()
    assert np.isnan(found[1]).all()
    assert not found[[0, 2, 3]].any()
