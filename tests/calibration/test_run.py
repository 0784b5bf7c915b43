"""Calibration: a machine that is known is found again; this one predicts its own calls."""

import dataclasses
import os
import threading

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.calibration import compute, run
from ooc_cudnn.calibration.run import calibrate
from ooc_cudnn.call_planner.planner import make_plan
from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.machines import machine_for, machine_path
from ooc_cudnn.functions.call.plan_api import plan_request
from ooc_cudnn.pipeline.simulate import simulate
from ooc_cudnn.tensor import TensorSpec
from perfmodel import ComputeModel, FitError, Line, MachineModel, Slowdown, TransferModel, shipped
from tests.support.clock import Clock
from tests.support.simulated_device import SimulatedDevice, SimulatedRun

H200 = dataclasses.replace(shipped("h200"), staged_step_seconds=0.0)  # as copies alone would be
SLOWDOWNS = {
    "pinned/pinned": Slowdown(1.37, 1.22),
    "pageable/pageable": Slowdown(1.8, 1.9),
    "pinned/pageable": Slowdown(1.5, 1.1),
    "pageable/pinned": Slowdown(1.05, 1.6),
}
PAIRS = set(SLOWDOWNS)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache directory of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture(autouse=True)
def clock(request, monkeypatch):
    """By this machine's own, it would be chance how often something is measured."""
    if request.cls is not TestThisMachine:
        Clock(monkeypatch)


STAGED = ("pageable", "disk")


def known_machine():
    """A machine on which no two lines are alike, and whose slabs never run out."""
    number = iter(range(1, 100))

    def line(rate):
        step = next(number)
        return Line(alpha=(1 + step / 10) / rate, beta=step * 1e-6)

    def copies():
        lines = {placement: line(50e9) for placement in ("pinned", *STAGED)}
        # those of files begin at 0
        return lines | {"disk": dataclasses.replace(lines["disk"], beta=0.0)}

    return dataclasses.replace(
        H200,
        step_seconds=0.0,
        transfer=TransferModel(
            copies(),
            copies(),
            SLOWDOWNS,
            {f"{way}/{of}": line(2e11) for way in ("copy_in", "copy_out") for of in STAGED},
        ),
        compute=ComputeModel(
            {
                key: line(3e14 if key.startswith("convolution") else 3e12)
                for key in H200.compute.lines
            }
        ),
    )


@pytest.fixture
def one_kind(monkeypatch):
    """One kind of arithmetic: what is tested here does not depend on which."""
    monkeypatch.setattr(compute, "ARITHMETIC", (("float32", True),))


class NoisyDevice(SimulatedDevice):
    """A simulated device whose steps each take a random share longer."""

    def __init__(self, machine, noise):
        super().__init__(machine)
        self.noise, self.random = noise, np.random.default_rng(3)

    def start(self, *, overlap, staged, timed):
        device = self
        run = SimulatedRun(self.machine, overlap=overlap)
        submit = run.submit
        # all steps of a run alike, as where another process takes turns
        factor = 1 + device.noise * device.random.exponential()

        def noisy(stream, waits, action, *, signals):
            def slower(handle):
                action(handle)
                handle.seconds *= factor

            return submit(stream, waits, slower, signals=signals)

        run.submit = noisy
        return run


@pytest.mark.usefixtures("one_kind")
def measured(model):
    """The lines of what is computed that have samples of their own."""
    return {key for key in model.compute.lines if key in model.samples}


