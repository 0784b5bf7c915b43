"""A call of a public function as data, and what every call must bear.

`Call` holds the operands, the options and the expected results; the checks below run it under
falling memory limits, with operands laid in memory in any way, in every placement and, through the
engine, under every legal split.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.errors import PlanInfeasibleError
from tests.support.bounded import scaled

PLENTY = 2**24
DTYPES = {name: np.dtype(name) for name in ("float16", "float32", "float64")}
try:
    import ml_dtypes
except ImportError:
    pass
else:
    DTYPES["bfloat16"] = np.dtype(ml_dtypes.bfloat16)


@dataclass
class Call:
    """One call of a public function.

    Attributes
    ----------
    function : str
    operands : dict of arrays
        The positional ones, in the function's order.
    options : dict
        The other arguments; arrays in it are operands as well.
    results : dict of Bounded, or of functions of the old content
        What is expected under each name, in the order in which it is returned.
    outs : tuple of str
        Results that `out` takes.
    old : dict of arrays
        What they hold before: NaN where that must not be read.
    changed : dict of Bounded
        Operands that are changed in place, and what they must hold then.
    """

    function: str
    operands: dict
    options: dict
    results: dict
    outs: tuple = ("y",)
    old: dict = field(default_factory=dict)
    changed: dict = field(default_factory=dict)
    name: str = ""

    def __post_init__(self):
        like = next(a for a in self.operands.values() if hasattr(a, "dtype"))
        for name in self.outs:
            if name not in self.old:
                shape = self.results[name].value.shape
                self.old[name] = np.full(shape, np.nan, like.dtype)

    def __str__(self):
        return self.name

    @property
    def arrays(self):
        """Every operand by name, those among the options as well."""
        more = {k: v for k, v in self.options.items() if isinstance(v, np.ndarray)}
        return {**self.operands, **more}

    def run(self, arrays=None, out=None):
        """Call it, on other arrays and into `out` (a dict by name) if given; results by name."""
        arrays = {**self.arrays, **(arrays or {})}
        positional = [arrays.pop(name) for name in self.operands]
        options = {**self.options, **arrays}
        if out is not None:
            options["out"] = tuple(out.values()) if len(self.outs) > 1 else out[self.outs[0]]
        made = getattr(ooc_cudnn, self.function)(*positional, **options)
        made = made if isinstance(made, tuple) else (made,)
        assert len(made) == len(self.results)
        found = dict(zip(self.results, made, strict=True))
        for name in out or {}:
            assert found[name] is out[name], f"{name} is returned as it was given"
        return found

    def fresh(self):
        """New arrays for `out`, with the old content."""
        return {name: self.old[name].copy(order="K") for name in self.outs}

    def copies(self):
        """Copies of the operands, so that those changed in place stay here as they were."""
        return {name: array.copy(order="K") for name, array in self.arrays.items()}

    def check(self, found, where="", arrays=None):
        """Check every result; of `arrays`, that they hold what they held, or what they must."""
        for name, expected in self.results.items():
            expected.check(as_numpy(found[name]), f"{self.name} {where}: {name}")
        for name, array in (arrays or {}).items():
            array = as_numpy(array)
            if name in self.changed:
                self.changed[name].check(array, f"{self.name} {where}: {name}")
            else:
                same = np.array_equal(
                    array.astype("f8"), self.arrays[name].astype("f8"), equal_nan=True
                )
                assert same, f"{self.name} {where}: {name} was changed"


def as_numpy(array):
    """Any array on the host as NumPy's."""
    if type(array).__module__.startswith("torch"):
        array = array.detach()
        return array.double().numpy() if array.dtype.is_floating_point else array.numpy()
    return np.asarray(array)


def draw(random, shape, dtype="float32"):
    """Normal numbers."""
    return random.standard_normal(shape).astype(DTYPES[dtype])


def finished(result, dtype, *, alpha=1.0, beta=0.0, random=None):
    """alpha * result + beta * old: the Bounded one, and the old content (NaN without beta)."""
    shape = result.value.shape
    old = draw(random, shape, dtype) if beta else np.full(shape, np.nan, DTYPES[dtype])
    return scaled(result, alpha, beta, old, dtype), old


# Limits ------------------------------------------------------------------------------------------


def least_limit(call):
    """The smallest limit there is, as the error names it; asked for once a call."""
    if not hasattr(call, "least"):
        with (
            ooc_cudnn.settings(memory_limit=1),
            pytest.raises(PlanInfeasibleError) as caught,
        ):
            call.run(call.copies(), call.fresh())
        call.least = caught.value.smallest_bytes
    return call.least


