"""Losses under every split: PyTorch's values and gradients, and the same bits whatever the cut."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ooc_cudnn.operations.losses.calls import (
    CrossEntropyCall,
    CrossEntropyGradientCall,
    ElementLossCall,
    ElementLossGradientCall,
    LabelWeightsCall,
    TotalCall,
)
from ooc_cudnn.operations.losses.class_sums import (
    ClassSumsCall,
    ClassSumsGradientCall,
    RowTotalsCall,
)
from ooc_cudnn.operations.losses.launches import SIGMOID, SQUARED
from ooc_cudnn.tensor import ACCUMULATOR, numpy_dtype
from tests.support.forced import Forced, legal_splits
from tests.support.function_cases import channels_last
from tests.support.splits import RINGS, some

torch = pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")

SHAPES = [(4, 5), (1, 7), (3, 4, 5), (2, 3, 5, 4), (3, 2, 1, 3), (2, 3, 3, 2, 4)]
#: Of values, and of gradients as a share of the largest, by type; float64's are sums' roundings.
ERROR = {"float64": 1e-14, "float32": 2e-7, "float16": 1e-3, "bfloat16": 8e-3}


def run(call, arrays, split=None, **options):
    """Run a call on arrays, its result NaN before unless it is given; return the result."""
    (result,) = call.results
    operand = call.operands[result]
    old = arrays.get(result, np.full(operand.shape, np.nan, numpy_dtype(operand.dtype)))
    made = old.copy()
    given = {name: arrays[name] for name in call.operands if name != result}
    Forced(call, {**given, result: made}).run(split, **options)
    return made


def every_split(call, arrays, count=24):
    """Its result under many splits, all equal to the last bit."""
    found = None
    for at, split in enumerate(some(list(legal_splits(call)), count)):
        depth, whole = RINGS[at % len(RINGS)]
        made = run(call, arrays, split, depth=depth, whole=whole, overlap=False)
        found = made if found is None else found
        assert made.tobytes() == found.tobytes(), f"{split} differs"
    return found


def assert_close(actual, expected, dtype):
    expected = np.asarray(expected)
    most = ERROR[dtype] * max(float(np.abs(expected).max(initial=0)), 1e-3)
    assert np.abs(actual.astype("f8") - expected).max() <= most


def logits(random, shape, dtype, labels_dtype="int64", ignored=-100):
    x = (3 * random.standard_normal(shape)).astype(numpy_dtype(dtype))
    labels = random.integers(0, shape[1], (shape[0], *shape[2:]))
    labels[random.random(labels.shape) < 0.2] = ignored
    labels.flat[0] = 1
    weights = random.uniform(0.5, 2, shape[1]).astype(ACCUMULATOR[dtype])
    return {"x": x, "labels": labels.astype(labels_dtype), "weights": weights}


def loss_and_gradient(arrays, *, weighted, reduction, scale=1.0, **options):
    """PyTorch's, in float64."""
    x = torch.tensor(arrays["x"].astype("f8"), requires_grad=True)
    weights = torch.tensor(arrays["weights"].astype("f8")) if weighted else None
    loss = torch.nn.functional.cross_entropy(
        x, torch.tensor(arrays["labels"].astype("i8")), weights, reduction=reduction, **options
    )
    (scale * loss).backward()
    return loss.item(), x.grad.numpy()


def phases(arrays, dtype, *, weighted, reduction, smoothing, ignored, scale=1.0, run=run):
    """Loss and gradient as a network has them: each phase by `run`."""
    shape, labels_dtype = arrays["x"].shape, arrays["labels"].dtype.name
    common = (shape, dtype, labels_dtype, weighted, ignored)
    divided = reduction == "mean"
    found = dict(arrays)
    losses = CrossEntropyCall(*common, smoothing)
    found["losses"] = run(losses, found)
    rows = found["losses"].shape
    if divided:
        counts = run(LabelWeightsCall(*common), found)
        found["divisor"] = run(TotalCall(rows), {"losses": counts})
    loss = run(TotalCall(rows, divided=divided), found)
    gradient = CrossEntropyGradientCall(*common, smoothing, scale / 2, divided)
    return loss[0], run(gradient, found | {"dy": np.array([2.0])})


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_cross_entropy_is_pytorchs_under_every_split(shape):
    random = np.random.default_rng(5)
    ways = itertools.product((False, True), ("mean", "sum"), (0.0, 0.1))
    for at, (weighted, reduction, smoothing) in enumerate(ways):
        labels_dtype, ignored = [("int64", -100), ("int32", -1), ("uint8", 255)][at % 3]
        arrays = logits(random, shape, "float64", labels_dtype, ignored)
        expected = loss_and_gradient(
            arrays, weighted=weighted, reduction=reduction, label_smoothing=smoothing,
            ignore_index=ignored, scale=0.3,
        )  # fmt: skip
        actual = phases(
            arrays, "float64", weighted=weighted, reduction=reduction, smoothing=smoothing,
            ignored=ignored, scale=0.3, run=every_split if at % 2 else run,
        )  # fmt: skip
        for one, other in zip(actual, expected, strict=True):
            assert_close(one, other, "float64")


