"""Calibration: a machine that is known is found again; this one predicts its own calls."""

import dataclasses
import os
import threading

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn import calibration
from ooc_cudnn.calibration import calibrate
from ooc_cudnn.calibration_compute import ComputeMeasurements
from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.simulated import SimulatedDevice, SimulatedRun
from ooc_cudnn.machines import machine_for, machine_path
from perfmodel import ComputeModel, FitError, Line, MachineModel, Slowdown, TransferModel, shipped

H200 = shipped("h200")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache directory of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def known_machine():
    """A machine on which no two lines are alike."""
    number = iter(range(1, 100))

    def line(rate):
        step = next(number)
        return Line(alpha=(1 + step / 10) / rate, beta=step * 1e-6)

    placements = ("pinned", "pageable", "disk")
    return dataclasses.replace(
        H200,
        transfer=TransferModel(
            {placement: line(50e9) for placement in placements},
            {placement: line(50e9) for placement in placements},
            {"pinned/pinned": Slowdown(1.37, 1.37)},
        ),
        compute=ComputeModel(
            {
                key: line(3e14 if key.startswith("convolution") else 3e12)
                for key in H200.compute.lines
            }
        ),
    )


class NoisyDevice(SimulatedDevice):
    """A simulated device whose steps each take a random share longer."""

    def __init__(self, machine, noise):
        super().__init__(machine)
        self.noise, self.random = noise, np.random.default_rng(3)

    def start(self, *, overlap, staged, timed):
        device = self
        run = SimulatedRun(self.machine.transfer, overlap=overlap)
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


class TestKnownMachine:
    @pytest.mark.parametrize("quick", [True, False])
    def test_alpha_and_beta_of_every_line_are_recovered(self, quick):
        known = known_machine()
        found = calibrate(SimulatedDevice(known), save=False, quick=quick)
        assert found.transfer.slowdown("pinned", "pinned").copy_in == pytest.approx(1.37, rel=0.01)
        for direction in ("copy_in", "copy_out"):
            was, now = getattr(known.transfer, direction), getattr(found.transfer, direction)
            assert set(now) == set(was) == {"pinned", "pageable", "disk"}
            for placement in was:
                assert now[placement].alpha == pytest.approx(was[placement].alpha, rel=0.01)
                assert now[placement].beta == pytest.approx(was[placement].beta, rel=0.01)
        assert set(found.compute.lines) == set(known.compute.lines)
        for key, was in known.compute.lines.items():
            assert found.compute.lines[key].alpha == pytest.approx(was.alpha, rel=0.01), key
            assert found.compute.lines[key].beta == pytest.approx(was.beta, rel=0.01), key

    def test_noise_is_borne_and_reported(self):
        found = calibrate(NoisyDevice(H200, 0.05), save=False)
        line = found.transfer.copy_in["pinned"]
        assert line.alpha == pytest.approx(H200.transfer.copy_in["pinned"].alpha, rel=0.15)
        assert 0.001 < found.quality["copy_in/pinned"]["spread"] < 0.2

    def test_too_much_noise_is_refused_by_name(self):
        with pytest.raises(FitError, match=r"on simulated h200: .*calibrate again|negative rate"):
            calibrate(NoisyDevice(H200, 30.0), save=False)

    def test_every_line_says_how_good_it_is(self):
        found = calibrate(SimulatedDevice(H200), save=False, quick=True)
        lines = {f"copy_in/{name}" for name in found.transfer.copy_in}
        lines |= {f"copy_out/{name}" for name in found.transfer.copy_out}
        lines |= {*found.compute.lines, "duplex"}
        assert set(found.quality) == lines
        for line in lines - {"duplex"}:
            assert set(found.quality[line]) == {"residual", "held_out_error", "samples", "spread"}

    def test_a_falling_line_names_itself(self):
        class Falling(SimulatedDevice):
            def copy_out(self, destination, source, stream):
                stream.seconds += 1.0 / source.size

        with pytest.raises(FitError, match=r"copy_out/pinned on simulated h200: .*negative rate"):
            calibrate(Falling(H200), save=False, quick=True)

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
        alpha = H200.compute.lines["convolution/float64/channels_last"].alpha
        assert found.compute.lines["convolution/float64/channels_last"].alpha == pytest.approx(
            alpha
        )
        assert device.arena.block_bytes == 0

    def test_a_limit_with_no_room_says_so(self):
        with (
            ooc_cudnn.settings(memory_limit="64KiB"),
            pytest.raises((MemoryError, FitError), match="limit"),
        ):
            calibrate(SimulatedDevice(H200), save=False)


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

    def test_an_interrupted_one_leaves_the_old_one(self, cache, monkeypatch):
        device = SimulatedDevice(H200)
        old = calibrate(device, quick=True)

        def interrupted(self, *arguments, **keywords):
            raise KeyboardInterrupt

        monkeypatch.setattr(ComputeMeasurements, "pointwise", interrupted)
        with pytest.raises(KeyboardInterrupt):
            calibrate(device, quick=True)
        assert machine_for(device, None) == old
        assert device.arena.block_bytes == 0
        left = [path for path in cache.rglob("*") if path.is_file()]
        assert left == [machine_path(device.identity())]

    def test_calls_are_planned_anew(self, monkeypatch):
        forgotten = []
        monkeypatch.setattr(calibration, "forget_calls", lambda: forgotten.append(True))
        calibrate(SimulatedDevice(H200), save=False, quick=True)
        assert not forgotten
        calibrate(SimulatedDevice(H200), save=True, quick=True)
        assert forgotten

    def test_a_cache_that_cannot_be_written_is_done_without(self, tmp_path, monkeypatch):
        blocked = tmp_path / "file"
        blocked.touch()
        monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
        found = calibrate(SimulatedDevice(H200), save=False, quick=True)
        known = H200.transfer.copy_in["disk"].alpha
        assert found.transfer.copy_in["disk"].alpha == pytest.approx(known, rel=0.01)

    def test_progress_is_told(self):
        seen = []
        with ooc_cudnn.settings(progress=lambda done, total: seen.append((done, total))):
            calibrate(SimulatedDevice(H200), save=False, quick=True)
        assert seen[-1] == (100, 100)
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)


