"""``ooc-cudnn network``: plans, pictures, and steps that run."""

import json

import pytest

import ooc_cudnn
from ooc_cudnn import cli
from ooc_cudnn.network.ir.plan import NetworkPlan
from tests.support.fake_cudnn import FakeEngine
from tests.support.tuned import engines_maker

SMALL = ("network", "vgg16", "--batch", "2", "--image", "32", "--width", "0.0625")


def run(capsys, *arguments):
    status = cli.main([*arguments])
    out, err = capsys.readouterr()
    return status, out, err


def test_a_step_is_explained(capsys):
    status, out, err = run(
        capsys, "network", "resnet50", "--batch", "8", "--limit", "2GiB", "--machine", "p100",
        "--policy", "offload",
    )  # fmt: skip
    assert (status, err) == (0, "")
    assert "on p100, policy offload" in out
    assert "of 2.00 GiB" in out


def test_a_plan_as_json_can_be_read_back(capsys):
    _, out, _ = run(capsys, *SMALL, "--machine", "titanx", "--policy", "keep", "--json")
    plan = NetworkPlan.from_json(json.loads(out))
    assert (plan.machine, plan.policy) == ("titanx", "keep")
    assert plan.device_bytes <= plan.memory_limit


def test_json_stands_alone(capsys):
    _, out, err = run(
        capsys, *SMALL, "--device", "host", "--limit", "20MB", "--policy", "keep", "--json", "--run"
    )
    assert NetworkPlan.from_json(json.loads(out)).policy == "keep"
    assert "step 1: loss " in err


def test_a_sweep_is_a_table_and_a_picture(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "sweep.svg"
    asked = (*SMALL, "--sweep", "--limits", "0.8,8MiB", "--policy", "offload", "--policy", "keep")
    status, out, err = run(capsys, *asked, "--machine", "h200", "--plot", str(path))
    assert (status, err) == (0, "")
    assert "vgg16 on h200: predicted seconds of a step over memory" in out
    first_words = [line.split()[0] for line in out.splitlines() if line]
    assert first_words[1:-1] == ["of", "limit", "offload", "keep", "bound", "offload"]
    assert f"drawn in {path}" in out
    assert path.read_text().startswith("<?xml")


def test_progress_of_a_sweep_is_told(capsys):
    told = []
    with ooc_cudnn.settings(progress=lambda done, total: told.append((done, total))):
        status, out, _ = run(
            capsys, *SMALL, "--sweep", "--limits", "0.8", "--policy", "keep", "--policy", "offload",
            "--machine", "h200", "--json",
        )  # fmt: skip
    assert (status, told) == (0, [(1, 2), (2, 2)])
    assert [each["policy"] for each in json.loads(out)["points"]] == ["keep", "offload"]


def test_a_step_is_drawn(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "step.svg"
    status, out, _ = run(
        capsys, *SMALL, "--machine", "titanx", "--policy", "offload", "--plot", str(path)
    )
    assert status == 0
    assert f"drawn in {path}" in out
    assert path.read_text().startswith("<?xml")


def test_steps_run(capsys):
    status, out, _ = run(capsys, *SMALL, "--device", "host", "--limit", "20MB", "--run", "2")
    assert status == 0
    first, second = (line for line in out.splitlines() if line.startswith("step "))
    assert first.startswith("step 1: loss ")
    assert "measured" in first
    # Parameters stay as they are; only dropout is drawn anew.
    assert second.startswith("step 2: loss ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("network", "vgg"), "give one of alexnet, densenet121"),
        (("network", "resnet5"), "did you mean 'resnet50'?"),
        ((*SMALL, "--sweep", "--limits", "0.5,much"), "--memory-limits='much'"),
        ((*SMALL, "--policy", "none"), "invalid choice"),
        ((*SMALL, "--batch", "0"), "argument --batch: must be 1 or more, not 0"),
        ((*SMALL, "--device", "host", "--machine", "h200"), "not allowed"),
    ],
)
def test_a_wrong_command_line(capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        cli.main([*arguments])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_what_cannot_be_done_is_one_line(capsys):
    status, _, err = run(capsys, *SMALL, "--machine", "h200", "--run")
    assert status == 1
    assert err == "ooc-cudnn: error: --run measures this machine; leave --machine out\n"
    status, _, err = run(capsys, *SMALL, "--machine", "h200", "--policy", "keep", "--limit", "1kB")
    assert status == 1
    assert "smallest" in err or "least" in err
    for asked, said in (
        (("--run", "-1"), "--run takes a number of steps, not -1"),
        (("--limits", "0.5"), "--memory-limits are of a sweep"),
        (("--policy", "keep", "--policy", "best"), "several policies are of a sweep"),
        (("--sweep", "--limit", "1GiB"), "--memory-limit is of one plan"),
        (("--sweep", "--run"), "--run is of one plan"),
        (("--width", "0"), "width must be a positive number, not 0.0"),
        (("--width", "nan"), "width must be a positive number, not nan"),
        (("--batch", "10000000000000"), "is larger than any memory"),
    ):
        status, _, err = run(capsys, *SMALL, *asked)
        assert (status, err.count("\n")) == (1, 1)
        assert said in err


def test_engines_are_measured_first(capsys, monkeypatch, tmp_path):
    engines_maker(monkeypatch, tmp_path)(FakeEngine(100, 3e-8), FakeEngine(101, 1e-8))
    asked = ("--policy", "keep", "--limit", "64MiB", "--device", "host", "--tune")
    status, out, err = run(capsys, *SMALL, *asked)
    assert (status, out.startswith("training_step on ")) == (0, True)
    (said,) = [line for line in err.splitlines() if "engines of" in line]
    assert int(said.split()[2]) > 20
    assert "engines of 0 convolutions" in run(capsys, *SMALL, *asked)[2]


def test_a_device_with_one_way_to_compute_has_no_engines(capsys):
    status, _, err = run(capsys, *SMALL, "--device", "host", "--tune")
    assert status == 1
    assert "host has one way to compute a convolution" in err
