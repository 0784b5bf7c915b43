"""`benchmarks.engines` on a device whose engines are known."""

from types import SimpleNamespace

import pytest

import ooc_cudnn
from benchmarks import common, engines
from ooc_cudnn import devices
from tests.support.clock import Clock
from tests.support.engines_device import EnginesDevice
from tests.support.fake_cudnn import FakeEngine, NumericalNote

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("direction", engines.DIRECTIONS)
@pytest.mark.parametrize("precision", ["tf32", "strict"])
def test_each_problem_is_tuned_as_its_precision_admits(monkeypatch, direction, precision):
    Clock(monkeypatch, look_seconds=1e-12)
    rounds = FakeEngine(101, 1e-8, notes=(NumericalNote.TENSOR_CORE,))
    device = EnginesDevice([FakeEngine(100, 3e-8), rounds], monkeypatch)
    monkeypatch.setitem(devices._resolved, "host", device)
    said = []
    report = SimpleNamespace(arguments=SimpleNamespace(device="host"), say=said.append)
    problem = engines.Problem(torch, engines.QUICK[0], precision, direction, "cpu")
    with common.no_stored_engines(), ooc_cudnn.settings(memory_limit=2**20):
        tables = engines.tuned(report, problem)
    wanted = "eng100" if precision == "strict" else "eng101"
    assert {table["engines"][0][0] for table in tables} == {wanted}
    assert all(wanted in line for line in said)


def test_a_wrong_result_is_found():
    problem = engines.Problem(torch, engines.QUICK[0], "strict", "forward", "cpu")
    expected = problem.reference()
    assert problem.error(problem.ours("channels_last"), expected) < 1e-6
    assert problem.error(expected + expected.abs().max(), expected) >= 1.0
    assert problem.error(expected * torch.nan, expected) == torch.inf