@pytest.mark.parametrize("dtype", ERROR)
def test_cross_entropy_in_every_type(dtype):
    random = np.random.default_rng(6)
    for shape in ((5, 1000), (2, 3, 5, 4)):
        arrays = logits(random, shape, dtype)
        way = {"weighted": True, "reduction": "mean", "scale": 2.0}
        expected = loss_and_gradient(arrays, label_smoothing=0.1, **way)
        loss, dx = phases(arrays, dtype, smoothing=0.1, ignored=-100, **way)
        # logits are widened first; of their losses a card has 24 bits, and sums those in float64
        assert_close(loss, expected[0], "float32")
        assert_close(dx, expected[1], dtype)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_gradients_add_up_in_place(dtype):
    random = np.random.default_rng(7)
    arrays = logits(random, (2, 3, 5, 4), dtype)
    arrays["dx"] = random.standard_normal((2, 3, 5, 4)).astype(dtype)
    arrays["dy"] = np.ones(1)
    call = CrossEntropyGradientCall((2, 3, 5, 4), dtype, alpha=2.0, beta=0.5)
    _, expected = loss_and_gradient(arrays, weighted=False, reduction="sum")
    assert_close(every_split(call, arrays), 2 * expected + 0.5 * arrays["dx"].astype("f8"), dtype)
    arrays["target"] = random.standard_normal((2, 3, 5, 4)).astype(dtype)
    call = ElementLossGradientCall((2, 3, 5, 4), dtype, SQUARED, scale=0.25, beta=1.0)
    wide = {name: arrays[name].astype("f8") for name in ("x", "target", "dx")}
    expected = 0.5 * (wide["x"] - wide["target"]) + wide["dx"]
    assert_close(every_split(call, arrays), expected, dtype)


def test_losses_of_several_heads_add_up():
    losses = np.arange(6.0).reshape(3, 2)
    first = run(TotalCall((3, 2)), {"losses": losses})
    call = TotalCall((3, 2), scale=0.1, divided=True, alpha=0.3, beta=1.0)
    both = run(call, {"losses": losses, "divisor": np.array([4.0]), "loss": first})
    assert both[0] == pytest.approx(15 + 0.3 * 0.1 * 15 / 4, rel=1e-15)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_losses_of_elements_are_pytorchs_under_every_split(shape):
    random = np.random.default_rng(8)
    x, target = random.standard_normal(shape), random.uniform(0, 1, shape)
    arrays = {"x": x, "target": target, "dy": np.array([0.5])}
    of_channels = (1, shape[1], *[1] * (len(shape) - 2))
    of_images = (shape[0], *[1] * (len(shape) - 1))
    for mode, weights in (
        (SQUARED, {}),
        (SIGMOID, {}),
        (SIGMOID, {"weight": of_images, "positive": of_channels}),
        (SIGMOID, {"weight": shape}),
        (SIGMOID, {"positive": shape}),
    ):
        arrays |= {name: random.uniform(0.5, 2, each) for name, each in weights.items()}
        shapes = (weights.get("weight"), weights.get("positive"))
        t = {name: torch.tensor(array) for name, array in arrays.items()}
        t["x"].requires_grad_()
        if mode == SQUARED:
            loss = torch.nn.functional.mse_loss(t["x"], t["target"])
        else:
            given = {"weight": "weight", "positive": "pos_weight"}
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                t["x"], t["target"], **{given[name]: t[name] for name in weights}
            )
        loss.backward()
        losses = every_split(ElementLossCall(shape, "float64", mode, *shapes), arrays)
        total = run(TotalCall(losses.shape, 1 / x.size), {"losses": losses})
        assert_close(total[0], loss.item(), "float64")
        gradient = ElementLossGradientCall(shape, "float64", mode, *shapes, 2 / x.size)
        assert_close(every_split(gradient, arrays), t["x"].grad.numpy(), "float64")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_losses_of_elements_in_every_type(dtype):
    random = np.random.default_rng(9)
    x, target = (random.standard_normal((2, 3, 5, 4)).astype(numpy_dtype(dtype)) for _ in "ab")
    arrays = {"x": x, "target": target, "dy": np.ones(1)}
    wide = {name: array.astype("f8") for name, array in arrays.items()}
    losses = run(ElementLossCall(x.shape, dtype, SQUARED), arrays)
    assert_close(losses, ((wide["x"] - wide["target"]) ** 2).sum(axis=(1, 3)), "float32")
    dx = run(ElementLossGradientCall(x.shape, dtype, SQUARED, scale=0.5), arrays)
    assert_close(dx, wide["x"] - wide["target"], dtype)


