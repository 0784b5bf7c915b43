"""Calls on operands in which some numbers are infinite or none, under splits of the test's choice.

A cut must change nothing: a result is NaN or infinite exactly where it is so in one piece.
"""

from __future__ import annotations

import numpy as np

from tests.support.splits import Split

#: Numbers of an operand that are replaced, at most, each by one of these.
MOST = 2
VALUES = (np.inf, -np.inf, np.nan)
#: What a cut may change of finite results, by dtype: other orders of sums of a few numbers.
TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-4, "float64": 1e-12}


def sprinkled(random, array):
    """Replace a few elements in place; as often as not, none."""
    for _ in range(random.integers(MOST + 1)):
        array[tuple(random.integers(array.shape))] = VALUES[random.integers(len(VALUES))]


def sprinkled_split(call, seed, **options):
    """The call's `Split`, with every operand sprinkled, and old contents with infinities."""
    random = np.random.default_rng(seed)
    made = Split(call, **options)
    for name, operand in made.splittable.operands.items():
        if name not in made.splittable.results and 0 not in operand.shape:
            sprinkled(random, made.forced.arrays[name])
    for array in call.old.values():
        if array.size and not np.isnan(array.astype("f8")).all():
            sprinkled(random, array)
    for name in call.changed:
        call.arrays[name][...] = made.kept[name]
    return made


def outcome(made, split, **options):
    """Everything that a run under a split writes, in float64."""
    made.restore()
    made.forced.run(split, **options)
    return {name: (a.dtype.name, a.astype("f8")) for name, a in made.content().items()}


def check_alike(found, expected, where):
    """NaN and infinities in the same places, and finite numbers that differ by rounding alone."""
    for name, (dtype, value) in expected.items():
        other = found[name][1]
        place = f"{where}: {name}"
        np.testing.assert_array_equal(np.isnan(other), np.isnan(value), f"{place}, NaN")
        finite = np.isfinite(value)
        np.testing.assert_array_equal(other[~finite], value[~finite], place)
        size = np.abs(value[finite]).max(initial=1.0)
        np.testing.assert_allclose(
            other[finite], value[finite], rtol=0, atol=TOLERANCE[dtype] * size, err_msg=place
        )