class TestKnownMachine:
    @pytest.mark.parametrize("quick", [True, False])
    def test_alpha_and_beta_of_every_line_are_recovered(self, quick):
        known = known_machine()
        found = calibrate(SimulatedDevice(known), save=False, quick=quick)
        assert set(found.transfer.slowdowns) == PAIRS
        for pair, was in SLOWDOWNS.items():
            now = found.transfer.slowdowns[pair]
            # the virtual clock's last step lasts until what is staged has landed
            near = 0.01 if pair == "pinned/pinned" else 0.03
            both = was.copy_in, was.copy_out
            assert (now.copy_in, now.copy_out) == pytest.approx(both, rel=near), pair
        for direction in ("copy_in", "copy_out"):
            was, now = getattr(known.transfer, direction), getattr(found.transfer, direction)
            assert set(now) == set(was) == {"pinned", "pageable", "disk"}
            for placement in was:
                assert now[placement].alpha == pytest.approx(was[placement].alpha, rel=0.01)
                near = 0.1 if placement in STAGED else 0.01
                assert now[placement].beta == pytest.approx(was[placement].beta, rel=near, abs=1e-9)
        assert set(found.transfer.latency) == set(known.transfer.latency)
        for name, line in found.transfer.latency.items():
            was = known.transfer.latency[name]
            assert line.alpha == pytest.approx(was.alpha, rel=0.01)
            assert line.beta == pytest.approx(was.beta, rel=0.01)
        # compute lines: test_compute.py

    def test_noise_is_borne_and_reported(self):
        found = calibrate(NoisyDevice(H200, 0.05), save=False)
        line = found.transfer.copy_in["pinned"]
        assert line.alpha == pytest.approx(H200.transfer.copy_in["pinned"].alpha, rel=0.15)
        assert 0.001 < found.quality["copy_in/pinned"]["spread"] < 0.2

    def test_every_line_says_how_good_it_is(self):
        found = calibrate(SimulatedDevice(H200), save=False, quick=True)
        lines = {f"copy_in/{name}" for name in found.transfer.copy_in}
        lines |= {f"copy_out/{name}" for name in found.transfer.copy_out}
        lines |= measured(found)
        pairs = {f"duplex/{pair}" for pair in PAIRS}
        host = {"launch_seconds", "step_seconds", "staged_step_seconds"}
        assert set(found.quality) == lines | pairs | host | {"losses/copies"}
        for line in lines:
            assert set(found.quality[line]) == {"residual", "held_out_error", "samples", "spread"}
        for pair in pairs:
            assert set(found.quality[pair]) == {"samples", "spread"}

    def test_every_line_keeps_its_samples(self):
        found = calibrate(SimulatedDevice(H200), save=False, quick=True)
        lines = {f"copy_in/{name}": line for name, line in found.transfer.copy_in.items()}
        lines |= {f"copy_out/{name}": line for name, line in found.transfer.copy_out.items()}
        lines |= {key: found.compute.lines[key] for key in measured(found)}
        duplex = {f"duplex/{pair}/{way}" for pair in PAIRS for way in ("copy_in", "copy_out")}
        assert set(found.samples) == set(lines) | duplex
        for key, line in lines.items():
            samples, quality = found.samples[key], found.quality[key]
            assert len(samples.seconds) == quality["samples"] >= 1
            error = np.median(np.abs(samples.residuals(line)))
            assert error == pytest.approx(quality["residual"], abs=1e-4), key

    def test_what_is_not_measured_is_as_much_slower_as_what_is(self):
        slower = ComputeModel({k: line.scaled(2.0) for k, line in H200.compute.lines.items()})
        found = calibrate(
            SimulatedDevice(dataclasses.replace(H200, compute=slower)), save=False, quick=True
        )
        others = {
            key for key in found.compute.lines.keys() - measured(found)
            if not key.startswith("convolution/bfloat16")  # float16 stands in for it
        }  # fmt: skip
        assert {
            "convolution/float32/channels_first",
            "pointwise/float64/batch_normalization",
        } <= others
        assert set(found.compute.lines) >= set(H200.compute.lines)
        for key in others:
            line, known = found.compute.lines[key], H200.compute.lines[key]
            assert line.alpha == pytest.approx(2.0 * known.alpha, rel=0.1), key
            assert line.beta == pytest.approx(2.0 * known.beta, rel=0.1), key

    def test_what_predicts_nothing_is_told_as_facts(self):
        found = calibrate(SimulatedDevice(known_machine()), save=False, quick=True)
        drift = {f"drift_of_{name}_share" for name in ("copy_in", "compute")}
        assert set(found.facts) == drift | {"calibration_seconds"}
        for name in drift:
            assert found.facts[name] == pytest.approx(0.0, abs=1e-9)

    def test_a_drifting_clock_is_seen_and_hits_all_lines_alike(self):
        class Drifting(SimulatedDevice):
            """Slower by a thousandth of the first second with every run."""

            runs = 0

            def start(self, *, overlap, staged, timed):
                run, submit = super().start(overlap=overlap, staged=staged, timed=timed), None
                self.runs += 1
                factor, submit = 1 + self.runs / 2000, run.submit

                def slower(stream, waits, action, *, signals):
                    def act(handle):
                        action(handle)
                        handle.seconds *= factor

                    return submit(stream, waits, act, signals=signals)

                run.submit = slower
                return run

        device = Drifting(H200)
        found = calibrate(device, save=False, quick=True)
        total = device.runs / 2000
        assert found.facts["drift_of_copy_in_share"] == pytest.approx(total, rel=0.1)
        # the order is random within each part, so no line falls or rises for the drift's sake
        for way in ("copy_in", "copy_out"):
            quality = found.quality[f"{way}/pinned"]
            assert quality["residual"] < 0.05

    def test_it_keeps_to_the_memory_limit(self):
        device = SimulatedDevice(H200)
        most = 0
        reserve = device.arena.reserve

        def watched(nbytes, limit, *, purpose):
            nonlocal most
            most = max(most, nbytes)
            return reserve(nbytes, limit, purpose=purpose)

        device.arena.reserve = watched
        with ooc_cudnn.settings(memory_limit="600MiB"):
            found = calibrate(device, save=False)
        assert 2**28 < most <= 600 * 2**20
        alpha = H200.compute.lines["convolution/tf32/channels_last"].alpha
        assert found.compute.lines["convolution/tf32/channels_last"].alpha == pytest.approx(alpha)
        assert device.arena.block_bytes == device.arena.ready_bytes == 0

    def test_a_limit_with_no_room_says_so(self):
        with (
            ooc_cudnn.settings(memory_limit="64KiB"),
            pytest.raises((MemoryError, FitError), match="limit"),
        ):
            calibrate(SimulatedDevice(H200), save=False)


