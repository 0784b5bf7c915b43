"""Digests: equal for what is equal, in every process; another one for whatever differs."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pytest

from ooc_cudnn import networks
from ooc_cudnn.network.runtime import plan_digest
from ooc_cudnn.network.runtime.plan_digest import digest_of, library_digest
from tests.support.elsewhere import said_elsewhere


@dataclass(frozen=True)
class Point:
    x: float
    held: object = field(default=None, hash=False, compare=False)


@dataclass(frozen=True)
class Other:
    x: float
    held: object = None


class Pair(NamedTuple):
    one: int
    two: int


VALUES = (
    None, True, 1, 1.0, 2, "1", "", (), (1,), (1, 2), ((1,), 2), {1, 2}, {"a": 1}, {"a": 2},
    {"a": 1, "b": 2}, {"b": 2, "a": 1}, Point(1.0), Point(1), Point(1.0, 3), Other(1.0), b"",
)  # fmt: skip


def test_what_differs_has_another_digest():
    known = [value for value in VALUES if value != b""]
    assert len({digest_of(value) for value in known}) == len(known)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1, 2), [1, 2]),
        (Pair(1, 2), (1, 2)),
        ({3, 1, 2}, frozenset((2, 3, 1))),
        (1, np.int64(1)),
        (0.5, np.float32(0.5)),
        (Point(2.0, (1, 2)), Point(2.0, (1, 2))),
    ],
)
def test_what_is_equal_has_the_same(one, other):
    assert digest_of(one) == digest_of(other)


@pytest.mark.parametrize("value", [b"", object(), print, Point, 1j, np.zeros(2)])
def test_what_might_differ_elsewhere_has_none(value):
    with pytest.raises(TypeError, match="has no digest"):
        digest_of(value)


@pytest.mark.parametrize("name", networks.__all__)
def test_every_network_has_a_digest(name):
    made = [getattr(networks, name)(batch=batch) for batch in (2, 2, 3)]
    first, again, other = (digest_of(net.training_phases(loss)) for net, loss in made)
    assert first == again != other


_ELSEWHERE = """
from ooc_cudnn import networks
from ooc_cudnn.network.runtime.plan_digest import digest_of, library_digest
net, loss = networks.googlenet(batch=2, width=1 / 8)
print(digest_of(net.training_phases(loss), {"b", "a", "c"}), library_digest())
"""


def test_a_digest_is_the_same_in_every_process():
    said = {*said_elsewhere(_ELSEWHERE)}
    assert len(said) == 1
    assert said.pop().split()[1] == library_digest()


def test_the_library_is_another_with_another_solver(monkeypatch):
    here = library_digest()
    library_digest.cache_clear()
    monkeypatch.setattr(plan_digest, "SOLVER", "a_solver_that_is_not_there")
    assert plan_digest._version_of(plan_digest.SOLVER) == "none"
    assert library_digest() != here
    library_digest.cache_clear()
