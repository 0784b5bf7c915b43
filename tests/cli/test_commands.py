import json
import subprocess
import sys
import warnings

import pytest

import ooc_cudnn
from ooc_cudnn import cli
from ooc_cudnn.call_planner.plan import Plan
from ooc_cudnn.cli import plan as cli_plan
from ooc_cudnn.settings import current

PLAN = [
    *("plan", "convolution_add_activation_forward", "--x", "512x64x256x256", "--w", "64x64x3x3"),
    *("--padding", "1", "--dtype", "float32", "--placement", "pinned", "--machine", "h200"),
    *("--memory-limit", "16GiB"),
]


def run(capsys, *arguments):
    status = cli.main([*arguments])
    out, err = capsys.readouterr()
    return status, out, err


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"ooc-cudnn {ooc_cudnn.__version__}\n"


COMMANDS = "doctor", "calibrate", "tune", "plan", "network", "demo", "bench"


def test_help_names_the_commands(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    out = capsys.readouterr().out
    assert all(f"    {name} " in out for name in COMMANDS)


def test_plan_explains(capsys):
    status, out, err = run(capsys, *PLAN)
    assert (status, err) == (0, "")
    assert "512 x 64 x 256 x 256" in out
    assert "of a limit of 16.00 GiB" in out
    assert "pageable" not in out  # the result is pinned, too
    assert "<- binds" in out


def test_plan_as_json_can_be_read_back(capsys):
    _, out, _ = run(capsys, *PLAN, "--json")
    plan = Plan.from_json(json.loads(out))
    specs = dict(plan.operands)
    assert plan.machine == "h200"
    assert specs["b"].shape == (64,)
    assert {spec.placement for spec in specs.values()} == {"pinned"}


def test_plan_takes_every_argument(capsys):
    status, out, _ = run(
        capsys, "plan", "convolution_add_activation_forward", "--x", "4x8x40x50@disk",
        "--w", "6x4x3x5@device", "--b", "6@pageable", "--padding", "(0,1),2", "--stride", "1,2",
        "--dilation", "1", "--groups", "2", "--activation", "elu", "--coef", "0.5",
        "--dtype", "float64", "--placement", "pageable", "--out-placement", "disk",
        "--device", "host", "--memory-limit", "100kB", "--json",
    )  # fmt: skip
    specs = dict(Plan.from_json(json.loads(out)).operands)
    assert status == 0
    assert specs["y"].shape == (4, 6, 39, 25)
    placements = {name: spec.placement for name, spec in specs.items()}
    assert placements == {"x": "disk", "w": "device", "b": "pageable", "y": "disk"}
    assert {spec.dtype for spec in specs.values()} == {"float64"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*PLAN[:-1], "lots"), "memory_limit='lots' is not a size"),
        ((*PLAN[:-1], "1kB"), "the least that would do is"),
        ((*PLAN, "--machine", "h201"), "did you mean 'h200'?"),
        ((*PLAN, "--groups", "7"), "groups"),
        ((*PLAN, "--activation", "rellu"), "activation"),
        (("demo", "--megapixels", "0"), "megapixels=0 must be"),
        (("demo", "--device", "tpu"), "device='tpu' is not a device"),
    ],
)
def test_an_error_is_one_line(capsys, arguments, message):
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (1, "")
    assert err.startswith("ooc-cudnn: error: ")
    assert message in err
    assert err.count("\n") == 1


def test_traceback_shows_where(capsys):
    with pytest.raises(ValueError, match="lots"):
        cli.main(["--traceback", *PLAN[:-1], "lots"])


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("bench", "--repeats", "0"),
        ("plan",),
        (*PLAN, "--x", "1by2"),
        (*PLAN, "--x", "1x2x3@moon"),
        (*PLAN, "--padding", "one"),
        (*PLAN, "--padding", "True"),
        (*PLAN, "--placement", "moon"),
        (*PLAN, "--device", "host"),  # beside --machine it would mean nothing
        ("calibrate", "--slow"),
    ],
)
def test_a_wrong_command_line_exits_with_2(capsys, arguments):
    with pytest.raises(SystemExit) as stop:
        cli.main([*arguments])
    assert stop.value.code == 2
    assert "usage: ooc-cudnn" in capsys.readouterr().err


def test_ctrl_c_exits_with_130(capsys, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_plan, "plan", interrupted)
    status, _, err = run(capsys, *PLAN)
    assert status == 130
    assert err == "ooc-cudnn: stopped\n"


