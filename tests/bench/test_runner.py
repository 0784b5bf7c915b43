"""The runner, on contenders whose times, failures and contents are made up."""

from __future__ import annotations

import json
import time

import pytest

from ooc_cudnn.bench import attempt
from ooc_cudnn.bench.case import Case
from ooc_cudnn.bench.contender import Contender, Unavailable, Workload
from ooc_cudnn.bench.runner import failed_contenders, run_case
from tests.support.clock import Clock


class OutOfMemoryError(RuntimeError):
    """As PyTorch's: not a MemoryError."""


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    return Clock(monkeypatch)


class Fake(Contender):
    about = "made up"

    def __init__(self, seconds=0.002, *, fails=None, where="run", ok=True, **attributes):
        self.seconds, self.fails, self.where, self.ok = seconds, fails, where, ok
        self.log: list[str] = []
        vars(self).update(attributes)

    def _step(self, name):
        self.log.append(name)
        if self.fails is not None and self.where == name:
            raise self.fails

    def prepare(self):
        self._step("prepare")

    def rest(self):
        self._step("rest")

    def run(self):
        self._step("run")
        time.sleep(self.seconds)

    def check(self):
        self._step("check")
        return None if self.bounds else {"ok": self.ok}

    def details(self):
        return {"pieces": 3}

    def release(self):
        self._step("release")


def case_with(*baselines, repeats=3):
    return Case("fake", "made up", "nowhere", "fake", {}, {}, "1MiB", "1KiB", baselines,
                repeats=repeats)  # fmt: skip


def run(contenders, *, in_turns=True, repeats=3):
    """Run a case of made-up contenders; return its record and what was said."""
    said: list[str] = []

    class Fakes(Workload):
        released = False

        def __init__(self, case, *, cuda, tiny):
            self.contenders = {n: (lambda c=c: c) for n, c in contenders.items()}
            self.in_turns, self.operations, self.notes = in_turns, 1e9, ("made up",)

        def release(self):
            Fakes.released = True

    baselines = [name for name in contenders if name != "ooc_cudnn"]
    record = run_case(
        case_with(*baselines, repeats=repeats),
        quick=False, device="host", say=said.append, workloads={"fake": Fakes},
    )  # fmt: skip
    assert Fakes.released
    json.dumps(record)
    return record, said


@pytest.mark.parametrize("in_turns", [True, False])
def test_ratios_are_over_the_librarys_seconds(in_turns):
    record, _ = run({"ooc_cudnn": Fake(0.01), "slow": Fake(0.03)}, in_turns=in_turns)
    assert record["status"] == "measured"
    assert record["verified"] is True
    ours, slow = record["contenders"]["ooc_cudnn"], record["contenders"]["slow"]
    assert ours["ratio"]["of_medians"] == 1
    assert slow["ratio"]["of_medians"] == pytest.approx(3, rel=0.01)
    assert slow["ratio"]["low"] <= slow["ratio"]["of_medians"] <= slow["ratio"]["high"]
    assert slow["GFLOPS"] == pytest.approx(1 / slow["seconds"]["median"])
    assert len(slow["seconds"]["samples"]) == 3
    assert len(ours["seconds"]["samples"]) == (3 if in_turns else 6)  # first and last
    assert ("drift" in record) is not in_turns
    assert ours["details"] == {"pieces": 3}
    assert record["notes"] == ["made up"]
    assert record["settings"]["verify"] == 0


@pytest.mark.parametrize("in_turns", [True, False])
@pytest.mark.parametrize("where", ["prepare", "rest", "run", "check"])
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Unavailable("needs a card"), "needs a card"),
        (MemoryError("1 TiB"), "out of memory: 1 TiB"),
        (OutOfMemoryError("CUDA: tried 90 GiB"), "out of memory: CUDA: tried 90 GiB"),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), "torch is not installed"),
        (RuntimeError("cuDNN has no plan"), "RuntimeError: cuDNN has no plan"),
    ],
)
def test_a_baseline_that_cannot_run_is_named_and_the_rest_run(in_turns, where, error, reason):
    broken = Fake(0, fails=error, where=where)
    record, said = run({"ooc_cudnn": Fake(0), "broken": broken, "last": Fake(0)}, in_turns=in_turns)
    found = record["contenders"]
    assert found["broken"]["status"] == "unavailable"
    assert found["broken"]["reason"] == reason
    assert found["last"]["status"] == found["ooc_cudnn"]["status"] == "measured"
    assert record["verified"] is True
    assert broken.log[-1] == "release"
    assert broken.log.count("release") == 1
    assert any(reason in line for line in said)


def test_memory_that_ends_while_it_is_timed_ends_only_that_contender():
    class Sometimes(Fake):
        def run(self):
            super().run()
            if self.log.count("run") == 3:
                raise MemoryError("no more")

    record, _ = run({"ooc_cudnn": Fake(0), "tired": Sometimes(0)})
    assert record["contenders"]["tired"]["reason"] == "out of memory: no more"
    assert record["contenders"]["ooc_cudnn"]["status"] == "measured"


