"""Operands on the device that are not all needed: right, and never computed on as they lie.

On the host device any strides would do: what makes these tests fail is that every launch is checked
against the strides it was built for.
"""

from __future__ import annotations

import pytest

from tests.support import in_place
from tests.support.forced import legal_splits
from tests.support.in_place import CALLS, SHAPES, make, on_device
from tests.support.splits import LAYOUTS, Split, some

pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")

SMALL = [(name, way) for name, way in CALLS if name not in ("1x1 stride 2", "57x57")]


@pytest.mark.parametrize(("name", "way"), CALLS)
def test_what_no_window_reaches(name, way):
    in_place.check_everywhere(make(name, way))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("name", "way"), SMALL)
def test_whichever_axis_is_cut(name, way, layout):
    """All operands and results on the device, under some splits along every axis."""
    for row_axis in range(2, len(SHAPES[name][0])):
        made = Split(make(name, way), lambda _, a: on_device(a, layout), row_axis=row_axis)
        for at, split in enumerate(some(list(legal_splits(made.splittable)), 6)):
            made.run(split, depth=1 + at % 2, whole=at % 3 > 0, layout=LAYOUTS[at % 2])
