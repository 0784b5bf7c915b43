"""`ooc-cudnn doctor --engines`: all engines of all kinds, on a device whose engines are known."""

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.cli import main
from ooc_cudnn.devices.cuda.cudnn_plans import Plans
from ooc_cudnn.devices.engine_check_database import forget_verdicts, verdicts_of, verdicts_path
from ooc_cudnn.devices.engine_kinds import CheckedKind, problems
from ooc_cudnn.doctor import engine_report, engine_search
from ooc_cudnn.doctor.engine_search import search_engines, searched_kinds
from ooc_cudnn.errors import OocError
from ooc_cudnn.operations.convolution.gradients import forward_of
from tests.support.fake_cudnn import BehaviorNote, FakeEngine
from tests.support.tuned import call, engines_maker

UNSEARCHED = 92800
LIMIT = 2**22


@pytest.fixture
def make(monkeypatch, tmp_path):
    """Make the device with given engines; half types have no results in the fake's types."""
    return engines_maker(monkeypatch, tmp_path)


def some_kinds(count=4):
    """Kinds of one axis, which take the fake no time, in float32; none has even padding."""
    kinds = [each for each in searched_kinds() if each.precision == "tf32" and each.axes == 1]
    return [each for each in kinds if each.groups == 1][:count]


def test_every_kind_is_that_of_its_problems():
    """And so what a call finds of them is what the search has stored."""
    kinds = list(searched_kinds())
    assert len(set(kinds)) == len(kinds)
    for kind in kinds:
        made = problems(kind)
        assert len(made) == (2 if kind.uneven else 1)
        for problem in made:
            assert CheckedKind.of(problem) == kind
            assert (not forward_of(problem).is_even) == bool(kind.uneven)


def test_what_networks_launch_is_searched():
    kinds = list(searched_kinds())
    functions = {each.function for each in kinds}
    assert functions == {
        "convolution_forward", "convolution_backward_data", "convolution_backward_filter",
        "convolution_bias_relu", "convolution_backward_data_add",
    }  # fmt: skip
    for function in functions - {"convolution_bias_relu", "convolution_backward_data_add"}:
        of_it = [each for each in kinds if each.function == function]
        assert {each.layout for each in of_it} == {"channels_first", "channels_last"}
        assert {each.axes for each in of_it} == {1, 2, 3}
        precisions = {"tf32", "float32", "float16", "bfloat16", "float64"}
        assert {each.precision for each in of_it} == precisions
        for name in ("strided", "dilated", "whole"):
            assert {getattr(each, name) for each in of_it} == {False, True}
        assert {each.uneven for each in of_it} == {"", "others", "last", "all"}


def test_wrong_engines_are_barred_and_the_version_is_searched(make, random):
    wrong = FakeEngine(100, 1e-8, uneven_error=0.1)
    compiled = FakeEngine(102, 1e-9, behavior=(BehaviorNote.RUNTIME_COMPILATION,))
    device = make(wrong, FakeEngine(101, 2e-8), compiled, version=UNSEARCHED)
    told = []
    found = search_engines(device, LIMIT, kinds=some_kinds(), tell=told.append)
    assert list(found.barred) == told
    assert {each.unchecked.engine for each in found.barred} == {"eng100"}
    assert len(found.barred) == sum(bool(each.uneven) for each in some_kinds()) > 0
    assert sum(row.checks for row in found.rows) == 2 * len(some_kinds())
    assert compiled.launched == 0
    assert found.left == 0
    forget_verdicts()
    assert verdicts_of(device).is_searched
    wrong.launched = 0
    x = random.standard_normal((2, 8, 40), "f4")
    w = random.standard_normal((8, 8, 3), "f4")
    y = ooc_cudnn.convolution_forward(x, w, padding=((1, 0),))  # without a warning
    padded = np.pad(x.astype(float), ((0, 0), (0, 0), (1, 0)))
    expected = sum(np.einsum("nch,kc->nkh", padded[:, :, i : i + 39], w[:, :, i]) for i in range(3))
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
    assert wrong.launched == 0
    before = verdicts_of(device).items()
    assert call(random) < 1e-6  # of a kind that is not among them: nothing is checked
    assert verdicts_of(device).items() == before


