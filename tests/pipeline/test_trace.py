"""Traces: figures, Chrome's format, pictures."""

from __future__ import annotations

import json

import pytest

from ooc_cudnn.pipeline.trace import (
    StepTrace,
    Trace,
    chrome_events,
    figure_of,
    plot,
    save_chrome,
)
from ooc_cudnn.plotting import PART_COLOURS
from tests.support.colours import check_one_meaning_a_colour, meanings

TRACE = Trace(
    (
        StepTrace("copy_in", 0, "x", 1.0, 2.0, 100),
        StepTrace("compute", 0, "x, w, y", 2.0, 2.5, 0),
        StepTrace("copy_in", 1, "x", 2.0, 2.25, 50),
        StepTrace("copy_out", 0, "y", 2.5, 4.0, 30),
    )
)


def test_figures():
    assert TRACE.seconds == 3.0
    assert Trace(()).seconds == 0
    assert TRACE.busy_seconds("copy_in") == 1.25
    assert TRACE.moved_bytes("copy_in") == 150
    assert TRACE.moved_bytes("compute") == 0


@pytest.mark.parametrize(
    ("step", "pattern"),
    [
        (("copy", 0, "x", 0, 1, 0), "stream must be"),
        (("compute", 0, "x", 2, 1, 0), "before it starts"),
    ],
)
def test_steps_that_cannot_be(step, pattern):
    with pytest.raises(ValueError, match=pattern):
        StepTrace(*step)


def test_chrome(tmp_path):
    events = chrome_events(TRACE, process=7, label="a call")
    assert {event["pid"] for event in events} == {7}
    steps = [event for event in events if event["ph"] == "X"]
    assert (steps[0]["ts"], steps[0]["dur"], steps[0]["args"]) == (
        1e6,
        1e6,
        {"bytes": 100, "task": "", "operands": "x"},
    )
    assert steps[0]["name"] == "x piece 0"
    assert len({event["tid"] for event in steps}) == 3
    save_chrome([("one", TRACE), ("two", TRACE)], tmp_path / "t.json")
    written = json.loads((tmp_path / "t.json").read_text())
    assert len(written["traceEvents"]) == 2 * len(events)


def test_steps_of_several_tasks_are_named_by_them():
    tasks = ("a forward", "a data gradient")
    steps = [StepTrace("compute", i, "x, y", i, i + 1, 0, task) for i, task in enumerate(tasks)]
    events = chrome_events(Trace(tuple(steps)), process=0, label="a step")
    named = [event["name"] for event in events if event["ph"] == "X"]
    assert named == ["a forward piece 0", "a data gradient piece 1"]


@pytest.mark.parametrize("pieces", [1, 50])
@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_plot(tmp_path, pieces, suffix):
    pytest.importorskip("matplotlib")
    steps = [StepTrace("compute", i, "x", i * 0.1, i * 0.1 + 0.05, 0) for i in range(pieces)]
    path = tmp_path / f"t.{suffix}"
    plot([("call: of $mathy% text_\nrest", Trace(tuple(steps))), ("empty", Trace(()))], path)
    assert path.stat().st_size > 1000


def test_of_a_step_the_picture_says_what_is_forward_and_what_is_backward():
    pytest.importorskip("matplotlib")
    parts = ["forward"] * 12 + ["recomputing"] * 12 + ["backward"] * 12
    steps = [
        StepTrace("compute", i, "x", i, i + 0.9, 0, f"call {i}", part)
        for i, part in enumerate(parts)
    ]
    steps.append(StepTrace("copy_in", 40, "x", 0, 1, 8, "fetch of x"))
    figure = figure_of([("training_step\nof 36 calls", Trace(tuple(steps)))])
    whole, enlarged = figure.axes
    assert meanings(figure) == {dark: {part} for part, (dark, _) in PART_COLOURS.items()}
    check_one_meaning_a_colour(figure)
    assert [text.get_text() for text in whole.get_legend().get_texts()] == list(PART_COLOURS)
    assert enlarged.get_legend() is None
    assert "call 18" in {text.get_text() for text in enlarged.texts}
    plain = figure_of([("call", TRACE)])
    assert plain.axes[0].get_legend() is None
