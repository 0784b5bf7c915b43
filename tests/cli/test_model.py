"""`ooc-cudnn plan --torch`: a PyTorch model in place of a function."""

import importlib
import json
import sys

import pytest

from ooc_cudnn import cli
from ooc_cudnn.network.ir.plan import NetworkPlan
from ooc_cudnn.network.runtime import plan_cache

pytest.importorskip("torch")

MODELS = "tests.support.torch_models"
ASKED = ("--input", "8x3x16x16", "--memory-limit", "24MiB", "--machine", "h200")


def run(capsys, *arguments):
    status = cli.main(["plan", *arguments])
    out, err = capsys.readouterr()
    return status, out, err


def test_a_model_is_planned_and_explained(capsys):
    status, out, err = run(capsys, "--torch", f"{MODELS}:residual", *ASKED)
    assert (status, err) == (0, "")
    assert out.startswith("training_step on h200, policy best")
    assert "of 24.00 MiB" in out


def test_forward_alone_in_another_dtype_as_json(capsys):
    asked = ("--torch", f"{MODELS}:residual", "--forward", "--dtype", "float64", "--json")
    _, out, _ = run(capsys, *asked, *ASKED)
    plan = NetworkPlan.from_json(json.loads(out))
    assert plan.memory_limit == 24 * 2**20 >= plan.device_bytes
    assert plan.name != "training_step"


def test_a_model_of_ones_own_file_is_found(capsys, tmp_path, monkeypatch):
    (tmp_path / "my_own_model.py").write_text(
        "from torch import nn\nmodel = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_own_model", raising=False)
    before = list(sys.path)
    status, out, _ = run(capsys, "--torch", "my_own_model:model", *ASKED)
    assert status == 0
    assert "on h200" in out
    assert sys.path == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--torch", f"{MODELS}:residual"), "--torch needs --input"),
        (("--torch", f"{MODELS}:residul", *ASKED), "did you mean 'residual'?"),
        (("--torch", f"{MODELS}:MODELS", *ASKED), "MODELS is a dict, not a model"),
        (("--torch", "no_such_module:model", *ASKED), "no_such_module"),
        (("--torch", f"{MODELS}:residual", *ASKED[:2], "--memory-limit", "1KiB"), "the least that"),
        (("--torch", f"{MODELS}:residual", "--input", "2x5x8x8"), "expected input"),
        (
            ("--torch", f"{MODELS}:residual", "--input", "2x3x8x8@disk", "--input", "2x3"),
            "all are in one place, not disk and pinned",
        ),
    ],
)
def test_an_error_is_one_line(capsys, arguments, message):
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (1, "")
    assert message in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("fails", "message"),
    [
        ("raise RuntimeError('operator vision::nms does not exist')", "RuntimeError: operator vis"),
        ("from torch import no_such_name", "ImportError: cannot import name 'no_such_name'"),
        ("import no_such_module", "No module named 'no_such_module'"),
        ("model = (", "SyntaxError: '(' was never closed"),
    ],
)
def test_a_module_that_fails_while_it_is_imported_is_one_line(
    capsys, tmp_path, monkeypatch, fails, message
):
    (tmp_path / "my_failing_model.py").write_text(f"{fails}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_failing_model", raising=False)
    importlib.invalidate_caches()
    status, out, err = run(capsys, "--torch", "my_failing_model:model", *ASKED)
    assert (status, out, len(err.splitlines())) == (1, "", 1)
    assert message in err
    assert "No module" in err or "--torch: importing my_failing_model failed" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "one of FUNCTION and --torch is required"),
        (("--torch", "resnet50", *ASKED), "'resnet50' is not MODULE:NAME"),
        (("--torch", "a:b", "--input", "3by4"), "'3by4' is not a shape"),
    ],
)
def test_a_wrong_command_line_names_the_argument(capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        cli.main(["plan", *arguments])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_a_sweep_is_a_table_and_a_picture(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "sweep.svg"
    asked = ("--torch", f"{MODELS}:residual", *ASKED[:2], *ASKED[4:], "--sweep")
    status, out, err = run(capsys, *asked, "--memory-limits", "0.5,24MiB", "--plot", str(path))
    assert (status, err) == (0, "")
    assert out.startswith("Sequential on h200: predicted seconds of a step over memory")
    assert [line.split()[0] for line in out.splitlines()[3:4]] == ["0.50"]
    assert path.read_text().startswith("<?xml")
    _, out, _ = run(capsys, *asked, "--limits", "0.5", "--json", "--forward")
    (point,) = json.loads(out)["points"]
    assert point["device_bytes"] <= point["limit_bytes"]


def test_seconds_are_those_of_the_search(capsys, monkeypatch):
    asked = ("--torch", f"{MODELS}:residual", *ASKED)
    given = []
    planned = plan_cache.plan_step
    monkeypatch.setattr(
        plan_cache,
        "plan_step",
        lambda *of, **options: (given.append(options["seconds"]), planned(*of, **options))[1],
    )
    unasked = plan_cache.current().planning_seconds
    for more, seconds in (((), unasked), (("--seconds", "0.5"), 0.5)):
        status, _, err = run(capsys, *asked, *more)
        assert (status, err) == (0, "")
        assert given.pop() == seconds
    status, _, err = run(capsys, *asked, "--seconds", "-1")
    assert status == 1
    assert "planning_seconds=-1.0 is not a number of seconds" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*ASKED, "--sweep"), "--memory-limit is of one plan, and --sweep makes many"),
        ((*ASKED, "--memory-limits", "0.5"), "--memory-limits is of a sweep"),
        ((*ASKED, "--plot", "x.png"), "--plot is of a sweep"),
        ((*ASKED, "--within", "3"), "--within is of a sweep"),
    ],
)
def test_what_belongs_to_a_sweep(capsys, arguments, message):
    status, _, err = run(capsys, "--torch", f"{MODELS}:residual", *arguments)
    assert (status, err.count("\n")) == (1, 1)
    assert message in err
