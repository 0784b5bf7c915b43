"""Convolution, with bias and activation: every legal split, against PyTorch in float64."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.core.activation_modes import MODES
from ooc_cudnn.operations.elementwise.activation import Activation, check_mode
from ooc_cudnn.operations.elementwise.binary import AddTensor
from tests.support import activation_modes, reference
from tests.support.forced import Forced, legal_splits
from tests.support.function_cases import LAID, channels_last
from tests.support.sampling import number

ml_dtypes = pytest.importorskip("ml_dtypes")
NUMPY = {name: np.dtype(name) for name in ("float16", "float32", "float64")}
NUMPY["bfloat16"] = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class Case:
    """One small shape; `name` is what pytest prints."""

    name: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    geometry: dict = field(default_factory=dict)
    activation: str | None = None  # None: a plain convolution without bias
    dtype: str = "float32"
    alpha: float = 1.0
    beta: float = 0.0

    def __str__(self):
        return self.name


CASES = (
    Case("1d", (3, 2, 7), (3, 2, 3), {"padding": 1}),
    Case("1d-asymmetric-bias", (2, 3, 8), (2, 3, 2), {"padding": ((2, 0),), "stride": 2}, "relu"),
    Case("2d", (2, 3, 6, 4), (3, 3, 3, 3), {"padding": 1}),
    Case("2d-fused", (2, 3, 6, 4), (3, 3, 3, 3), {"padding": 1}, "relu"),
    Case("2d-no-padding", (2, 2, 6, 3), (2, 2, 2, 3), {}, "tanh"),
    Case("2d-asymmetric", (2, 2, 5, 4), (3, 2, 3, 2), {"padding": ((0, 2), (1, 0))}, "relu"),
    Case("2d-padding-beyond-window", (2, 2, 3, 2), (2, 2, 2, 2),
         {"padding": ((4, 5), 3)}, "sigmoid"),
    Case("2d-pieces-of-padding-strided", (2, 2, 2, 3), (2, 2, 1, 1),
         {"padding": 4, "stride": 3}, "elu"),
    Case("2d-stride", (2, 2, 9, 5), (2, 2, 3, 3), {"padding": 1, "stride": (2, 3)}),
    Case("2d-stride-beyond-window", (2, 2, 10, 5), (3, 2, 2, 1),
         {"padding": ((1, 0), 0), "stride": (4, 3)}),
    Case("2d-dilation", (2, 2, 8, 6), (2, 2, 3, 2),
         {"padding": (3, 1), "dilation": (3, 2)}, "swish"),
    Case("2d-everything", (2, 2, 9, 5), (2, 2, 2, 3),
         {"padding": ((3, 1), (0, 2)), "stride": (2, 1), "dilation": (3, 2)}, "leaky_relu"),
    Case("3d", (2, 2, 4, 3, 3), (2, 2, 2, 3, 2), {"padding": ((1, 0), 1, (0, 1))}, "relu"),
    Case("3d-stride-dilation", (1, 2, 7, 4, 5), (2, 2, 2, 2, 2),
         {"padding": 1, "stride": (2, 1, 2), "dilation": (2, 1, 2)}),
    Case("groups", (2, 6, 5, 3), (4, 3, 3, 3), {"padding": 1, "groups": 2}, "relu"),
    Case("groups-3", (1, 6, 4, 3), (6, 2, 2, 3), {"padding": ((1, 0), 1), "groups": 3}),
    Case("depthwise", (2, 4, 5, 3), (4, 1, 3, 3), {"padding": 1, "groups": 4}, "relu"),
    Case("depthwise-multiplier", (2, 3, 5, 3), (6, 1, 3, 3), {"padding": 1, "groups": 3}, "relu"),
    Case("1x1", (2, 4, 5, 3), (3, 4, 1, 1), {}, "clipped_relu"),
    Case("alpha", (2, 3, 5, 3), (2, 3, 3, 3), {"padding": 1}, "tanh", alpha=-1.5),
    Case("beta", (2, 3, 5, 3), (2, 3, 3, 3), {"padding": 1}, beta=0.5),
    Case("alpha-beta-fused", (2, 3, 5, 3), (2, 3, 3, 3),
         {"padding": 1}, "elu", alpha=2.0, beta=-0.25),
    Case("float64", (2, 3, 5, 3), (2, 3, 3, 3), {"padding": 1}, "gelu", "float64", 0.5, 2.0),
    Case("float16", (2, 4, 5, 3), (2, 4, 3, 3), {"padding": 1}, "relu", "float16", 0.5, 2.0),
    Case("bfloat16", (2, 4, 5, 3), (2, 4, 3, 3), {"padding": 1}, "relu", "bfloat16"),
)  # fmt: skip
LAYOUTS = ("channels_first", "channels_last")


class Run:
    """A case's data, its expected result, and its chain."""

    def __init__(self, case, *, seed=0):
        random = np.random.default_rng(seed)

        def draw(shape):
            return random.standard_normal(shape).astype(NUMPY[case.dtype])

        self.case = case
        self.x, self.w, self.b = draw(case.x), draw(case.w), draw(case.w[:1])
        convolution = Convolution.of(case.x, case.w, dtype=case.dtype, **case.geometry)
        operations = (convolution,)
        shape = convolution.output_shape
        if case.activation:
            mode, self.coef = check_mode(case.activation, None)
            operations += (
                AddTensor(shape, case.dtype),
                Activation(shape, mode, self.coef, case.dtype),
            )
        self.chain = Chain(operations, case.dtype, alpha=case.alpha, beta=case.beta)
        self.old = draw(shape) if case.beta else np.full(shape, np.nan, NUMPY[case.dtype])
        self.expected, self.tolerance = self._expect()

    def _expect(self):
        case = self.case
        y = reference.convolution(self.x, self.w, **case.geometry)
        b = self.b if case.activation else None
        half = case.dtype in ("float16", "bfloat16")
        tolerance = reference.bound(
            self.x, self.w, b, dtype=case.dtype, halves=3 if half else 0, **case.geometry
        )
        if case.activation:
            y = reference.ACTIVATIONS[case.activation](
                y + reference.bias(self.b, y.ndim), self.coef
            )
            tolerance = tolerance * activation_modes.MODES[case.activation].steepest
        y, tolerance = case.alpha * y, abs(case.alpha) * tolerance
        if case.beta:
            y = y + case.beta * self.old.astype("f8")
        unit = reference.UNIT_ROUNDOFF[case.dtype]
        return y, tolerance + 4 * unit * (np.abs(y) + 2.0 * abs(case.alpha)) + (
            4 * unit * np.abs(case.beta * self.old.astype("f8")) if case.beta else 0
        )

    def arrays(self, *, x=lambda a: a, w=lambda a: a, y=lambda a: a):
        """Operands by name, each laid in memory by the given function; y holds its old content."""
        found = {"x": x(self.x), "w": w(self.w)}
        if self.case.activation:
            found["b"] = self.b
        found["y"] = y(self.old.copy())
        return found

    def check(self, y, where):
        reference.assert_close(y, self.expected, self.tolerance, where)


