"""`benchmarks.engines` on a device whose engines are known."""

import json
from types import SimpleNamespace

import pytest

import ooc_cudnn
from benchmarks import engines
from ooc_cudnn import devices
from ooc_cudnn.bench import script
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
    report = SimpleNamespace(
        arguments=SimpleNamespace(device="host", compiled=False), say=said.append, quick=False
    )
    problem = engines.Problem(torch, engines.QUICK[0], precision, direction, "cpu")
    chosen = {"memory_limit": 2**20, "allow_tf32": precision != "strict"}
    with script.no_stored_engines(), ooc_cudnn.settings(**chosen):
        tables = engines.tuned(report, problem, 60.0)
    wanted = "eng100" if precision == "strict" else "eng101"
    assert {table["engines"][0][0] for table in tables} == {wanted}
    assert all(wanted in line for line in said)


@pytest.mark.parametrize("direction", engines.DIRECTIONS)
@pytest.mark.parametrize("axes", [2, 3])
def test_a_wrong_result_is_found(axes, direction):
    layer = engines.QUICK[0]._replace(axes=axes)
    problem = engines.Problem(torch, layer, "strict", direction, "cpu")
    expected = problem.reference()
    ours = torch.as_tensor(problem.ours("channels_last"))
    assert engines.largest_error(ours, expected) < 1e-6
    assert engines.largest_error(expected + expected.abs().max(), expected) >= 1.0
    assert engines.largest_error(expected * torch.nan, expected) == torch.inf


def test_the_table_says_what_was_gained():
    issue, quick = engines.SETS["issue"][0], engines.QUICK[0]
    table = engines.in_short(
        {
            (issue, "tf32", "forward"): {"heuristics": 1.5, "measured": 1.0},
            (quick, "strict", "backward_data"): {"heuristics": 4.0, "measured": 0.5},
        }
    )
    first, second = table.splitlines()[-2:]
    assert first.split()[-3:] == ["1.50", ">", "1.00"]
    assert second.split()[-3:] == ["4.00", ">", "0.50"]


def test_what_there_is_no_time_for_is_said(tmp_path, capsys):
    asked = ("--quick", "--device", "host", "--seconds", "0", "--output", str(tmp_path))
    assert engines.main([*asked]) == 0
    said = capsys.readouterr().out
    assert "not measured in 0 s: 2x4>8, 9, 3x3 tf32 backward_data, " in said


def test_what_an_earlier_run_lacks_is_measured_and_the_rest_is_kept(tmp_path):
    asked = ("--quick", "--device", "host", "--precisions", "tf32", "--directions", "forward")
    other = ("--quick", "--device", "host", "--precisions", "tf32", "strict")
    first, second = tmp_path / "first", tmp_path / "second"
    assert engines.main([*asked, "--output", str(first)]) == 0
    earlier = first / "engines.json"
    both = [*other, "--directions", "forward", "--resume", str(earlier), "--output", str(second)]
    assert engines.main(both) == 0
    kept, found = (json.loads((each / "engines.json").read_text()) for each in (first, second))
    (name,) = kept["measurements"]
    assert found["measurements"][name] == kept["measurements"][name]
    assert set(found["measurements"]) == {name, name.replace("tf32", "strict")}
    assert found["checks"].items() > kept["checks"].items()
    assert any(note.startswith("1 problems are of an earlier run: ") for note in found["notes"])
    means = {claim["name"]: claim["value"] for claim in found["claims"]}
    assert means["tf32: ours over PyTorch, geometric mean"] == pytest.approx(
        kept["measurements"][name]["ours over PyTorch"]["measured"]
    )