def test_a_fault_of_the_library_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr(cli_plan, "plan", lambda *a, **k: [][0])
    with pytest.raises(IndexError):
        cli.main(PLAN)


def test_warnings_are_notes(capsys, monkeypatch):
    plan = cli_plan.plan

    def warns(*arguments, **options):
        warnings.warn("not\ncalibrated", UserWarning, stacklevel=1)
        return plan(*arguments, **options)

    monkeypatch.setattr(cli_plan, "plan", warns)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        status, _, err = run(capsys, *PLAN)
    assert status == 0
    assert err == "ooc-cudnn: note: not calibrated\n"


def test_doctor_exits_by_what_it_finds(capsys, monkeypatch):
    monkeypatch.setattr("ooc_cudnn.doctor.diagnosis.run_probe", lambda modules: [("driver", {})])
    status, out, _ = run(capsys, "doctor")
    assert status == 0
    assert "This set-up works." in out
    with ooc_cudnn.settings(device="cuda"):
        status, out, _ = run(capsys, "doctor", "--json")
    assert status == 1
    facts = json.loads(out)
    assert facts["findings"][0]["level"] == "broken"
    assert facts["settings"]["device"] == ["cuda", "block"]


def test_calibrate_says_three_lines_and_the_table_where_asked_to(capsys, monkeypatch, tmp_path):
    asked = []

    def calibrate(device, *, save, quick):
        asked.append((device.kind, save, quick))
        return ooc_cudnn.MachineModel.from_json(shipped_with_quality())

    monkeypatch.setattr("ooc_cudnn.calibration.run.calibrate", calibrate)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    status, out, _ = run(capsys, "calibrate", "--device", "host", "--quick")
    assert status == 0
    assert asked == [("host", True, True)]
    measured, sure, kept = out.splitlines()
    assert measured.startswith("measured  host: copies 18.23 GB/s in, 16.93 GB/s out; ")
    assert sure.startswith("how sure  ")
    assert kept.startswith(f"kept in   {tmp_path}")
    _, out, _ = run(capsys, "calibrate", "--device", "host", "--table", "--no-save")
    assert asked[-1] == ("host", False, False)
    assert out.endswith("kept in   no file (--no-save)\n")
    for words in ("copy_in/pinned", "8 GB/s", "1.5%", "2.5%"):
        assert words in out


def test_calibrate_draws_where_it_is_asked_to(capsys, monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    data = shipped_with_quality()
    data["samples"] = {"copy_in/pinned": {"work": [1e6, 2e6], "seconds": [1e-4, 2e-4]}}
    model = ooc_cudnn.MachineModel.from_json(data)
    monkeypatch.setattr("ooc_cudnn.calibration.run.calibrate", lambda device, **_: model)
    picture = tmp_path / "fit.png"
    status, out, _ = run(capsys, "calibrate", "--device", "host", "--plot", str(picture))
    assert status == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert out.endswith(f"drawn in {picture}\n")


def test_calibrate_asks_for_matplotlib_before_it_measures(capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(
        "ooc_cudnn.calibration.run.calibrate", lambda *a, **k: pytest.fail("measured")
    )
    status, _, err = run(capsys, "calibrate", "--device", "host", "--plot", "fit.png")
    assert status == 1
    assert "pip install 'ooc_cudnn[plot]'" in err


def shipped_with_quality():
    from perfmodel import shipped

    data = shipped("host").to_json()
    data["quality"] = {"copy_in/pinned": {"residual": 0.015, "held_out_error": 0.025}}
    return data


def test_demo_hands_its_options_on(capsys, monkeypatch, tmp_path):
    seen = {}
    monkeypatch.setattr(
        "ooc_cudnn.demo.run_demo",
        lambda **options: seen.update(options, device=current().device),
    )
    status, _, _ = run(
        capsys, "demo", "--megapixels", "0.5", "--memory-limit", "1MiB", "--device", "host",
        "--output", str(tmp_path), "--keep",
    )  # fmt: skip
    assert status == 0
    assert callable(seen.pop("say"))
    assert seen == {
        "megapixels": 0.5, "memory_limit": "1MiB", "output": tmp_path, "keep": True,
        "device": "host",
    }  # fmt: skip


def test_a_closed_pipe_is_no_error():
    done = subprocess.run(
        f"{sys.executable} -m ooc_cudnn.cli {' '.join(PLAN)} --json | head -c 1",
        shell=True,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "{"
    assert done.stderr == ""
