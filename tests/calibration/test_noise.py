"""Calibration on a machine that something else uses: it keeps the best it has, and says so.

Noise is injected on the virtual clock, from a seed: no verdict depends on this machine. Where lines
are to be spoilt it is so strong that some are, whatever the seed: from 5 on a third of them.
"""

import dataclasses
import warnings

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn import TensorSpec
from ooc_cudnn.calibration import compute
from ooc_cudnn.calibration.report import explain_confidence, report, spoilt
from ooc_cudnn.calibration.run import calibrate
from ooc_cudnn.devices.machines import machine_for, machine_path
from perfmodel import MachineModel, shipped
from perfmodel.lines import KEPT, SCALED
from tests.support.clock import Clock
from tests.support.simulated_device import SimulatedDevice, SimulatedRun

H200 = dataclasses.replace(shipped("h200"), staged_step_seconds=0.0)
DISTURBED = "something else used the machine"
SLOWER = dataclasses.replace(
    H200,
    compute=dataclasses.replace(
        H200.compute, lines={key: line.scaled(3.0) for key, line in H200.compute.lines.items()}
    ),
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compute, "ARITHMETIC", (("float32", True),))
    # this machine's clock would decide how often something is measured, and so which noise it gets
    Clock(monkeypatch)
    return tmp_path


class Noisy(SimulatedDevice):
    """Runs each take a random share longer; of some streams only, and for some runs only."""

    def __init__(self, machine, noise, *, streams=("copy_in", "compute", "copy_out"), until=None):
        super().__init__(machine)
        self.noise, self.streams, self.until = noise, streams, until
        self.random, self.runs = np.random.default_rng(1), 0

    def start(self, *, overlap, staged, timed):
        run = SimulatedRun(self.machine, overlap=overlap)
        submit, self.runs = run.submit, self.runs + 1
        quiet = self.until is not None and self.runs > self.until
        factor = 1 + (0 if quiet else self.noise * self.random.exponential())

        def noisy(stream, waits, action, *, signals):
            def slower(handle):
                action(handle)
                handle.seconds *= factor if stream in self.streams else 1.0

            return submit(stream, waits, slower, signals=signals)

        run.submit = noisy
        return run


@pytest.mark.parametrize(("noise", "quick"), [(5.0, True), (30.0, False), (30.0, True)])
def test_nobody_is_left_with_nothing(noise, quick):
    device = Noisy(H200, noise)
    with pytest.warns(UserWarning, match=DISTURBED) as told:
        found = calibrate(device, quick=quick)
    assert machine_for(device, None) == found == MachineModel.load(machine_path(device.identity()))
    scaled = spoilt(found)[SCALED]
    assert scaled
    (warning,) = told
    assert warning.filename == __file__
    message = str(warning.message)
    assert scaled[0] in message or "and" in message
    assert message.startswith(f"{DISTURBED}: half of the lines are right within")
    assert "results are right in any case" in message
    assert "plans slower than the best" in message
    assert "Calibrate again when the machine is quiet" in message
    # every line that a call needs is there, and a call can be planned with it
    assert found.lines.keys() >= H200.lines.keys()
    plan = ooc_cudnn.plan(
        "convolution_forward", x=TensorSpec((64, 64, 56, 56)), w=TensorSpec((64, 64, 3, 3)),
        machine=found, memory_limit="64MiB",
    )  # fmt: skip
    assert plan.seconds > 0


def test_a_spoilt_line_is_the_known_one_scaled():
    with pytest.warns(UserWarning, match=DISTURBED):
        found = calibrate(Noisy(H200, 5.0), save=False)
    seen = []
    for key in spoilt(found)[SCALED]:
        line, known = found.lines.get(key), H200.lines.get(key)
        if known is None or not known.alpha:
            continue
        seen.append(key)
        factor = line.alpha / known.alpha
        # the median of 1 + 5 * an exponential is 4.47: half to twice that
        assert 2.2 < factor < 9.0, key
        assert line.beta == pytest.approx(known.beta * factor), key
        assert found.quality[key]["spread"] > 0.25 or key.endswith("/disk"), key
    assert len(seen) > 3, seen