def test_any_order_of_memory():
    random = np.random.default_rng(10)
    shape = (2, 3, 5, 4)
    arrays = logits(random, shape, "float64") | {"target": random.standard_normal(shape)}
    arrays |= {"dx": np.full(shape, np.nan), "dy": np.ones(1)}
    for call in (
        CrossEntropyGradientCall(shape, "float64", smoothing=0.1),
        ElementLossGradientCall(shape, "float64", SIGMOID),
    ):
        expected = run(call, arrays)
        for last in ("x", "target", "dx"):
            laid = {**arrays, last: channels_last(arrays[last])}
            assert_close(run(call, laid, some(list(legal_splits(call)), 3)[1]), expected, "float64")
    turned = {**arrays, "labels": np.asfortranarray(arrays["labels"])}
    call = CrossEntropyCall(shape, "float64")
    assert run(call, turned).tobytes() == run(call, arrays).tobytes()


def test_labels_that_are_no_class_and_what_is_not_finite():
    x = np.zeros((4, 3))
    x[1, 0], x[2] = np.inf, -np.inf
    arrays = {"x": x, "labels": np.array([3, 1, 0, 2]), "dy": np.ones(1)}
    arrays["weights"] = np.ones(3)
    losses = run(CrossEntropyCall((4, 3), "float64"), arrays)
    assert np.isnan(losses[:3]).all()
    assert losses[3, 0] == pytest.approx(np.log(3), rel=1e-15)
    assert np.isnan(run(LabelWeightsCall((4, 3), "float64"), arrays)[0, 0])
    dx = run(CrossEntropyGradientCall((4, 3), "float64"), arrays)
    assert np.isnan(dx[:3]).any(axis=1).all()
    # Nothing but ignored labels: PyTorch divides 0 by 0, and its gradient is 0.
    arrays["labels"] = np.full(4, -100)
    loss, dx = phases(
        arrays, "float64", weighted=False, reduction="mean", smoothing=0.0, ignored=-100
    )
    assert np.isnan(loss)
    assert (dx == 0).all()


def test_large_logits_do_not_overflow():
    x = np.array([[1e4, 0.0, -1e4], [-1e4, -1e4, -1e4 + 1]])
    arrays = {"x": x, "labels": np.array([1, 2]), "weights": np.ones(3)}
    losses = run(CrossEntropyCall((2, 3), "float64"), arrays)
    assert losses[:, 0] == pytest.approx([1e4, np.log(1 + 2 / np.e)], rel=1e-15)
    target = {"x": np.array([[800.0, -800.0]]), "target": np.array([[1.0, 0.0]])}
    target["dy"] = np.ones(1)
    assert (run(ElementLossCall((1, 2), "float64", SIGMOID), target) == 0).all()
    assert (run(ElementLossGradientCall((1, 2), "float64", SIGMOID), target) == 0).all()


def test_patches_are_verified():
    """What `verify` expects of a patch is what is computed there."""
    random = np.random.default_rng(11)
    arrays = logits(random, (3, 4, 5, 3), "float32") | {"divisor": np.array([7.0])}
    arrays["target"] = random.standard_normal((3, 4, 5, 3)).astype("f4")
    arrays["dy"] = np.array([-0.5])
    for call in (
        LabelWeightsCall((3, 4, 5, 3), "float32", weighted=True),
        CrossEntropyCall((3, 4, 5, 3), "float32", weighted=True, smoothing=0.2),
        CrossEntropyGradientCall((3, 4, 5, 3), "float32", scale=3.0, divided=True),
        ElementLossCall((3, 4, 5, 3), "float32", SIGMOID),
        ElementLossGradientCall((3, 4, 5, 3), "float32", SQUARED, scale=0.1),
    ):
        made, (result,) = run(call, arrays), call.results
        for _ in range(5):
            piece = call.patch(random)

            def read(name, region):
                return arrays[name][tuple(slice(*part) for part in region)].astype("f8")

            value, size = call.expected(piece, read)[result]
            actual = made[tuple(slice(*part) for part in call.region(result, piece))]
            assert (np.abs(actual - value) <= 1e-6 * size).all()


@pytest.mark.parametrize("dtype", ERROR)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_class_sums_are_pytorchs_under_every_split(shape, dtype):
    random = np.random.default_rng(9)
    x = (3 * random.standard_normal(shape)).astype(numpy_dtype(dtype))
    labels = random.integers(0, shape[1], (shape[0], 1, *shape[2:])).astype("uint8")
    wide = torch.tensor(x.astype("f8"), requires_grad=True)
    p = wide.softmax(1)
    t = torch.zeros(shape, dtype=torch.float64).scatter(1, torch.tensor(labels.astype("i8")), 1)
    expected = torch.cat([each.flatten(2).sum(2) if each.ndim > 2 else each
                          for each in (p * t, p, t)], 1)  # fmt: skip
    dy = random.standard_normal(expected.shape)
    expected.backward(torch.tensor(dy))
    call = ClassSumsCall(shape, dtype, "uint8")
    found = {"x": x, "labels": labels, "dy": dy.astype(ACCUMULATOR[dtype])}
    found["losses"] = every_split(call, found)
    totals = RowTotalsCall(found["losses"].shape, ACCUMULATOR[dtype])
    assert_close(run(totals, found), expected.detach().numpy(), totals.dtype)
    gradient = ClassSumsGradientCall(shape, dtype, "uint8")
    assert_close(every_split(gradient, found), wide.grad.numpy(), dtype)