@pytest.mark.usefixtures("one_kind")
class TestKeeping:
    def test_it_is_kept_and_found(self, cache):
        device = SimulatedDevice(H200)
        found = calibrate(device, quick=True)
        path = machine_path(device.identity())
        assert path.is_relative_to(cache / "ooc_cudnn" / "machines")
        assert MachineModel.load(path) == found == machine_for(device, None)
        assert os.listdir(path.parent) == [path.name]

    def test_without_save_nothing_is_written(self, cache):
        calibrate(SimulatedDevice(H200), save=False, quick=True)
        assert not [path for path in cache.rglob("*") if path.is_file()]

    @pytest.mark.parametrize("part", [0.0, 0.1, 0.3, 0.5, 0.7, 0.99])
    def test_one_interrupted_while_measuring_leaves_the_old_one(self, cache, part):
        class Interrupted(SimulatedDevice):
            runs, stop = 0, -1

            def start(self, *, overlap, staged, timed):
                self.runs += 1
                if self.runs == self.stop:
                    raise KeyboardInterrupt
                return super().start(overlap=overlap, staged=staged, timed=timed)

        device = Interrupted(H200)
        old = calibrate(device, quick=True)
        device.stop = device.runs + 1 + int(part * device.runs)
        with pytest.raises(KeyboardInterrupt):
            calibrate(device, quick=True)
        self.nothing_but(old, device, cache)
        device.stop = -1
        # (the host's part of a simulated copy is this host's, by whose clock it is measured)
        again = calibrate(device, quick=True)
        assert again.compute.lines == old.compute.lines
        assert again.transfer.slowdowns == old.transfer.slowdowns

    @pytest.mark.parametrize(
        "where",
        ["perfmodel.lines.fit_samples", "os.fsync", "os.replace", "tempfile.mkdtemp"],
    )
    def test_one_interrupted_elsewhere_leaves_the_old_one(self, cache, monkeypatch, where):
        def interrupted(*arguments, **keywords):
            raise KeyboardInterrupt

        device = SimulatedDevice(H200)
        old = calibrate(device, quick=True)
        monkeypatch.setattr(where, interrupted)
        with pytest.raises(KeyboardInterrupt):
            calibrate(device, quick=True)
        self.nothing_but(old, device, cache)

    def nothing_but(self, old, device, cache):
        """The old model is in force, and nothing else is left: no memory, no file."""
        assert machine_for(device, None) == old
        assert device.arena.block_bytes == device.arena.ready_bytes == 0
        left = [path for path in cache.rglob("*") if path.is_file()]
        assert left == [machine_path(device.identity())]

    def test_calls_are_planned_anew(self, monkeypatch):
        forgotten = []
        monkeypatch.setattr(run, "forget_calls", lambda: forgotten.append(True))
        calibrate(SimulatedDevice(H200), save=False, quick=True)
        assert not forgotten
        calibrate(SimulatedDevice(H200), save=True, quick=True)
        assert forgotten

    def test_a_cache_that_cannot_be_written_is_done_without(self, tmp_path, monkeypatch):
        blocked = tmp_path / "file"
        blocked.touch()
        monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
        machine = known_machine()
        found = calibrate(SimulatedDevice(machine), save=False, quick=True)
        known = machine.transfer.copy_in["disk"].alpha
        assert found.transfer.copy_in["disk"].alpha == pytest.approx(known, rel=0.01)

    def test_where_it_cannot_be_kept_it_says_so_before_it_measures(self, tmp_path, monkeypatch):
        class Untouched(SimulatedDevice):
            def start(self, **asked):
                raise AssertionError("measured")

        blocked = tmp_path / "file"
        blocked.touch()
        monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
        with pytest.raises(OSError, match=f"cannot be kept in {blocked}.*XDG_CACHE_HOME"):
            calibrate(Untouched(H200), quick=True)

    def test_progress_is_told(self):
        seen = []
        with ooc_cudnn.settings(progress=lambda done, total: seen.append((done, total))):
            calibrate(SimulatedDevice(H200), save=False, quick=True)
        assert seen[-1] == (100, 100)
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)


