"""Tests of the kernels alone: all on the card, or a sample of them on the CPU where there is none.

`make test-all` runs all of them on the CPU, in some half an hour of one core.
"""

from __future__ import annotations

import itertools
import math

import pytest

from tests.support import cuda_on_cpu, sampling
from tests.support.card import ON_CARD, run_on_cpu

#: Of a test's cases the CPU runs the first, and then one of so many: a prime number, so that all
#: values of each parameter have their turn.
SAMPLE = 97
#: Larger tensors take it long.
MOST_ELEMENTS = 30_000


def pytest_collection_modifyitems(config, items):
    """Mark what runs on a card; for the CPU take a sample, or skip all if there is no compiler."""
    here = [item for item in items if item.nodeid.startswith("tests/kernels/")]
    for item in here:
        if ON_CARD:
            item.add_marker(pytest.mark.gpu)
        elif cuda_on_cpu.compiler() is None:
            item.add_marker(pytest.mark.skip(reason="no card, and no g++ that knows _Float16"))
    if ON_CARD or sampling.is_whole(config):
        return
    of_tests = itertools.groupby(here, lambda item: (item.path, item.originalname))
    kept = {
        item
        for (path, _), cases in of_tests
        for item in itertools.islice(
            filter(_is_small, cases), 0, None, 1 if path.name == "test_cuda_on_cpu.py" else SAMPLE
        )
    }
    left_out = {item for item in here if item not in kept}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def _is_small(item):
    """Whether none of a case's parameters is the shape of a large tensor."""
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    shapes = [value for value in parameters if isinstance(value, tuple)]
    return all(
        math.prod(shape) <= MOST_ELEMENTS
        for shape in shapes
        if all(isinstance(size, int) for size in shape)
    )


@pytest.fixture(autouse=True)
def device(request, monkeypatch):
    """The card, or what stands in for it."""
    if ON_CARD:
        from ooc_cudnn.devices import get_device

        yield get_device("cuda")
        return
    run_on_cpu(monkeypatch, request.node.nodeid)
    yield None
