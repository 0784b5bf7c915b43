"""Drawn calls, and drawn modules of PyTorch, on the host device.

`make test` draws 5 calls of one function in three, and `make drawn` 300 modules. CI runs both.
`make test-all` draws 15 calls of every function, and the modules.

More: `make fuzz ARGS="--count 5000"`, and with `--modules`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")

from ooc_cudnn.functions.call.decorator import FUNCTIONS
from tests.fuzz.cases import DRAWERS, draw_case
from tests.fuzz.draw_module import draw_module
from tests.fuzz.modules import reproduction, run_module
from tests.fuzz.runner import run
from tests.support.sampling import ALIKE, number

#: Cases of each test, so that all of them take less than a minute on two cores.
CASES = number(5, of=15)


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


#: Drawn modules: so many in each test, and tests, so that all of them take about 90 s on two cores.
MODULES, OF_THEM = 15, 20


@pytest.mark.drawn
@pytest.mark.parametrize("first", range(0, MODULES * OF_THEM, MODULES))
@pytest.mark.usefixtures("fewest_plans")
def test_drawn_modules(first):
    """Each is equal to PyTorch under its limit, or is refused before anything has changed.

    Where a module fails, ``python -m tests.fuzz --modules --shrink --seed ...`` says a shorter one.
    """
    wrong = []
    for seed in range(first, first + MODULES):
        program = draw_module(seed)
        verdict = run_module(program)
        if verdict.findings:
            wrong.append(
                "\n  ".join([f"python -m tests.fuzz --modules --seed {seed}", *verdict.findings])
            )
            if len(wrong) == 1:
                wrong.append(reproduction(program, verdict))
    assert not wrong, "\n".join(wrong)


def test_every_module_is_drawn_in_ci_and_this_page_says_how_many():
    assert ALIKE["fuzz/test_fuzz.py::test_drawn_modules"] == (1,)
    assert f" {MODULES * OF_THEM} modules." in __doc__
    ci = Path(__file__).parents[2] / ".ci/run"
    assert "for target in check test drawn;" in ci.read_text(encoding="utf-8")


def test_every_function_is_drawn():
    assert set(FUNCTIONS) <= set(DRAWERS)


def test_a_case_is_the_same_wherever_it_is_drawn():
    """What is drawn hangs on the seed alone: a line from the card repeats here."""
    said = {seed: str(draw_case(seed, "host")) for seed in range(40)}
    assert said == {seed: str(draw_case(seed, "host")) for seed in reversed(range(40))}
    assert len(set(said.values())) == len(said)
    drawn = {seed: draw_module(seed) for seed in range(8)}
    assert drawn == {seed: draw_module(seed) for seed in reversed(range(8))}
    assert len({program.source for program in drawn.values()}) == len(drawn)