@pytest.mark.filterwarnings("ignore:something else used the machine")
class TestThisMachine:
    """Tests share the machine with each other: what that spoils is warned of."""

    def test_what_calls_need_is_there(self):
        model = calibrate("host", save=False, quick=True)
        assert model.name == "host"
        assert model.identity["host"]
        assert model.device_bytes > 0
        assert set(model.transfer.copy_in) == {"pinned", "pageable", "disk"}
        lines = shipped("host").compute.lines
        assert set(model.compute.lines) >= set(lines)
        for layout in ("channels_first", "channels_last"):
            strict = model.compute.lines[f"convolution/float32/{layout}"]
            assert model.compute.lines[f"convolution/tf32/{layout}"] == strict
        assert get_device("host").arena.block_bytes == get_device("host").arena.ready_bytes == 0
        assert not [t for t in threading.enumerate() if t.name.startswith("ooc_cudnn copy")]


def test_it_predicts_a_call_of_middle_size():
    """Within a factor of 1.5, on a machine that is known, by a clock that tests turn."""
    known = known_machine()
    model = calibrate(SimulatedDevice(known), save=False, quick=True)
    request = plan_request(
        "convolution_add_activation_forward", x=TensorSpec((4, 64, 96, 96)),
        w=TensorSpec((64, 64, 3, 3)), b=TensorSpec((64,)), padding=1, machine=model,
        memory_limit="8MiB",
    )  # fmt: skip
    plan = make_plan(request)
    assert plan.pieces > 1
    seconds = simulate(dataclasses.replace(request, machine=known), plan).seconds
    assert 1 / 1.5 < plan.seconds / seconds < 1.5


def test_on_a_clock_that_tests_turn_it_is_the_same_each_time():
    first, again = (calibrate(SimulatedDevice(H200), save=False, quick=True) for _ in range(2))
    same = {"calibrated": "shipped", "facts": {}}
    assert dataclasses.replace(first, **same) == dataclasses.replace(again, **same)
