"""The notebooks run top to bottom, and what they assert holds; what they share is tested apart."""

import ast
import base64
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ooc_cudnn
from benchmarks.contenders.cases import CASES
from benchmarks.contenders.suite import run_case
from ooc_cudnn.functions.call.plan_api import plan_request
from ooc_cudnn.pipeline.simulate import simulate
from perfmodel import shipped

pytest.importorskip("matplotlib")
import itertools

from PIL import Image

from notebooks import occupancy, pictures, story
from tests.support.sampling import number

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))


@pytest.fixture
def on_host(monkeypatch):
    monkeypatch.setattr(story, "device", lambda: "host")
    with ooc_cudnn.settings(device="host", machine="host", progress=False):
        yield


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Nothing is left in anybody's home; Matplotlib looks for fonts once for all notebooks."""
    folders = {"IPYTHONDIR": "ipython", "JUPYTER_RUNTIME_DIR": "runtime", "MPLCONFIGDIR": "plot"}
    root = tmp_path_factory.mktemp("home")
    return os.environ | {key: str(root / value) for key, value in folders.items()}


@pytest.mark.parametrize("name", number(NAMES[:1], of=NAMES))
def test_a_notebook_runs(name, tmp_path, environment):
    if "pytorch" in name:
        pytest.importorskip("torch")
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    command = [sys.executable, "-m", "notebooks.execute", "--quick", "--output", str(tmp_path)]
    done = subprocess.run(
        [*command, name], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    notebook = json.loads((tmp_path / f"{name}.ipynb").read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in code)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_stored_as_it_is_to_be_read(name):
    text = (FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")
    notebook = json.loads(text)
    cells = notebook["cells"]
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert str(ROOT) not in text
    assert "Traceback" not in text
    assert len({cell["id"] for cell in cells}) == len(cells) <= 18
    prose = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    assert [line[:2] for part in prose for line in part.splitlines() if line[:1] == "#"] == ["# "]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in code), "run `make notebooks`"
    assert any("assert" in "".join(cell["source"]) for cell in code)
    shown = [out["data"] for cell in code for out in cell["outputs"] if "data" in out]
    drawn = [base64.b64decode(data["image/png"]) for data in shown if "image/png" in data]
    assert drawn
    assert max(map(len, drawn)) < 60_000
    for target in re.findall(r"\]\(([^)#]+)", "\n".join(prose)):
        assert (FOLDER / target).exists(), target


def code_cells(name):
    """Its code cells, each with its tags, source and outputs."""
    notebook = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            yield set(cell["metadata"].get("tags", ())), "".join(cell["source"]), cell["outputs"]


def ran(source, variables):
    """What a cell prints, and the text of what it shows."""
    body = ast.parse(source).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    printed, shown = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), "cell", "exec"), variables)
        if last is not None:
            shown = eval(compile(ast.Expression(last.value), "cell", "eval"), variables)
    return printed.getvalue(), "" if shown is None else repr(shown)


#: Those of which some outputs quote records.
QUOTING = [name for name in NAMES if any("record" in tags for tags, _, _ in code_cells(name))]


@pytest.mark.parametrize("name", QUOTING)
def test_what_is_stored_of_records_is_what_they_say_today(name, on_host, monkeypatch):
    """Run only what is tagged: nothing is measured, and other outputs are left alone."""
    if "pytorch" in name:
        pytest.importorskip("torch")
    monkeypatch.setitem(sys.modules, "story", story)
    monkeypatch.setitem(sys.modules, "pictures", pictures)
    monkeypatch.delenv(story.QUICK_VARIABLE, raising=False)
    variables = {}
    for tags, source, outputs in code_cells(name):
        if not tags & {"record", "setup"}:
            continue
        found = ran(source, variables)
        if "record" in tags:
            printed = "".join("".join(out["text"]) for out in outputs if "text" in out)
            data = [out["data"] for out in outputs if "data" in out]
            shown = "".join("".join(each["text/plain"]) for each in data)
            assert found == (printed, shown), "run `make notebooks ARGS=--records`"