def check_under_falling_limits(call, *, cuts=True, most=3):
    """From all at once down to the least limit; returns the numbers of pieces, its last.

    `cuts`: that more than one number of pieces is seen; `most`: limits tried before the least.
    """
    limit, pieces, least = PLENTY, [], None
    while least is None:
        arrays, out = call.copies(), call.fresh()
        where = f"limit {limit}"
        try:
            with ooc_cudnn.settings(memory_limit=limit, verify=2), ooc_cudnn.profile() as p:
                found = call.run(arrays, out)
        except PlanInfeasibleError as error:
            least = error.smallest_bytes
            for name in call.outs:
                assert np.array_equal(
                    out[name].astype("f8"), call.old[name].astype("f8"), equal_nan=True
                ), f"{name} was written to by a call that failed"
            continue
        call.check(found, where, arrays)
        for done in p.calls:
            assert done.function == call.function
            assert done.peak_device_bytes == done.plan.device_bytes <= limit, where
        pieces.append(done.plan.pieces)
        falling = min(done.plan.device_bytes - 1, int(0.6 * limit))
        limit = falling if len(pieces) < most else 1
    assert least > limit
    arrays, out = call.copies(), call.fresh()
    with ooc_cudnn.settings(memory_limit=least), ooc_cudnn.profile() as p:
        found = call.run(arrays, out)
    call.check(found, f"the least limit, {least}", arrays)
    assert all(done.peak_device_bytes <= least for done in p.calls)
    if cuts:
        assert len(set(pieces)) > 1, pieces
    return [*pieces, p.calls[0].plan.pieces]


def some_limits(call):
    """Plenty, a limit in the middle, and the least."""
    least = least_limit(call)
    data = sum(array.nbytes for array in call.arrays.values()) + sum(
        array.nbytes for array in call.old.values()
    )
    return sorted({PLENTY, max(least, (least + data) // 2), least}, reverse=True)


# Memory ------------------------------------------------------------------------------------------


def channels_last(array):
    """The channels last in memory."""
    axes = (0, *range(2, array.ndim), 1)
    return np.ascontiguousarray(array.transpose(axes)).transpose(0, -1, *range(1, array.ndim - 1))


def strided(array):
    """Every second element of every axis of a larger array that is NaN elsewhere."""
    large = np.full([2 * e + 1 for e in array.shape], np.nan, array.dtype)
    view = large[tuple(slice(1, None, 2) for _ in array.shape)]
    view[...] = array
    return view


def transposed(array):
    """The last two axes swapped in memory."""
    return np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2)


def backwards(array):
    """Negative strides on every axis."""
    flip = tuple(slice(None, None, -1) for _ in array.shape)
    return np.ascontiguousarray(array[flip])[flip]


def images_last(array):
    """The first two axes swapped in memory."""
    return np.ascontiguousarray(array.swapaxes(0, 1)).swapaxes(0, 1)


def some_rows(array):
    """Rows in the middle of a tensor that is NaN elsewhere."""
    axis = min(2, array.ndim - 1)
    shape = list(array.shape)
    shape[axis] += 3
    large = np.full(shape, np.nan, array.dtype)
    at = (*[slice(None)] * axis, slice(1, -2))
    large[at] = array
    return large[at]


LAID: dict[str, Callable] = {
    f.__name__: f for f in (channels_last, strided, transposed, backwards, images_last, some_rows)
}


#: Some of them, for functions whose plans take long to find.
FEW_LAID = ("channels_last", "strided", "backwards")


def lay(array, how):
    """The array laid in memory in that way, as far as it has the axes."""
    if array.ndim < 2 and how not in ("strided", "backwards", "some_rows"):
        return array.copy()
    return LAID[how](array)


def check_laid(call, how):
    """Operands and results laid so, with plenty and the least, and every other one of them."""
    names = [*call.arrays, *call.outs]
    ways = [(set(names), PLENTY), (set(names), 1), (set(names[::2]), 1), (set(names[1::2]), 1)]
    for laid, limit in ways:
        arrays = {n: lay(a, how) if n in laid else a.copy() for n, a in call.arrays.items()}
        out = {n: lay(a, how) if n in laid else a.copy() for n, a in call.fresh().items()}
        try:
            with ooc_cudnn.settings(memory_limit=limit):
                found = call.run(arrays, out)
        except PlanInfeasibleError as error:
            # What is laid otherwise may take memory of its own to be brought to one order.
            with ooc_cudnn.settings(memory_limit=error.smallest_bytes):
                found = call.run(arrays, out)
        call.check(found, f"{how} of {sorted(laid)} under {limit}", arrays)


PLACEMENTS = ("device", "pinned", "pageable", "disk")


def place(array, where, path, name):
    """The array in a placement of the test's choice."""
    if where == "pageable":
        return array.copy()
    if where == "disk":
        mapped = np.memmap(path / f"{name}.bin", array.dtype, "w+", shape=array.shape)
        mapped[...] = array
        return mapped
    with ooc_cudnn.settings(memory_limit="1GiB" if where == "device" else 1):
        made = ooc_cudnn.empty(array.shape, array.dtype)
    assert ooc_cudnn.placement(made) == where
    made[...] = array
    return made


# Splits ------------------------------------------------------------------------------------------


def in_part(cases, *names):
    """The cases of those names."""
    found = [case for case in cases if str(case) in names]
    assert len(found) == len(names)
    return found


def renamed(call, name, **changes):
    """The same call under another name."""
    return replace(call, name=name, **changes)
