"""What `make test` runs of a large product of parameters."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import sampling

ROOT = Path(__file__).parents[1]
#: As values of parameters come: a product, one with gaps, and one parameter.
PRODUCTS = {
    "two": list(itertools.product("abc", "pqrs")),
    "three": list(itertools.product("ab", "pqr", "uvwxy")),
    "gaps": [case for case in itertools.product("abcd", "pq", "uvw") if case[0] != case[1]][::2],
    "one": [(each,) for each in "abcdef"],
    "different lengths": [("a", "p"), ("a", "q"), ("b",), ("c", "q")],
    "none": [],
}


@pytest.mark.parametrize("one_in", [1, 2, 3, 5])
@pytest.mark.parametrize("name", PRODUCTS)
def test_every_value_of_every_parameter_is_there(name, one_in):
    cases = PRODUCTS[name]
    taken = [cases[place] for place in sampling.sample(cases, one_in)]
    assert set(taken) <= set(cases)
    assert len(taken) == len(set(taken))
    assert {each for case in taken for each in enumerate(case)} == {
        each for case in cases for each in enumerate(case)
    }
    if one_in == 1 or name == "one":
        assert taken == cases


def test_of_three_parameters_every_pair_of_values_is_there():
    cases = list(itertools.product("abc", "pqr", "uvw"))
    taken = [cases[place] for place in sampling.sample(cases, 3)]
    assert len(taken) == 9
    for at, other in itertools.combinations(range(3), 2):
        assert len({(case[at], case[other]) for case in taken}) == 9


def collected(*arguments, **environment):
    """The cases of a test that pytest finds, in a process of its own."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    without = {key: value for key, value in os.environ.items() if not key.startswith("OOC_TESTS")}
    done = subprocess.run(
        [*command, *arguments], cwd=ROOT, env=without | environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if "::" in line]


def test_what_is_asked_for_runs_whole():
    file = "tests/devices/kernels/test_group_walk.py"
    sampled, every = collected(file), collected(file, OOC_TESTS_EVERY_CASE="1")
    assert 0 < len(sampled) < 0.7 * len(every)
    assert set(sampled) < set(every)
    (one, *_) = set(every) - set(sampled)
    assert collected(one) == [one]
    name = one.partition("::")[2].partition("[")[0]
    assert collected(file, "-k", name) == [case for case in every if f"::{name}[" in case]