def test_faults_are_raised_and_everything_is_released():
    baseline = Fake(0, fails=TypeError("a fault"), where="check")
    ours = Fake(0)
    with pytest.raises(TypeError, match="a fault"):
        run({"ooc_cudnn": ours, "faulty": baseline})
    assert ours.log[-1] == baseline.log[-1] == "release"


def test_the_library_has_no_excuse():
    with pytest.raises(RuntimeError, match="status 9"):
        run({"ooc_cudnn": Fake(0, fails=RuntimeError("status 9"))})


def test_without_the_librarys_time_nothing_is_verified():
    record, _ = run({"ooc_cudnn": Fake(0, fails=MemoryError("1 TiB")), "other": Fake(0)})
    assert (record["status"], record["reason"]) == ("unavailable", "out of memory: 1 TiB")
    assert record["verified"] is False
    assert record["contenders"]["other"]["ratio"] is None


def test_wrong_contents_of_the_library_fail_and_those_of_a_baseline_are_said():
    record, said = run({"ooc_cudnn": Fake(0), "theirs": Fake(0, ok=False)})
    assert failed_contenders(record) == []
    assert record["verified"] is True
    assert any("WRONG CONTENTS in theirs: the baseline" in note for note in record["notes"])
    for name, wrong in (("ooc_cudnn", Fake(0, ok=False)), ("serial", Fake(0, ok=False, ours=True))):
        record, said = run({"ooc_cudnn": Fake(0), name: wrong})
        assert failed_contenders(record) == [name]
        assert record["verified"] is False
        assert any("THE LIBRARY'S RESULT" in line for line in said)


def test_a_bound_has_no_contents_to_check():
    record, _ = run({"ooc_cudnn": Fake(0), "copies": Fake(0, bounds=True)})
    assert record["contenders"]["copies"]["check"] is None
    assert record["contenders"]["copies"]["bound"] is True
    assert record["verified"] is True


def test_an_unchecked_result_of_the_library_is_not_verified():
    record, _ = run({"ooc_cudnn": Fake(0, bounds=True)})
    assert record["verified"] is False


@pytest.mark.parametrize("in_turns", [True, False])
def test_what_takes_too_long_when_warm_has_one_sample(monkeypatch, in_turns):
    monkeypatch.setattr(attempt, "PATIENCE_SECONDS", 0.05)
    slow = Fake(0.06)
    record, _ = run({"ooc_cudnn": Fake(0), "slow": slow}, in_turns=in_turns)
    assert slow.log.count("run") == 2  # to warm up, and warm
    assert len(record["contenders"]["slow"]["seconds"]["samples"]) == 1
    assert record["contenders"]["slow"]["ratio"]["of_medians"] > 1
    assert any("has one sample" in note for note in record["notes"])


@pytest.mark.parametrize("in_turns", [True, False])
def test_a_slow_first_run_that_plans_is_no_sample(monkeypatch, in_turns):
    class Planning(Fake):
        def run(self):
            self.seconds, first = (0.001, self.seconds)
            time.sleep(first)
            self.log.append("run")

    monkeypatch.setattr(attempt, "PATIENCE_SECONDS", 0.05)
    record, _ = run({"ooc_cudnn": Planning(0.1)}, in_turns=in_turns)
    timing = record["contenders"]["ooc_cudnn"]["seconds"]
    assert len(timing["samples"]) == 3
    assert timing["max"] < 0.05
    assert not any("sample" in note for note in record["notes"])


def test_one_by_one_holds_one_contender_at_a_time():
    order: list[str] = []

    class Logged(Fake):
        def _step(self, name):
            order.append(f"{self.tag} {name}")

    run({"ooc_cudnn": Logged(0, tag="ours"), "other": Logged(0, tag="other")}, in_turns=False)
    kept = [step for step in order if step.split()[1] in ("prepare", "release")]
    assert kept == ["ours prepare", "ours release", "other prepare", "other release",
                    "ours prepare", "ours release"]  # fmt: skip


def test_a_machine_too_small_for_the_operands():
    class TooLarge(Workload):
        contenders, in_turns, operations = {}, True, 1.0

        def __init__(self, case, *, cuda, tiny):
            raise Unavailable("17 GB of host memory are needed, 4 GB are free")

        def release(self):
            raise AssertionError("nothing was taken")

    record = run_case(case_with(), quick=False, device="host", workloads={"fake": TooLarge})
    assert record["status"] == "unavailable"
    assert record["reason"].startswith("17 GB")
    assert record["contenders"] == {}


def test_a_contender_that_a_workload_lacks():
    class Empty(Workload):
        contenders, in_turns, operations = {"ooc_cudnn": Fake}, True, 1.0

        def __init__(self, case, *, cuda, tiny):
            pass

        def release(self):
            pass

    with pytest.raises(ValueError, match="unheard_of"):
        run_case(case_with("unheard_of"), quick=False, device="host", workloads={"fake": Empty})


def test_a_workload_that_does_not_exist():
    with pytest.raises(ValueError, match="workload 'fake' is none of convolution"):
        run_case(case_with(), quick=False, device="host")