@pytest.mark.parametrize("name", NAMES)
def test_a_cell_that_quotes_a_record_is_tagged(name):
    for tags, source, outputs in code_cells(name):
        quotes = re.search(r"story\.(records?|result)\(|\bshipped\(", source)
        said = [line for line in json.dumps(outputs).split("\\n") if "recorded on" in line]
        if said and "pictures.stored" not in source:
            assert "record" in tags, source
        if quotes and "setup" not in tags:
            assert "record" in tags, source


def test_cells_that_quote_records_are_stored_anew_and_no_other(monkeypatch, tmp_path):
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("nbclient")
    from notebooks import execute

    def cell(source, *tags):
        made = nbformat.v4.new_code_cell(source, execution_count=7, metadata={"tags": [*tags]})
        made.outputs = [nbformat.v4.new_output("execute_result", {"text/plain": "old"})]
        return made

    cells = [cell("a", "setup"), cell("b", "record"), cell("c")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "one.ipynb")

    def run(part):
        assert [each.source for each in part.cells] == ["a", "b"]
        for count, each in enumerate(part.cells):
            data = {"text/plain": f"new {each.source}"}
            each.outputs = [nbformat.v4.new_output("execute_result", data, execution_count=count)]

    monkeypatch.setattr(execute, "FOLDER", tmp_path)
    monkeypatch.setattr(execute, "_run", run)
    written = nbformat.read(execute.quote_records("one", tmp_path / "out"), as_version=4)
    assert [each.outputs[0].data["text/plain"] for each in written.cells] == ["old", "new b", "old"]
    assert written.cells[1].outputs[0].execution_count == 7


def test_records_are_of_full_sizes(capsys):
    pytest.importorskip("nbclient")
    from notebooks import execute

    with pytest.raises(SystemExit):
        execute.main(["--quick", "--records"])
    assert "records are of full sizes" in capsys.readouterr().err


def test_the_index_has_every_notebook():
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\((\d\d_\w+)\.ipynb\)", index) == NAMES
    assert len(NAMES) == 9


def test_a_missing_record_is_said_in_words(on_host, tmp_path, capsys):
    assert story.records(["fig14-1gb-tf32"], tmp_path) == {}
    said = capsys.readouterr().out
    assert "Not recorded yet: fig14-1gb-tf32" in said
    assert "python -m benchmarks.contenders" in said
    assert story.sources({}) == "no record yet"
    with pytest.raises(KeyError):
        story.records(["fig14-1gb"], tmp_path)


def test_a_record_says_what_ran_and_where_it_is_from(on_host, tmp_path):
    made = run_case(CASES["fig14-1gb-tf32"], quick=True, device="host")
    (tmp_path / "fig14-1gb-tf32.json").write_text(json.dumps(made))
    record = story.records(["fig14-1gb-tf32"], tmp_path)["fig14-1gb-tf32"]
    ours = made["contenders"]["ooc_cudnn"]
    assert record.verified
    assert record.seconds["ooc_cudnn"] == ours["seconds"]["median"]
    assert record.ratios["ooc_cudnn"] == 1
    assert "needs an NVIDIA GPU" in record.not_run["unified_memory"]
    assert not set(record.seconds) & set(record.not_run)
    assert record.details()["calls"][0]["function"] == "convolution_add_activation_forward"
    assert record.details("unified_memory") == {}
    assert record.source.startswith("recorded on the host device at ")
    assert record.source.endswith("the times mean nothing")
    other = {**made, "environment": {**made["environment"], "commit": "feedface"}}
    commit = made["environment"]["commit"][:7]
    together = story.sources({"a": record, "b": replace(record, data=other), "c": record})
    assert together == record.source.replace(commit, f"{commit} and feedfac")
    assert replace(record, fresh=True).source.startswith("measured here on the host device")


