"""Infinities and NaN lie where they lie in one piece, however a call is cut, as in PyTorch.

Padding is zeros, and they are multiplied: by an infinite weight, or an infinite dy of the filter's
gradient, that is NaN. The gradient of the data sums the products that there are, and no others. So
do PyTorch's own convolutions, which it has for float64; those of oneDNN skip some of the padding.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import ooc_cudnn
from tests.support import calls, reference
from tests.support.calls import ConvolutionCase
from tests.support.forced import legal_splits
from tests.support.nonfinite import check_alike, outcome, sprinkled, sprinkled_split
from tests.support.sampling import number
from tests.support.splits import GEOMETRIES, LAYOUTS, MAKERS, POOLINGS, RINGS, make, some

torch = pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
#: Splits of each call and seed that are tried; of gradients, most of which have padding, more.
SPLITS, MORE_SPLITS = 12, 30
SEEDS = number(1, of=2)


@pytest.mark.parametrize("name", MAKERS)
def test_cuts_change_nothing(name):
    for seed in range(SEEDS):
        made = sprinkled_split(make(name), seed)
        expected = outcome(made, made.splittable.extents, overlap=False)
        ways = itertools.cycle(itertools.product(RINGS, LAYOUTS))
        splits = list(legal_splits(made.splittable))
        for split in some(splits, MORE_SPLITS if "gradient" in name else SPLITS):
            (depth, kept), layout = next(ways)
            options = {"depth": depth, "whole": kept, "layout": layout, "overlap": False}
            check_alike(outcome(made, split, **options), expected, f"{name} {seed} {split}")


def drawn(random, shape, dtype="float32"):
    array = random.standard_normal(shape).astype(dtype)
    sprinkled(random, array)
    return array


def torch_geometry(geometry, axes):
    """Padding on both sides of x apart, and the rest as PyTorch takes it."""
    pads = reference.pairs(geometry.get("padding", 0), axes)
    flat = [side for pair in reversed(pads) for side in pair]
    rest = {name: value for name, value in geometry.items() if name != "padding"}
    return flat, rest


@pytest.mark.parametrize("name", GEOMETRIES)
def test_convolutions_and_their_gradients_as_in_pytorch(name):
    """The gradients by automatic differentiation, through zeros that are concatenated to x."""
    x_shape, w_shape, geometry = GEOMETRIES[name]
    axes = len(x_shape) - 2
    flat, rest = torch_geometry(geometry, axes)
    convolve = getattr(torch.nn.functional, f"conv{axes}d")
    for seed in range(12):
        random = np.random.default_rng(seed)
        x, w = drawn(random, x_shape), drawn(random, w_shape)
        leaves = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in (x, w)]
        y = convolve(torch.nn.functional.pad(leaves[0], flat), leaves[1], **rest)
        dy = drawn(random, tuple(y.shape))
        y.backward(torch.tensor(dy, dtype=torch.float64))
        found = {
            "y": ooc_cudnn.convolution_forward(x, w, **geometry),
            "dx": ooc_cudnn.convolution_backward_data(w, dy, input_shape=x_shape, **geometry),
            "dw": ooc_cudnn.convolution_backward_filter(x, dy, filter_shape=w_shape, **geometry),
            "db": ooc_cudnn.convolution_backward_bias(dy),
        }
        exact = {
            "y": y.detach().numpy(),
            "dx": leaves[0].grad.numpy(),
            "dw": leaves[1].grad.numpy(),
            "db": dy.astype("f8").sum(axis=(0, *range(2, dy.ndim))),
        }
        check_alike(typed(found), typed(exact, "float32"), f"{name} {seed}")


def typed(arrays, dtype=""):
    return {name: (dtype or a.dtype.name, a.astype("f8")) for name, a in arrays.items()}


def test_the_weights_of_the_issue():
    """One infinite weight and a padding of 3: pieces that lie in padding alone are NaN, too."""
    x, w = np.ones((1, 1, 2, 2), "f4"), np.ones((1, 1, 1, 1), "f4")
    w[...] = np.inf
    case = ConvolutionCase("issue", x.shape, w.shape, {"padding": 3})
    expected = torch.nn.functional.conv2d(
        torch.tensor(x).double(), torch.tensor(w).double(), padding=3
    ).numpy()
    assert np.isnan(expected).sum() == 60
    with ooc_cudnn.settings(memory_limit=2048):
        y = ooc_cudnn.convolution_forward(x, w, padding=3)
    np.testing.assert_array_equal(y, expected)
    made = sprinkled_split(calls.gradient_call(case, "filter"), 0)
    made.forced.arrays["dy"][...] = 1
    made.forced.arrays["x"][...] = 1
    made.forced.arrays["dy"][0, 0, 0, 0] = np.inf  # where the window sees padding
    for split in legal_splits(made.splittable):
        _, dw = outcome(made, split)["dw"]
        assert np.isnan(dw).all(), str(split)


@pytest.mark.parametrize("name", POOLINGS)
def test_poolings_as_in_pytorch(name):
    x_shape, geometry = POOLINGS[name]
    axes = len(x_shape) - 2
    window = geometry["window"]
    stride = geometry.get("stride", window)
    flat, _ = torch_geometry(geometry, axes)
    for seed, is_max in itertools.product(range(6), (True, False)):
        x = drawn(np.random.default_rng(seed), x_shape)
        padded = torch.nn.functional.pad(torch.tensor(x), flat, value=-np.inf if is_max else 0.0)
        kind = "max" if is_max else "avg"
        pool = getattr(torch.nn.functional, f"{kind}_pool{axes}d")
        mode = "max" if is_max else "average_include_padding"
        y = ooc_cudnn.pooling_forward(x, mode=mode, **geometry)
        exact = {"y": pool(padded, window, stride).numpy()}
        check_alike(typed({"y": y}), typed(exact), f"{name} {seed} {mode}")


def test_softmax_as_in_pytorch():
    for seed, algorithm, mode in itertools.product(
        range(20), ("accurate", "log"), ("channel", "instance")
    ):
        x = drawn(np.random.default_rng(seed), (2, 3, 2, 2))
        if seed % 4 == 0:
            x[0] = -np.inf
        wide = torch.tensor(x) if mode == "channel" else torch.tensor(x).flatten(1)
        softmax = torch.log_softmax if algorithm == "log" else torch.softmax
        exact = softmax(wide, 1).reshape(x.shape).numpy()
        y = ooc_cudnn.softmax_forward(x, algorithm=algorithm, mode=mode)
        check_alike(typed({"y": y}), typed({"y": exact}), f"{seed} {algorithm} {mode}")


def test_batch_normalization_as_in_pytorch():
    for seed in range(20):
        random = np.random.default_rng(seed)
        x = drawn(random, (3, 2, 4, 3))
        scale, bias = random.standard_normal((2, 2)).astype("f4")
        mean, variance = np.zeros(2, "f4"), np.ones(2, "f4")
        running = [torch.tensor(mean), torch.tensor(variance)]
        exact = torch.nn.functional.batch_norm(
            torch.tensor(x), *running, torch.tensor(scale), torch.tensor(bias), training=True
        )
        y, saved, _ = ooc_cudnn.batch_normalization_forward_training(
            x, scale, bias, running_mean=mean, running_variance=variance,
            exponential_average_factor=0.1,
        )  # fmt: skip
        found = {"y": y, "mean": mean, "variance": variance, "saved": saved}
        expected = {
            "y": exact.numpy(),
            "mean": running[0].numpy(),
            "variance": running[1].numpy(),
            "saved": x.astype("f8").mean(axis=(0, 2, 3)),
        }
        check_alike(typed(found), typed(expected, "float32"), f"{seed}")


def test_two_infinities_of_one_sign_have_an_infinite_mean():
    x = np.zeros((2, 1, 2, 1), "f4")
    x[:, 0, 0] = -np.inf
    call = make("training: float32")
    assert call.function == "batch_normalization_forward_training"
    vectors = np.ones(1, "f4"), np.zeros(1, "f4")
    for limit in (2048, 2**20):
        with ooc_cudnn.settings(memory_limit=limit):
            _, mean, _ = ooc_cudnn.batch_normalization_forward_training(x, *vectors)
        assert mean.item() == -np.inf