def test_a_search_that_had_no_time_is_gone_on_with(make):
    device, kinds = make(FakeEngine(100, 1e-8), version=UNSEARCHED), some_kinds()
    ticks = iter(range(1000))
    found = search_engines(device, LIMIT, kinds=kinds, seconds=5, clock=lambda: float(next(ticks)))
    checks = sum(row.checks for row in found.rows)
    assert 0 < checks < len(kinds)
    assert found.left == len(kinds) - checks
    forget_verdicts()
    assert not verdicts_of(device).is_searched
    found = search_engines(device, LIMIT, kinds=kinds)
    assert sum(row.checks for row in found.rows) == len(kinds) - checks
    assert verdicts_of(device).is_searched


def test_known_faults_are_not_run(make):
    """Some of them write outside their result."""
    (kind, *_) = [e for e in some_kinds(9) if e.function == "convolution_backward_data"]
    known = FakeEngine(50, 1e-8)  # takes padding for symmetric (`cudnn_engines`)
    device = make(known, FakeEngine(101, 2e-8), version=UNSEARCHED)
    search_engines(device, LIMIT, kinds=[kind])
    assert known.launched == 0


def test_what_ends_the_device_is_not_tried_again(make, monkeypatch):
    device, kinds = make(FakeEngine(100, 1e-8), version=UNSEARCHED), some_kinds()

    def ends(*_):
        raise RuntimeError("an illegal memory access was encountered")

    with monkeypatch.context() as at:
        at.setattr(engine_search, "verdict_on", lambda *_, **__: ends())
        with pytest.raises(RuntimeError, match="illegal"):
            search_engines(device, LIMIT, kinds=kinds)
    forget_verdicts()
    assert verdicts_of(device).of(kinds[0], "eng100").is_right is False
    found = search_engines(device, LIMIT, kinds=kinds)
    assert sum(row.checks for row in found.rows) == len(kinds) - 1


def test_a_frontend_that_cannot_say_which_engines_there_are(make, monkeypatch):
    device = make(FakeEngine(100, 1e-8), version=UNSEARCHED)
    monkeypatch.setattr(Plans, "not_compiled", lambda *_, **__: [])
    with pytest.raises(OocError, match=r"install nvidia-cudnn-frontend 1\.28"):
        search_engines(device, LIMIT, kinds=some_kinds())
    assert not verdicts_path(device).exists()


def test_the_command(make, monkeypatch, capsys):
    device = make(
        FakeEngine(100, 1e-8, uneven_error=0.1), FakeEngine(101, 2e-8), version=UNSEARCHED
    )
    ooc_cudnn.settings(memory_limit=LIMIT)
    monkeypatch.setattr(engine_search, "searched_kinds", some_kinds)
    assert main(["doctor", "--engines"]) == 0
    *_, table, total, last = lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "cuDNN 9.28.0 on Fake 9000: 0 barred before"
    assert lines[1].startswith("barred: eng100, off by 0.1")
    assert "of the largest result: convolution_forward, tf32 to float32" in lines[1]
    assert table.split()[:2] == ["convolution_forward", "tf32"]
    count, uneven = len(some_kinds()), sum(bool(each.uneven) for each in some_kinds())
    assert total.split()[:4] == ["all", str(count), str(2 * count), str(uneven)]
    assert last.endswith(f"stored in {verdicts_path(device)}")
    assert main(["doctor", "--engines"]) == 0  # it was searched: there is nothing left to check
    *_, total, _ = capsys.readouterr().out.splitlines()
    assert total.split() == ["all", str(count), "0", "0", "-"]


def test_a_search_without_an_end_is_no_success(make, monkeypatch, capsys):
    make(FakeEngine(100, 1e-8), version=UNSEARCHED)
    ooc_cudnn.settings(memory_limit=LIMIT)
    search = engine_report.search_engines
    monkeypatch.setattr(
        engine_report, "search_engines", lambda *told, **how: search(*told, **how, seconds=-1.0)
    )
    assert main(["doctor", "--engines"]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"{len(list(searched_kinds()))} kinds were not reached")


def test_without_a_card_it_says_so(capsys):
    assert main(["doctor", "--engines"]) == 1
    said = capsys.readouterr()
    assert "host has one way to compute a convolution" in said.err
    assert "on a machine with a card" in said.err
    assert said.out == ""