def test_on_a_card_cases_are_measured_anew_unless_it_is_to_be_quick(monkeypatch, tmp_path, capsys):
    asked = []

    def run(case, *, quick, device):
        asked.append((case.name, quick, device))
        status = "measured" if case.name == "fig14-1gb-tf32" else "unavailable"
        return {"status": status, "reason": "no room", "quick": False}

    monkeypatch.setattr(story, "run_case", run)
    monkeypatch.setattr(story, "device", lambda: "cuda")
    monkeypatch.delenv(story.QUICK_VARIABLE, raising=False)
    names = ["fig14-1gb-tf32", "fig14-2gb-tf32"]
    found = story.records(names, tmp_path)
    assert asked == [(name, False, "cuda") for name in names]
    assert list(found) == names[:1]
    assert found[names[0]].fresh
    assert "fig14-2gb-tf32 could not run here: no room" in capsys.readouterr().out
    monkeypatch.setenv(story.QUICK_VARIABLE, "1")
    assert story.is_quick()
    assert story.sized(100, 7) == 7
    assert story.records(names, tmp_path) == {}
    assert len(asked) == 2


def test_a_machine_that_is_too_busy_to_calibrate_is_told_of(monkeypatch):
    def busy(**options):
        assert options == {"quick": True, "save": False}
        warnings.warn("something else used the machine: timings vary", UserWarning, stacklevel=2)
        return shipped("host")

    monkeypatch.setattr(ooc_cudnn, "calibrate", busy)
    model, source = story.calibrated()
    assert model == shipped("h200")
    assert source.startswith("recorded on an H200")
    assert source.endswith("timings vary")
    monkeypatch.setattr(ooc_cudnn, "calibrate", lambda **options: shipped("host"))
    assert story.calibrated() == (shipped("host"), "measured here")


def _simulated(images, limit):
    x = ooc_cudnn.TensorSpec((images, 16, 64, 64), placement="pinned")
    w = ooc_cudnn.TensorSpec((16, 16, 3, 3), placement="pinned")
    call = {"x": x, "w": w, "padding": 1, "out": x, "machine": "h200", "memory_limit": limit}
    request = plan_request("convolution_forward", **call)
    plan = ooc_cudnn.plan("convolution_forward", **call)
    return request, plan, simulate(request, plan)


def test_every_step_is_found_in_the_block_that_it_works_on():
    request, plan, trace = _simulated(16, "1MiB")
    held, begin = occupancy.held(request, plan, trace), min(s.start_seconds for s in trace.steps)
    for phase, stream in (("filled", "copy_in"), ("emptied", "copy_out")):
        found = sorted((h.start_seconds, h.stop_seconds) for h in held if h.phase == phase)
        ran = [(s.start_seconds, s.stop_seconds) for s in trace.steps if s.stream == stream]
        assert np.allclose(found, np.array(sorted(ran)) - begin, rtol=0, atol=1e-12)
    # each computation reads x and w and writes y
    computed = sum(s.stream == "compute" for s in trace.steps)
    used = [h for h in held if h.phase == "used"]
    assert [sum(h.block.startswith(name) for h in used) for name in "xwy"] == [computed] * 3
    # no block is in two states at once, and w waits from its only copy to the last piece
    for block in {h.block for h in held}:
        spans = sorted((h.start_seconds, h.stop_seconds) for h in held if h.block == block)
        assert all(a[1] <= b[0] + 1e-12 for a, b in itertools.pairwise(spans))
    filters = [h for h in held if h.block == "w slot 0"]
    assert [h.phase for h in filters].count("filled") == 1
    assert {h.nbytes for h in filters} == {16 * 16 * 9 * 4}


