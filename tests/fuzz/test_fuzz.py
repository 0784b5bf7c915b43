"""A few hundred drawn calls on the host device; more: `make fuzz ARGS="--count 5000"`."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")

from ooc_cudnn.functions.public import FUNCTIONS
from tests.fuzz.cases import DRAWERS, draw_case
from tests.fuzz.runner import run

#: Cases of each test, so that all of them take less than a minute on two cores.
CASES = 15


@pytest.mark.parametrize("function", sorted(DRAWERS))
def test_drawn_calls(function):
    """Each is right, leaves everything else as it was, and keeps to its memory limit."""
    wrong = []
    for seed in range(CASES):
        case = draw_case(seed, "host", functions=(function,))
        found, _ = run(case)
        if found:
            repeat = f"python -m tests.fuzz --device host --functions {function} --seed {seed}"
            wrong.append("\n  ".join([repeat, str(case), *found]))
    assert not wrong, "\n".join(wrong)


def test_every_function_is_drawn():
    assert set(FUNCTIONS) <= set(DRAWERS)


def test_a_case_is_the_same_wherever_it_is_drawn():
    """What is drawn hangs on the seed alone: a line from the card repeats here."""
    said = {seed: str(draw_case(seed, "host")) for seed in range(40)}
    assert said == {seed: str(draw_case(seed, "host")) for seed in reversed(range(40))}
    assert len(set(said.values())) == len(said)
