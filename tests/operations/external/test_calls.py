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
    ExternalResult,
)
from ooc_cudnn.operations.external.tiles import Span, WholeImagesError, tile_of_external
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

    def forward(self, inputs, ys, how):
        (y,) = ys
        x, w = inputs
        y[...] = x.astype("f8") * w.astype("f8") + _added(how.drawn, len(x))

    def backward(self, inputs, dys, gradients, how):
        (dy,) = dys.values()
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


@dataclass(frozen=True)
class Both(Scaling):
    """y as above, and z, the sum of each image's x."""

    name: str = "both"

    def forward(self, inputs, ys, how):
        y, z = ys
        super().forward(inputs, (y,), how)
        z[...] = inputs[0].reshape(len(z), -1).sum(1)[:, None]

    def backward(self, inputs, dys, gradients, how):
        dy = dys.get(0, np.zeros(inputs[0].shape))
        super().backward(inputs, {0: dy}, gradients, how)
        if 0 in gradients and 1 in dys:
            gradients[0][...] += np.repeat(dys[1], EACH, 0)[:, :, None]


@pytest.mark.parametrize("given", [(0,), (1,), (0, 1)])
def test_several_results_under_every_split(given):
    random = np.random.default_rng(0)
    shapes = {"x0": SHAPE, "x1": WEIGHTS, "dy": SHAPE, "dy1": (IMAGES, 1)}
    arrays = {name: random.integers(-4, 5, shape) * 1.0 for name, shape in shapes.items()}
    x, w, dy, dz = arrays.values()
    taken = (ExternalInput(SHAPE, "float64", True), ExternalInput(WEIGHTS, "float64", False))
    others = (ExternalResult((IMAGES, 1), "float64"),)
    told = (Both(), taken, SHAPE, "float64", IMAGES, 2)
    forward = ExternalCall(*told, others=others)
    backward = ExternalGradientCall(*told, others=others, wanted=(0, 1), given=given)
    read = {"x0": x, "x1": w} | {
        name: arrays[name] for name in ("dy", "dy1") if name in backward.operands
    }
    assert set(read) == {"x0", "x1"} | {("dy", "dy1")[at] for at in given}
    z = x.reshape(IMAGES, -1).sum(1)[:, None]
    dy, dz = dy * (0 in given), dz * (1 in given)
    for at, split in enumerate(legal_splits(forward)):
        depth, whole = RINGS[at % len(RINGS)]
        made = {"y": np.full(SHAPE, np.nan), "y1": np.full((IMAGES, 1), np.nan)}
        Forced(forward, {"x0": x, "x1": w, **made}).run(split, depth=depth, whole=whole)
        assert (made["y"] == x * w).all()
        assert (made["y1"] == z).all()
        made = {"dx0": np.full(SHAPE, np.nan), "dx1": np.full(WEIGHTS, np.nan)}
        Forced(backward, {**read, **made}).run(split, depth=depth, whole=whole)
        assert (made["dx0"] == dy * w + np.repeat(dz, EACH, 0)[:, :, None]).all()
        assert (made["dx1"] == (dy * x).sum((0, 2))[:, None]).all()
    whole = forward.expected(forward.whole_piece(), lambda name, region: arrays[name])
    assert {
        name: (value == known).all()
        for (name, (value, _)), known in zip(whole.items(), (x * w, z), strict=True)
    } == {"y": True, "y1": True}
    with pytest.raises(WholeImagesError):
        tile_of_external(forward, (0, 2), (Span(0, 2, cut=True),), ())