#: Depth of the rings, and whether parameters are kept whole.
RINGS = ((1, False), (2, True), (3, False))


#: Cases that run every split with every ring; the others take turns with the rings.
EVERY_RING = ("1d", "2d-fused", "2d-asymmetric", "2d-stride", "groups", "beta", "depthwise")


def check_every_split(run, forced, *, layouts=LAYOUTS, rings=RINGS, in_turn=False, among=(0, 1)):
    """Run every split with every ring and layout (or one, in turn); y is filled anew before.

    `among`: the first of the splits, and the step to the next.
    """
    y, old = forced.arrays["y"], run.old
    count = 0
    ways = list(itertools.product(rings, layouts))
    first, step = among
    for at, split in enumerate(itertools.islice(legal_splits(run.chain), first, None, step)):
        for (depth, whole), layout in ways[at % len(ways) :][:1] if in_turn else ways:
            y[...] = old
            # Real threads for a part of the runs; the steps are the same (see test_execute).
            overlap = (at + depth) % 4 == 0
            forced.run(split, depth=depth, whole=whole, layout=layout, overlap=overlap)
            run.check(y, f"{run.case.name} {split} depth={depth} whole={whole} {layout}")
            count += 1
    return count


# Every legal split -------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_split(case):
    run = Run(case)
    forced = Forced(run.chain, run.arrays())
    x, w = run.x.copy(), run.w.copy()
    in_turn = case.name not in EVERY_RING
    one_in = number(3, of=1)
    first = (CASES.index(case) % one_in, one_in)
    how = {"in_turn": in_turn, "among": first}
    assert check_every_split(run, forced, layouts=("channels_first",), **how) >= 12 // one_in
    # ... and with every operand re-laid on the way.
    check_every_split(run, forced, layouts=("channels_last",), in_turn=True, among=first)
    assert np.array_equal(run.x, x)
    assert np.array_equal(run.w, w)


