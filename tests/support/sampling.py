"""Of large products of parameters `make test` runs a sample; `make test-all` runs every case.

Tests of some folders and files, which go through everything that a function may be given, are
sampled where they have several parameters. What goes through cases of its own asks `number` how
many it takes.
"""

from __future__ import annotations

import os

#: Of tests in these folders and files of `tests/` one case in so many runs.
ONE_IN = {
    "functions": 32, "devices": 6, "operations": 6, "torch/test_operations.py": 9,
    "torch/test_inference_blocks.py": 2,
}  # fmt: skip
#: Whether every case runs: `make test-all`.
EVERY = bool(os.environ.get("OOC_TESTS_EVERY_CASE"))


def number(few, *, of):
    """So few of the cases that a test goes through, or all where every case runs."""
    return of if EVERY else few


def sample(cases, one_in):
    """The places of one in so many cases, with each value of each parameter in at least one.

    Values are numbered in the order they come in. Where the numbers of a case sum to a multiple of
    `one_in` it is taken: of two parameters a diagonal, of three every pair of values that such a
    share has room for. Last come the values that no case has yet.

    Parameters
    ----------
    cases : list of tuples
        The values of each case, one a parameter.

    Examples
    --------
    >>> cases = [(a, b) for a in "xyz" for b in "pqr"]
    >>> [cases[at] for at in sample(cases, 3)]
    [('x', 'p'), ('y', 'r'), ('z', 'q')]
    >>> sample([("x", "p"), ("x", "q"), ("y", "q")], 3)
    [0, 1, 2]
    """
    numbers = {}  # of a parameter's value: a count of those before it
    counts = [0] * max(map(len, cases), default=0)
    for values in cases:
        for at, value in enumerate(values):
            if (at, value) not in numbers:
                numbers[at, value] = counts[at]
                counts[at] += 1
    taken = [
        place
        for place, values in enumerate(cases)
        if sum(numbers[each] for each in enumerate(values)) % one_in == 0
    ]
    seen = {each for place in taken for each in enumerate(cases[place])}
    for place, values in enumerate(cases):
        if not seen.issuperset(enumerate(values)):
            taken.append(place)
            seen.update(enumerate(values))
    return sorted(taken)


def values_of(item):
    """The values of a test's parameters; a name such as "gradient of data: 2d" has two."""
    found = []
    for value in item.callspec.params.values():
        found += value.split(": ") if isinstance(value, str) else [str(value)]
    return tuple(found)


def is_whole(config):
    """Whether all cases run: they are asked for, or what runs is named."""
    return EVERY or config.option.keyword or any("::" in argument for argument in config.args)


def left_out(items):
    """The cases in those folders and files that are not in the sample of their test."""
    cases = {}
    for item in items:
        test = item.nodeid.partition("[")[0]
        path = test.partition("::")[0].split("/")[1:]
        place = next((each for each in (*path[:1], "/".join(path)) if each in ONE_IN), None)
        if place and hasattr(item, "callspec"):
            cases.setdefault((place, test), []).append(item)
    found = set()
    for (place, _), of_test in cases.items():
        taken = sample([values_of(item) for item in of_test], ONE_IN[place])
        found |= set(of_test) - {of_test[at] for at in taken}
    return found