def test_a_line_that_falls_is_the_known_one_scaled():
    class Falling(SimulatedDevice):
        def copy_out(self, destination, source, stream):
            stream.seconds += 1e4 / source.size

    with pytest.warns(UserWarning, match=DISTURBED):
        found = calibrate(Falling(H200), save=False, quick=True)
    assert "copy_out/pinned" in spoilt(found)[SCALED]
    assert found.transfer.copy_out["pinned"].alpha > 0
    assert "copy_in/pinned" not in spoilt(found)[SCALED]


def test_what_was_measured_well_before_is_kept():
    """Noise on one stream spoils its lines; the others are measured anew."""
    before = calibrate(SimulatedDevice(H200))
    with pytest.warns(UserWarning, match=DISTURBED) as told:
        found = calibrate(Noisy(SLOWER, 30.0, streams=("copy_in", "copy_out")))
    kept = spoilt(found)[KEPT]
    assert "copy_in/pinned" in kept
    assert not spoilt(found)[SCALED]
    for key in kept:
        assert found.lines.get(key) == before.lines.get(key), key
        assert found.quality[key]["spread"] == before.quality[key]["spread"]
        assert found.samples[key] == before.samples[key]
    key = "convolution/tf32/channels_last"
    assert key not in kept
    assert found.lines.get(key).alpha == pytest.approx(3.0 * before.lines.get(key).alpha, rel=0.01)
    assert "kept from the earlier calibration" in str(told[0].message)
    assert "as good as after the earlier calibration" in str(told[0].message)
    # and once more: what was kept is as good as new
    with pytest.warns(UserWarning, match=DISTURBED):
        again = calibrate(Noisy(SLOWER, 30.0, streams=("copy_in", "copy_out")))
    for key in kept:
        assert again.lines.get(key) == before.lines.get(key), key


def test_noise_is_the_same_each_time():
    found = []
    for _ in range(2):
        device = Noisy(H200, 30.0)
        with pytest.warns(UserWarning, match=DISTURBED):
            model = calibrate(device, save=False, quick=True)
        found.append((model.compute.lines, device.runs))
    assert found[0] == found[1]


def test_what_was_spoilt_before_is_measured_anew():
    with pytest.warns(UserWarning, match=DISTURBED):
        calibrate(Noisy(H200, 30.0), quick=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = calibrate(SimulatedDevice(H200), quick=True)
    assert not any(spoilt(found).values())
    assert (
        explain_confidence(found)[-1] == "nothing was disturbed: plans are as sure as these lines"
    )


def test_a_disturbance_that_passes_leaves_no_trace():
    """What was disturbed is measured once more, and the quieter time counts."""
    counting = Noisy(H200, 0.0)
    quiet = calibrate(counting, save=False, quick=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = calibrate(Noisy(H200, 3.0, until=counting.runs // 4), save=False, quick=True)
    for key in ("copy_in/pinned", "copy_out/pinned"):
        assert found.lines.get(key).alpha == pytest.approx(quiet.lines.get(key).alpha, rel=0.02)
    for pair, slower in found.transfer.slowdowns.items():
        assert slower.copy_in == pytest.approx(quiet.transfer.slowdowns[pair].copy_in, rel=0.05)


def test_the_report_says_how_sure_it_is():
    sure = calibrate(SimulatedDevice(H200), save=False, quick=True)
    assert report(sure).endswith("nothing was disturbed: plans are as sure as these lines")
    with pytest.warns(UserWarning, match=DISTURBED):
        unsure = calibrate(Noisy(H200, 30.0), save=False, quick=True)
    text = report(unsure)
    assert "disturbed, and known lines scaled to what was seen:" in text
    assert "Calibrate again when the machine is quiet" in text


def test_what_says_nothing_of_its_fit_is_not_known():
    bare = dataclasses.replace(shipped("host"), quality={})
    assert explain_confidence(bare) == [
        "how sure: not known; this model does not say how well it was fitted"
    ]


def test_a_single_sample_says_nothing_of_its_error():
    quality = {
        "copy_in/pinned": {"residual": 0.01, "held_out_error": 0.1, "spread": 0.02, "samples": 5.0},
        "pointwise/float32": {
            "residual": 0.0,
            "held_out_error": 1.0,
            "spread": 0.05,
            "samples": 1.0,
        },
    }
    found = explain_confidence(dataclasses.replace(shipped("host"), quality=quality))
    assert found == [
        "how sure: half of the lines are right within 10%; least sure are copy_in/pinned (10%)",
        "known lines, scaled to one measurement each: 1",
        "nothing was disturbed: plans are as sure as these lines",
    ]