@pytest.mark.parametrize("laid", LAID)
@pytest.mark.parametrize("name", ["2d-fused", "2d-asymmetric", "alpha-beta-fused", "groups"])
def test_splits_of_operands_with_any_strides(name, laid):
    """Of each memory order every third split, of all together every one."""
    run = Run(next(case for case in CASES if case.name == name))
    lay = LAID[laid]
    forced = Forced(run.chain, run.arrays(x=lay, w=lay, y=lay))
    check_every_split(run, forced, in_turn=True, among=(list(LAID).index(laid) % 3, 3))


@pytest.mark.parametrize("which", ["x", "w", "y"])
def test_every_split_of_mixed_memory_orders(which):
    run = Run(next(case for case in CASES if case.name == "2d-fused"))
    forced = Forced(run.chain, run.arrays(**{which: channels_last}))
    check_every_split(run, forced, in_turn=True)


def test_broadcast_x():
    run = Run(next(case for case in CASES if case.name == "2d"))
    image = run.x[:1]
    x = np.broadcast_to(image, run.x.shape)
    y = np.full(run.old.shape, np.nan, "f4")
    expected = reference.convolution(np.ascontiguousarray(x), run.w, padding=1)
    forced = Forced(run.chain, {"x": x, "w": run.w, "y": y})
    for split in legal_splits(run.chain):
        y[...] = np.nan
        forced.run(split, overlap=False)
        reference.assert_close(y, expected, reference.bound(x, run.w, padding=1), str(split))


@pytest.mark.parametrize("mode", MODES)
def test_every_activation_under_every_split_of_channels(mode):
    run = Run(Case(mode, (2, 3, 4, 3), (2, 3, 3, 2), {"padding": 1}, mode))
    forced = Forced(run.chain, run.arrays())
    check_every_split(run, forced, rings=RINGS[2:], layouts=("channels_first",))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_lose_nothing_to_pieces_of_c_x(dtype):
    """Sums over cX are float32: many pieces err no more than one piece of the whole."""
    case = Case("half", (1, 64, 3, 3), (2, 64, 3, 3), {"padding": 1}, dtype=dtype)
    run = Run(case)
    forced = Forced(run.chain, run.arrays())
    unit = reference.UNIT_ROUNDOFF[dtype]
    sums = reference.bound(run.x, run.w, dtype="float32", padding=1)
    errors = {}
    for split in legal_splits(run.chain):
        if split.n == 1 and split.h_y == 3 and split.c_y == 2 and 64 % split.c_x == 0:
            forced.arrays["y"][...] = np.nan
            forced.run(split)
            errors[split.c_x] = np.abs(forced.arrays["y"].astype("f8") - run.expected)
            # One rounding to the narrow dtype, as the whole has, and no more.
            reference.assert_close(
                forced.arrays["y"],
                run.expected,
                sums + 1.001 * unit * np.abs(run.expected),
                str(split),
            )
    assert set(errors) == {1, 2, 4, 8, 16, 32, 64}
    assert max(e.max() for e in errors.values()) <= 1.01 * errors[64].max()


