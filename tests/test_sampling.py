"""What `make test` runs of a large product of parameters."""

import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support import sampling

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


class Hashed(SimpleNamespace):
    """Known by what it is, not by what it holds."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__
    marks = ()

    def get_closest_marker(self, name):
        return name if name in self.marks else None


def item(nodeid, **parameters):
    """What pytest makes of a case, as far as it is looked at."""
    named = "-".join(map(str, parameters.values()))
    return Hashed(nodeid=nodeid, callspec=SimpleNamespace(params=parameters, id=named))


def test_of_some_folders_a_part_is_left_out(monkeypatch):
    monkeypatch.setattr(sampling, "TURNS", {})
    monkeypatch.setattr(sampling, "ONE_IN", {"functions": 2})
    cases = [(name, at) for name in ("data: 1d", "filter: 1d", "data: 2d") for at in range(4)]
    items = {
        folder: [item(f"tests/{folder}/f.py::test[{n}-{at}]", name=n, at=at) for n, at in cases]
        for folder in ("functions", "network")
    }
    plain = Hashed(nodeid="tests/functions/f.py::test_without_parameters")
    out = sampling.left_out([*items["functions"], *items["network"], plain])
    assert len(out) == 6
    assert out < set(items["functions"])
    monkeypatch.setattr(sampling, "ONE_IN", {"network/f.py": 2})
    assert len(sampling.left_out([*items["functions"], *items["network"]])) == 6


def test_of_cases_that_are_alike_some_run_and_those_that_are_named(monkeypatch):
    monkeypatch.setattr(sampling, "TURNS", {})
    monkeypatch.setattr(sampling, "ALIKE", {"network/f.py::test": (3, "5")})
    items = [item(f"tests/network/f.py::test[{at}]", at=at) for at in range(7)]
    others = [item(f"tests/network/f.py::test_more[{at}]", at=at) for at in range(7)]
    out = sampling.left_out([*items, *others])
    assert [each.callspec.params["at"] for each in items if each not in out] == [0, 3, 5, 6]
    assert out.isdisjoint(others)


def test_cases_of_the_tests_of_a_file_take_turns(monkeypatch):
    monkeypatch.setattr(sampling, "TURNS", {"torch": 3})
    monkeypatch.setattr(sampling, "FEW", 4)
    monkeypatch.setattr(sampling, "ALIKE", {})
    items = {
        name: [item(f"tests/torch/{name}[{at}]", at=at) for at in range(count)]
        for name, count in {
            "f.py::test": 7, "f.py::test_more": 7, "f.py::test_few": 3, "f.py::test_last": 4,
            "g.py::test": 7,
        }.items()
    }  # fmt: skip
    out = sampling.left_out(list(itertools.chain(*items.values())))
    runs = {
        name: [each.callspec.params["at"] for each in cases if each not in out]
        for name, cases in items.items()
    }
    assert runs == {
        "f.py::test": [0, 3, 6], "f.py::test_more": [1, 4], "f.py::test_few": [0, 1, 2],
        "f.py::test_last": [0, 3], "g.py::test": [0, 3, 6],
    }  # fmt: skip
    for turn in range(8):  # a few cases, and more turns: one runs
        assert len(sampling.places_taken("torch/f.py::test", items["f.py::test"][:4], turn)) > 0
        monkeypatch.setattr(sampling, "TURNS", {"torch": 3 + turn})


def test_what_is_marked_runs_where_every_case_does():
    plain, marked = (Hashed(nodeid=f"tests/torch/f.py::test_{name}") for name in "ab")
    marked.marks = ("every_case",)
    assert sampling.left_out([plain, marked]) == {marked}


def test_every_test_that_is_sampled_by_name_is_there():
    for test in sampling.ALIKE:
        path, _, name = test.partition("::")
        assert f"def {name}(" in (Path(__file__).parent / path).read_text(encoding="utf-8"), test


def test_what_is_asked_for_runs_whole(monkeypatch):
    def config(*args, keyword=""):
        return SimpleNamespace(args=args, option=SimpleNamespace(keyword=keyword))

    monkeypatch.setattr(sampling, "EVERY", False)
    assert not sampling.is_whole(config("tests", "tests/functions/test_call.py"))
    assert sampling.is_whole(config("tests/functions/test_call.py::test_two_threads_at_once"))
    assert sampling.is_whole(config("tests", keyword="halo"))
    assert sampling.number(3, of=5) == 3
    monkeypatch.setattr(sampling, "EVERY", True)
    assert sampling.is_whole(config("tests"))
    assert sampling.number(3, of=5) == 5