def test_what_is_in_use_never_exceeds_what_is_reserved():
    request, plan, trace = _simulated(16, "1MiB")
    seconds, nbytes = occupancy.in_use(occupancy.held(request, plan, trace), plan)
    assert list(nbytes) == [purpose for purpose, _ in plan.memory]
    assert np.all(np.diff(seconds) > 0)
    for purpose, count in plan.memory:
        assert 0 <= min(nbytes[purpose]) <= max(nbytes[purpose]) <= count
    assert [counts[-1] for counts in nbytes.values()] == [0] * len(nbytes)
    # one piece: x and w come in, y is made, and leaves
    request, plan, trace = _simulated(1, "16MiB")
    phases = [(h.block, h.phase) for h in occupancy.held(request, plan, trace)]
    assert plan.pieces == 1
    assert [phase for block, phase in phases if block == "x slot 0" and phase != "waiting"] == [
        "filled",
        "used",
    ]
    assert [phase for block, phase in phases if block == "y slot 0" and phase != "waiting"] == [
        "used",
        "emptied",
    ]


def test_a_trace_of_another_plan_is_refused():
    request, plan, _ = _simulated(16, "1MiB")
    _, _, other = _simulated(2, "1MiB")
    with pytest.raises(ValueError, match="not the plan's"):
        occupancy.held(request, plan, other)
    with pytest.raises(ValueError, match="phase must be one of"):
        occupancy.Held("x slot 0", "x: 1 slot", "lost", 1, 0.0, 1.0)


def _pictures():
    request, plan, trace = _simulated(16, "1MiB")
    held = occupancy.held(request, plan, trace)
    said = {"title": "a title", "source": "made up"}
    yield pictures.bars({"a": {"x": 1, "y": 2000}, "b": {"y": 3}}, unit="s", **said)
    yield pictures.bars({"a": {"x": 1, "y": 2000}}, unit="s", lower=0.1, **said)
    parts = {"copy_in": [1, 2], "compute": [2, 1]}
    yield pictures.stacks(["a", "b"], parts, unit="s", line=("call", [2, 2]), **said)
    dots = {"b": ([1, 2], [2, 2])}
    yield pictures.curves(
        {"a": ([1, 2], [3, 4])}, dots=dots, x="x", y="y", log="xy", marks={"here": 1.5}, **said
    )
    table = np.array([[1.0, np.nan], [2.0, 3.0]])
    yield pictures.grid(
        table, [1, 2], [3, 4], x="x", y="y", unit="s", stars={"chosen": (1, 3)}, **said
    )
    yield pictures.slots(held, until_seconds=trace.seconds, **said)
    yield pictures.arena(*occupancy.in_use(held, plan), plan, source="made up")


def test_pictures_are_small_and_say_what_they_show():
    for picture in _pictures():
        with Image.open(io.BytesIO(picture._repr_png_())) as image:
            assert image.size[0] == pictures.WIDTH_INCHES * pictures.DPI
            assert len(set(image.convert("L").tobytes())) > 10
        assert len(picture.png) < 60_000
        assert repr(picture).startswith("[picture: ")
        assert "made up" in picture.about


def test_the_streams_of_a_call_are_drawn(on_host):
    x, w = np.ones((4, 2, 8, 8), "float32"), np.ones((2, 2, 3, 3), "float32")
    with ooc_cudnn.profile() as p:
        ooc_cudnn.convolution_forward(x, w)
    picture = pictures.streams(p)
    assert picture.png.startswith(b"\x89PNG")
    assert str(p.calls[0]) in picture.about


def test_a_quick_run_leaves_what_is_stored_alone(monkeypatch, tmp_path, capsys):
    """Its figures mean nothing; `build` is not tracked."""
    pytest.importorskip("nbclient")
    from notebooks import execute

    written = []
    monkeypatch.setattr(execute, "execute", lambda name, folder: written.append(folder))
    monkeypatch.setenv(execute.QUICK_VARIABLE, "")
    assert execute.main(["--quick", "01_quickstart"]) == 0
    assert execute.main(["01_quickstart"]) == 0
    assert execute.main(["--quick", "--output", str(tmp_path), "01_quickstart"]) == 0
    assert written == [ROOT / "build" / "notebooks", FOLDER, tmp_path]
    assert "build/" in (ROOT / ".gitignore").read_text(encoding="utf-8").split()
