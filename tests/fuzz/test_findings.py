"""A library that is wrong is found out: each way of being wrong once, on the host device."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")

import ooc_cudnn
from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.helpers import helpers
from tests.fuzz.__main__ import main
from tests.fuzz.cases import draw_case
from tests.fuzz.comparing import difference
from tests.fuzz.layouts import Layout
from tests.fuzz.leaks import Leaks
from tests.fuzz.runner import run
from tests.fuzz.shrinking import shrunk

FUNCTION = "softmax_forward"


@pytest.fixture
def case():
    """A legal call with `out`, strided."""
    drawn = draw_case(3, "host", functions=(FUNCTION,), special=False)
    shape = drawn.problem.tensors["x"].shape
    steps = (2,) * len(shape)
    plain = Layout.packed(len(shape))
    return replace(
        drawn, given=("y",), places={"x": "pageable", "y": "pageable"}, alpha=1.0, beta=0.0,
        layouts={"x": plain, "y": replace(plain, steps=steps)}, fault="", room=None, again=False,
    )  # fmt: skip


def spoiled(monkeypatch, spoil):
    """Make the library do something else after a call."""
    right = getattr(ooc_cudnn, FUNCTION)

    def wrong(x, **options):
        made = right(x, **options)
        return spoil(x, made)

    monkeypatch.setattr(ooc_cudnn, FUNCTION, wrong)


def off_by_little(x, y):
    y.flat[0] *= 1.01
    return y


def change_input(x, y):
    x.flat[0] += 1
    return y


def write_beside(x, y):
    base = y.base if y.base.ndim == 1 else y.base.base
    base[-1] = 0
    return y


def another_array(x, y):
    return y.copy()


def use_too_much(x, y):
    get_device("host").arena._peak_bytes = 2**40
    return y


def fail(x, y):
    raise RuntimeError("CUDNN_STATUS_BAD_PARAM")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (off_by_little, "1 of"),
        (change_input, "elements of x were changed"),
        (write_beside, "around y were changed"),
        (another_array, "is not the array that was given"),
        (use_too_much, "bytes under a limit"),
        (fail, "raises RuntimeError: CUDNN_STATUS_BAD_PARAM"),
    ],
)
def test_what_is_wrong_is_said(case, monkeypatch, spoil, said):
    assert run(case) == ([], 1)
    spoiled(monkeypatch, spoil)
    found, _ = run(case)
    assert len(found) == 1
    assert said in found[0]


def test_a_finding_does_not_stop_the_run_and_is_told_with_the_line_that_repeats_it(
    monkeypatch, capsys, tmp_path
):
    spoiled(monkeypatch, fail)
    stored = tmp_path / "fuzz.json"
    status = main(
        ["--count", "4", "--functions", FUNCTION, "pooling_forward", "--no-special",
         "--record", str(stored)]
    )  # fmt: skip
    said = capsys.readouterr().out
    assert status == 1
    assert "python -m tests.fuzz --device host --no-special --functions" in said
    assert "4 cases" in said
    assert "CUDNN_STATUS_BAD_PARAM" in stored.read_text()


def test_a_case_is_shrunk_to_what_matters(case, monkeypatch):
    spoiled(monkeypatch, fail)
    busy = replace(case, settings={"overlap": False}, alpha=0.5, again=True, profiled=True)
    chosen = type("Chosen", (), {"rounded_twice": False, "tune": False})
    least = shrunk(busy, chosen)
    assert (least.settings, least.alpha, least.given, least.again) == ({}, 1.0, (), False)


def test_a_hang_is_found_and_the_run_goes_on(monkeypatch):
    """In processes of their own, under a watchdog: here it has patience for a moment."""
    from tests.fuzz import workers

    class Chosen:
        jobs, device = 1, "host"

    script = workers.Path(__file__).parent / "hang_for_tests.py"
    monkeypatch.setattr(workers, "MODULE", [str(script)])
    outcomes = list(workers.run_apart(range(3), Chosen, []))
    assert [outcome.seed for outcome in outcomes] == [0, 1, 2]
    assert outcomes[1].findings[0] == "hangs"
    assert any("hang_for_tests.py" in line for line in outcomes[1].findings)


def test_what_is_held_after_calls_is_a_leak():
    leaks = Leaks("host")
    leaks.settle()
    assert leaks.findings() == []
    with ooc_cudnn.settings(memory_limit="1MiB"):
        kept = ooc_cudnn.empty((64,))
    assert leaks.findings() == ["leak: 256 device bytes, 0 before"]
    del kept
    assert leaks.findings() == []


def test_threads_of_a_pool_are_no_leak():
    leaks = Leaks("host")
    leaks.settle()
    helpers.share(lambda at: None, 4)
    assert leaks.findings() == []
    ends = threading.Event()
    thread = threading.Thread(target=ends.wait)
    thread.start()
    (found,) = leaks.findings()
    ends.set()
    thread.join()
    assert " threads, " in found


def test_bounds_end_where_the_dtype_does():
    """Rounding once is allowed, twice is not; overflow is infinity; NaN stands where it must."""
    value, error = np.array([70000.0, 1.0, np.nan]), np.zeros(3)
    right = np.array([np.inf, 1.0, np.nan], "f2")
    assert difference((value, error), right) is None
    assert difference((value, error), np.array([65504, 1, np.nan], "f2")) is not None
    assert difference((value, error), np.array([np.inf, 1.001, np.nan], "f2")) is not None
    assert difference((value, error), np.array([np.inf, 1, 0], "f2")) is not None
