"""What is computed outside of the library, under every split: a function, and its gradients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from ooc_cudnn.operations.external.calls import (
    Cost,
    ExternalCall,
    ExternalGradientCall,
    ExternalInput,
)
from ooc_cudnn.tensor import numpy_dtype
from tests.support.forced import Forced, legal_splits
from tests.support.splits import RINGS

pytest.importorskip("ml_dtypes")

IMAGES, EACH = 5, 2
SHAPE, WEIGHTS = (IMAGES * EACH, 3, 4), (3, 1)


@dataclass(frozen=True)
class Scaling:
    """y = x * w, of two rows an image; w is all images'."""

    name: str = "scaling"
    why: str = "no such operation"
    may_be_recorded: bool = True

    def cost(self, images, wanted):
        return Cost(100 * images, 1000 * images, 0)

    def forward(self, inputs, y, how):
        x, w = inputs
        y[...] = x.astype("f8") * w.astype("f8") + _added(how.drawn, len(x))

    def backward(self, inputs, dy, gradients, how):
        x, w = (each.astype("f8") for each in inputs)
        made = (dy.astype("f8") * w, (dy.astype("f8") * x).sum((0, 2))[:, None])
        for at, gradient in gradients.items():
            gradient[...] = made[at] + (0 if at else _added(how.drawn, len(x)))


def _added(drawn, rows):
    """A number for each row of the batch, of the state and the image that it is of."""
    if drawn is None:
        return 0
    images = drawn.first + np.arange(rows) // EACH
    return (drawn.state[0] + images * drawn.state[1]).reshape(-1, 1, 1)


def call(dtype, wanted=None, **told):
    taken = (ExternalInput(SHAPE, dtype, True), ExternalInput(WEIGHTS, dtype, False))
    given = (Scaling(), taken, SHAPE, dtype, IMAGES, IMAGES, told.pop("draws", False))
    if wanted is None:
        return ExternalCall(*given, **told)
    return ExternalGradientCall(*given, wanted=wanted, **told)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_every_split(dtype, beta):
    random = np.random.default_rng(0)
    x, w, dy, old = (
        random.integers(-4, 5, shape).astype(numpy_dtype(dtype))
        for shape in (SHAPE, WEIGHTS, SHAPE, WEIGHTS)
    )
    alpha = 2.0 if beta else 1.0
    exact = {name: each.astype("f8") for name, each in {"x": x, "w": w, "dy": dy}.items()}
    expected = alpha * exact["x"] * exact["w"] + beta * exact["dy"]
    dw = (exact["dy"] * exact["x"]).sum((0, 2))[:, None]
    for at, split in enumerate(legal_splits(call(dtype))):
        depth, whole = RINGS[at % len(RINGS)]
        y = dy.copy() if beta else np.full_like(x, np.nan)
        forced = Forced(call(dtype, alpha=alpha, beta=beta), {"x0": x, "x1": w, "y": y})
        forced.run(split, depth=depth, whole=whole)
        assert (y == expected).all()
        dx0, dx1 = (x.copy(), old.copy()) if beta else (np.full_like(x, np.nan), old.copy())
        forced = Forced(
            call(dtype, (0, 1), alpha=alpha, beta=beta),
            {"x0": x, "x1": w, "dy": dy, "dx0": dx0, "dx1": dx1},
        )
        forced.run(split, depth=depth, whole=whole)
        assert (dx0 == alpha * exact["dy"] * exact["w"] + beta * exact["x"]).all()
        rounded = (alpha * dw + beta * old.astype("f8")).astype(dx1.dtype)
        assert (dx1 == rounded).all()


def test_as_many_are_computed_at_once_as_there_is_room_for_elsewhere():
    made = call("float32")
    assert made.outside_bytes == 100 * IMAGES
    fewer = made.of_at_most(2)
    assert fewer.outside_bytes == 200
    (launch,), _ = fewer.launches(fewer.whole_piece(), layout="channels_first", orders={})
    assert (launch.operation.images, launch.operation.at_once) == (IMAGES, 2)


def test_patches_are_as_the_function_has_them():
    random = np.random.default_rng(0)
    arrays = {
        "x0": random.standard_normal(SHAPE),
        "x1": random.standard_normal(WEIGHTS),
        "dy": random.standard_normal(SHAPE),
    }

    def read(name, region):
        return arrays[name][tuple(slice(*each) for each in region)]

    made = call("float64")
    piece = made.patch(random)
    value, size = made.expected(piece, read)["y"]
    region = tuple(slice(*each) for each in made.region("y", piece))
    assert (value == (arrays["x0"] * arrays["x1"])[region]).all()
    assert (size >= np.abs(value)).all()
    gradient = call("float64", (0, 1))
    assert set(gradient.expected(piece, read)) == {"dx0"}
    found = gradient.expected(gradient.whole_piece(), read)
    assert set(found) == {"dx0", "dx1"}
    assert gradient.rounding().terms == EACH * 12


def test_what_is_drawn_is_of_an_image_and_of_no_split():
    random = np.random.default_rng(0)
    x, w, dy = (random.integers(-4, 5, shape) * 1.0 for shape in (SHAPE, WEIGHTS, SHAPE))
    state = np.array([7, 3])
    added = (7 + 3 * (np.arange(IMAGES * EACH) // EACH)).reshape(-1, 1, 1)
    for split in legal_splits(call("float64", draws=True)):
        y, dx = np.full(SHAPE, np.nan), np.full(SHAPE, np.nan)
        given = {"x0": x, "x1": w, "state": state}
        Forced(call("float64", draws=True), {**given, "y": y}).run(split)
        assert (y == x * w + added).all()
        gradient = call("float64", (0,), draws=True)
        Forced(gradient, {**given, "dy": dy, "dx0": dx}).run(split)
        assert (dx == dy * w + added).all()
    made = call("float64", draws=True)
    arrays = {"x0": x, "x1": w, "state": state.astype("f8")}

    def read(name, region):
        return arrays[name][tuple(slice(*each) for each in region)]

    piece = made.whole_piece()._replace(n=(2, 3))
    value, _ = made.expected(piece, read)["y"]
    assert (value == (x * w + added)[2 * EACH : 3 * EACH]).all()