def test_an_output_that_held_nan_is_not_read_without_beta():
    x, w = np.ones((1, 2, 4, 4), "f4"), np.ones((2, 2, 3, 3), "f4")
    for limit in ("1MiB", "3KiB"):
        out = np.full((1, 2, 2, 2), np.nan, "f4")
        with ooc_cudnn.settings(memory_limit=limit):
            assert ooc_cudnn.convolution_forward(x, w, alpha=2, beta=0, out=out) is out
        assert np.all(out == 36)


# The public functions, under limits that cut -----------------------------------------------------


def call(run, **options):
    case = run.case
    options = {**case.geometry, "alpha": case.alpha, "beta": case.beta, **options}
    if case.activation:
        return ooc_cudnn.convolution_add_activation_forward(
            run.x, run.w, run.b, activation=case.activation, **options
        )
    return ooc_cudnn.convolution_forward(run.x, run.w, **options)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_public_function_under_falling_limits(case):
    """Down to the least limit there is; the error then names one that does."""
    run = Run(case)
    limit, pieces, least = 2**20, set(), None
    while least is None:
        out = run.old.copy()
        try:
            with ooc_cudnn.settings(memory_limit=limit, verify=3), ooc_cudnn.profile() as p:
                assert call(run, out=out) is out
        except PlanInfeasibleError as error:
            least = error.smallest_bytes
            continue
        run.check(out, f"limit {limit}")
        (done,) = p.calls
        assert done.peak_device_bytes == done.plan.device_bytes <= limit
        pieces.add(done.plan.pieces)
        limit = min(done.plan.device_bytes - 1, limit * 3 // 4)
    assert least > limit
    assert np.array_equal(out, run.old, equal_nan=True)
    with ooc_cudnn.settings(memory_limit=least):
        call(run, out=out)
    run.check(out, f"the least limit, {least}")
    # Buffers come in units of 256 bytes, below which nothing is saved by cutting.
    assert len(pieces) > 1 or run.x.nbytes + run.old.nbytes < 1024


@pytest.mark.parametrize("case", [case for case in CASES if not case.beta], ids=str)
def test_result_is_new_and_in_the_order_of_x(case):
    run = Run(case)
    y = call(run)
    run.check(y, "channels first")
    assert y.flags.c_contiguous
    assert y.dtype == run.x.dtype
    run.x = channels_last(run.x)
    y = call(run)
    run.check(y, "channels last")
    assert np.moveaxis(y, 1, -1).flags.c_contiguous


@pytest.mark.every_case
def test_larger_random_cases(random):
    """Odd shapes with many pieces, under a limit far below the data."""
    for _ in range(12):
        axes = int(random.integers(1, 4))
        groups = int(random.choice([1, 1, 2, 3]))
        c_x, c_y = groups * int(random.integers(1, 5)), groups * int(random.integers(1, 5))
        window = [int(k) for k in random.integers(1, 4, axes)]
        geometry = {
            "padding": tuple((int(a), int(b)) for a, b in random.integers(0, 4, (axes, 2))),
            "stride": tuple(int(s) for s in random.integers(1, 4, axes)),
            "dilation": tuple(int(d) for d in random.integers(1, 3, axes)),
            "groups": groups,
        }
        extents = [int(e) for e in random.integers(7, 12, axes)]
        extents[0] *= 6
        case = Case(
            "random", (int(random.integers(1, 5)), c_x, *extents), (c_y, c_x // groups, *window),
            geometry, str(random.choice(list(MODES))),
        )  # fmt: skip
        run = Run(case, seed=int(random.integers(1000)))
        with pytest.raises(PlanInfeasibleError) as caught, ooc_cudnn.settings(memory_limit=1):
            call(run)
        least = caught.value.smallest_bytes
        for limit in (least, 3 * least, 2**22):
            out = np.full(run.old.shape, np.nan, "f4")
            with ooc_cudnn.settings(memory_limit=limit):
                call(run, out=out)
            run.check(out, f"{case} limit {limit}")