class TestThisMachine:
    def test_what_calls_need_is_there(self):
        model = calibrate("host", save=False, quick=True)
        assert model.name == "host"
        assert model.identity["host"]
        assert model.device_bytes > 0
        assert set(model.transfer.copy_in) == {"pinned", "pageable", "disk"}
        lines = shipped("host").compute.lines
        assert set(model.compute.lines) == set(lines)
        for layout in ("channels_first", "channels_last"):
            strict = model.compute.lines[f"convolution/float32/{layout}"]
            assert model.compute.lines[f"convolution/tf32/{layout}"] == strict
        assert get_device("host").arena.block_bytes == 0
        assert not [t for t in threading.enumerate() if t.name.startswith("ooc_cudnn copy")]

    def test_it_predicts_a_call_of_middle_size(self, random):
        """Within a factor of 1.5; another process may disturb one measurement, but not three."""
        x = random.standard_normal((4, 64, 96, 96)).astype("f4")
        w = random.standard_normal((64, 64, 3, 3)).astype("f4")
        b = random.standard_normal(64).astype("f4")
        out = np.zeros_like(x)
        ratios = []
        for _ in range(3):
            model = calibrate("host", save=False, quick=True)
            seconds = []
            with ooc_cudnn.settings(machine=model, memory_limit="8MiB"):
                for _ in range(5):
                    with ooc_cudnn.profile() as profile:
                        ooc_cudnn.convolution_add_activation_forward(x, w, b, padding=1, out=out)
                    seconds.append(profile.calls[0].seconds)
            assert profile.calls[0].plan.pieces > 1
            ratios.append(profile.calls[0].predicted_seconds / sorted(seconds)[2])
            if 1 / 1.5 < ratios[-1] < 1.5:
                return
        pytest.fail(f"predicted / measured seconds were {ratios}")
