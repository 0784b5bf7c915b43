"""Searches that share what hangs on no memory limit.

The costs of a call's pieces, and the grid of its splits, are the same under five limits, or for a
hundred forced splits; the library makes them anew for each plan. Plans are the same either way
(`tests/call_planner/test_search.py`). What is shared knows no limit at all: to look at it is an
error.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from unittest import mock

from ooc_cudnn.call_planner import planner
from ooc_cudnn.call_planner.search import Search

#: Searches that are kept.
KEPT = 64


@contextmanager
def shared():
    """Have planners share them in this block."""
    known = lru_cache(KEPT)(Search)

    class Sharing(Search):
        def __init__(self, request, layout):
            super().__init__(request, layout)
            self.known = known(replace(request, memory_limit=None), layout)
            self.axes, self.costs, self._row = self.known.axes, self.known.costs, self.known._row

        grid = property(lambda self: self.known.grid)
        whole = property(lambda self: self.known.whole)

    with mock.patch.object(planner, "Search", Sharing):
        yield
