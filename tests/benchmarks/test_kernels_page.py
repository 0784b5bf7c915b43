"""The page on kernels shows every case of a record, in its line and column."""

import json
import math

import pytest

from benchmarks.kernel_cases import Laid, cases, scaled
from benchmarks.kernels import holds, line
from benchmarks.pages import kernels
from ooc_cudnn.bench.record import load_record


def row(name, share, time_over=None, bound=None):
    found = {"name": name, "share": share, "share_bound": bound, "over_pytorch": time_over}
    found |= {"time_bound": 1.0, "GB/s": 4000.0, "ours": {"median": 1e-4}}
    return found | {"holds": holds(found)}


@pytest.fixture
def folder(tmp_path):
    measured = {
        "relayout": [row("CV6 NCHW to NHWC", 0.95, 0.5, 0.9), row("CV5 scaled NHWC to CHWN", 0.6)],
        "softmax": [row("128 x 10 forward", 0.3, 2.0) | {"public": 2e-5}],
        "pooling": [row("PL1 average+ CHWN backward", 0.8, None, 0.85)],
    }
    environment = {"gpu": {"name": "a card"}, "date": "2026-11-23T00:00:00"}
    record = {"measurements": measured, "environment": environment, "notes": ["one note"]}
    (tmp_path / "kernels.json").write_text(json.dumps(record))
    return tmp_path


def test_every_case_has_its_cell(folder):
    page = kernels.figures(folder)
    assert "| CV6 | 95%, 2.00 x | - |" in page
    assert "| CV5 scaled | - | 60% |" in page
    assert "**30%, 0.50 x**; called: 20 us" in page
    assert "| PL1 average+ | **80%** |" in page
    assert "- one note" in page


def test_the_picture_has_every_case(folder):
    shown = kernels.drawn(folder)
    assert shown["relayout"] == [["CV6", "NCHW to NHWC", 0.95], ["CV5 scaled", "NHWC to CHWN", 0.6]]


def test_nothing_measured_is_said(tmp_path):
    assert "not measured yet" in kernels.figures(tmp_path)
    assert kernels.drawn(tmp_path) == {}


def test_every_case_has_a_name_of_its_own_that_the_page_takes_apart():
    every = cases(quick=False)
    assert len({case.name for case in every}) == len(every)
    for case in every:
        assert all(kernels.apart(case.group, {"name": case.name}))
        if case.group == "pooling":
            assert 4 * math.prod(case.tensors["dx" if "dx" in case.tensors else "x"].shape) > 256e6


def test_layouts_and_sizes():
    assert Laid((2, 3, 4, 5), "CHWN").strides() == (1, 40, 10, 2)
    assert Laid((2, 3, 4, 5), "NHWC").strides() == (60, 1, 15, 3)
    assert scaled((64, 96, 110, 110), 256 * 10**6)[0] == 64


def test_a_line_says_what_is_missed():
    assert line(row("PL1 max NCHW forward", 0.8, 0.5, 0.85))[-1] == "MISS"
    assert line(row("PL1 max NCHW forward", 0.9, 1.5, 0.85))[-1] == "MISS"
    assert line(row("PL1 max NCHW forward", 0.9, 0.9, 0.85))[-1] == "PASS"


@pytest.mark.parametrize(
    ("spoil", "unwritten"), [(lambda y: 1.001 * y, 0), (lambda y: math.nan, 1)]
)
def test_what_is_wrong_or_unwritten_is_found(spoil, unwritten, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    from benchmarks import kernels as measuring
    from benchmarks import passes

    ours = measuring.Bench.ours

    def spoiled(self, case, tensors, on=None):
        run = ours(self, case, tensors, on)

        def run_and_spoil():
            run()
            if on is None:
                y, at = tensors[case.launch.output], (2, 5, 6, 7)
                y[at] = spoil(y.abs().max())

        return run_and_spoil

    monkeypatch.setattr(measuring.Bench, "ours", spoiled)
    given = ["--quick", "--device", "host", "--output", str(tmp_path), "--only", "gelu NHWC float3"]
    assert passes.main(given) == 1
    (found,) = load_record("passes", tmp_path)["checks"].values()
    assert found["error"] > 1e-4
    assert found["unwritten"] == unwritten


@pytest.fixture
def measured_passes(tmp_path):
    rows = [
        row(f"masks {way} {order} {dtype}", share)
        for way, order, dtype, share in (
            ("made", "NCHW", "float32", 0.98),
            ("made", "NHWC", "float16", 0.42),
            ("gradient by bits", "NCHW", "float32", 0.5),
        )
    ]
    environment = {"gpu": {"name": "NVIDIA H100 80GB HBM3"}, "date": "2026-11-27T00:00:00"}
    record = {"measurements": {"masks": rows}, "environment": environment}
    (tmp_path / "passes.json").write_text(json.dumps(record))
    return tmp_path


def test_every_pass_has_its_cell(measured_passes):
    page = kernels.passes(measured_passes)
    assert "| `masks.cu` | made | 98% | - | - | 42% |" in page
    assert "| `masks.cu` | gradient by bits | 50% | - | - | - |" in page


def test_what_a_kernel_reaches_is_said_by_dtype(measured_passes):
    said = "float32 50 to 98 %, float16 42 % of a copy's speed on an H100 (docs/kernels.md)."
    assert kernels.reached("masks.cu", measured_passes) == said


def test_comments_are_written_once(measured_passes, monkeypatch, capsys):
    monkeypatch.setattr(kernels, "KERNELS", {})
    source = measured_passes / "masks.cu"
    source.write_text(
        "// It reaches\n// 1 % of a copy's speed on an X (docs/kernels.md).\nint a;\n"
    )
    given = {"sources": measured_passes, "folder": measured_passes}
    assert kernels.comments(check=True, **given) == 1
    assert "masks.cu" in capsys.readouterr().err
    assert kernels.comments(check=False, **given) == 0
    assert kernels.comments(check=True, **given) == 0
    assert "float16 42 %" in source.read_text()
    source.write_text("int a;\n")
    with pytest.raises(ValueError, match="0 lines"):
        kernels.comments(check=True, **given)
