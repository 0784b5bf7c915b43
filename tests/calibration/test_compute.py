"""What a calibration computes: drawn alike each time, of all sizes; every line is found again."""

import ctypes
import dataclasses
import math

import numpy as np
import pytest

from ooc_cudnn.calibration import compute
from ooc_cudnn.calibration.compute import TimedLaunches, add_stand_ins, arithmetic, losses
from ooc_cudnn.calibration.copies import host_memory
from ooc_cudnn.calibration.session import Session
from ooc_cudnn.calibration.shapes import GPU_POOL, HOST_POOL, convolutions, passes
from ooc_cudnn.devices import get_device
from ooc_cudnn.tensor import TensorSpec
from perfmodel import ComputeModel, Line, fit, shipped
from tests.support.simulated_device import SimulatedDevice

LAYOUTS = ("channels_first", "channels_last")


def collected(device, *, quick=True):
    """Measure; for each line a list of (work, features, seconds)."""
    found, session = {}, Session(device, 2**31, quick=quick)
    for group in TimedLaunches(session).groups():
        for key, held in session.taken_by(group).items():
            samples = [(work, features, timing.seconds) for work, timing, features in held]
            found.setdefault(key, []).extend(samples)
    device.arena.release_block()
    return {key: held for key, held in found.items() if not key.startswith("launching/")}


@pytest.mark.parametrize("pool", [GPU_POOL, HOST_POOL])
def test_convolutions_are_drawn_alike_and_of_all_sizes(pool):
    drawn = list(convolutions("seed", pool, "float32", allow_tf32=True, count=24))
    assert drawn == list(convolutions("seed", pool, "float32", allow_tf32=True, count=24))
    assert drawn != list(convolutions("other", pool, "float32", allow_tf32=True, count=24))
    low, high = pool.convolution_bytes
    sizes = sorted(
        math.log2(4 * (math.prod(each.x_shape) + math.prod(each.output_shape))) for each in drawn
    )
    assert low - 1 < sizes[0] < low + 1
    assert high - 1 < sizes[-1] < high + 1
    assert all(0 < each.work().flops <= pool.most_flops for each in drawn)


@pytest.mark.parametrize("pool", [GPU_POOL, HOST_POOL])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_passes_go_through_as_many_bytes_of_each_type(pool, dtype):
    sizes = sorted(
        math.log2(max(spec.nbytes for spec in arguments.values() if isinstance(spec, TensorSpec)))
        for _, arguments, _ in passes("seed", pool, dtype, 4)
    )
    low, high = pool.pass_bytes
    assert low - 1 < sizes[0] < low + 1
    assert high - 1 < sizes[-1] < high + 1


def test_depthwise_windows_are_drawn_by_themselves():
    """They have lines of their own: on an H200 other lines were up to 140 times too slow."""
    for depthwise in (False, True):
        drawn = list(
            convolutions("x", GPU_POOL, "float16", allow_tf32=True, count=40, depthwise=depthwise)
        )
        assert {each.is_depthwise for each in drawn} == {depthwise}
        assert {each.groups == each.x_shape[1] for each in drawn} == {depthwise}
        assert len({each.window for each in drawn}) > 2


def test_every_pass_is_drawn():
    drawn = list(passes("seed", GPU_POOL, "float16", 2))
    assert drawn == list(passes("seed", GPU_POOL, "float16", 2))
    assert len({function for function, *_ in drawn}) == len(drawn) / 2 == 11
    for _, arguments, layout in drawn:
        tensors = [spec for spec in arguments.values() if getattr(spec, "ndim", 1) == 4]
        assert all(spec.order in (layout, None) for spec in tensors)


def test_every_line_of_a_known_machine_is_found_again(monkeypatch):
    kinds = [(d, a) for d in ("forward", "backward_data", "backward_filter") for a in LAYOUTS]
    keys = {f"convolution/tf32/{layout}" for layout in LAYOUTS}
    keys |= {f"convolution/tf32/{a}/{d}" for d, a in kinds if d != "forward"}
    keys |= {f"{key}/depthwise" for key in keys}
    lines = {
        key: Line(1e-14 * at, 1e-6 * at, {"flops_x128": 2e-15 * at, "y_bytes": 1e-12 * at})
        for at, key in enumerate(sorted(keys), 1)
    }
    lines |= {
        f"pointwise/float32{kind}": Line(1e-13 * at, 1e-6 * at, {"elements": 3e-13 * at})
        for at, kind in enumerate(
            ["", "/relayout", "/op_tensor", "/softmax", "/batch_normalization",
             "/batch_normalization/sums", "/channel_sum", "/activation_backward", "/pooling",
             "/pooling_backward"], 1
        )
    }  # fmt: skip
    lines["pointwise/float64/statistics"] = Line(0.0, 1e-6)
    machine = dataclasses.replace(shipped("h200"), step_seconds=0.0, compute=ComputeModel(lines))
    monkeypatch.setattr(compute, "ARITHMETIC", (("float32", True),))
    found = collected(SimulatedDevice(machine), quick=False)
    assert set(found) | {"pointwise/float32/relayout"} == set(lines)
    for key, samples in found.items():
        work, features, seconds = zip(*samples, strict=True)
        names = set().union(*features)
        held = {name: [each.get(name, 0.0) for each in features] for name in names}
        line = fit(work, seconds, held).line
        for amount, more, measured in samples:
            assert line.seconds(amount, more) == pytest.approx(measured, rel=1e-4), key


def test_the_host_knows_no_tf32_and_its_lines_stand_in():
    device = get_device("host")
    assert all(not tf32 for dtype, tf32 in arithmetic(device) if dtype == "float32")
    line = Line(1.0, 2.0)
    lines = add_stand_ins(device, {"convolution/float32/channels_last": line})
    assert lines["convolution/tf32/channels_last"] == line


def test_what_a_launch_takes_is_filled_with_numbers_of_its_own_types(monkeypatch):
    """Bits of half numbers, read as float32, are denormal or huge, and slow on a host."""
    device = get_device("host")
    measurements = TimedLaunches(Session(device, 2**30, quick=True))
    launch, buffers = next(
        (launch, buffers)
        for launch, buffers in measurements.passes("float16")
        if {buffers[name].dtype for name in launch.inputs if name} == {"float16", "float32"}
    )
    filled = []
    fill = measurements.bench.fill

    def noted(pointer, nbytes, dtype):
        filled.append((nbytes, dtype))
        fill(pointer, nbytes, dtype)

    monkeypatch.setattr(measurements.bench, "fill", noted)
    measurements.bench.placed((launch, buffers))
    assert sorted(filled) == sorted((buffer.nbytes, buffer.dtype) for buffer in buffers.values())
    device.arena.release_block()


@pytest.mark.parametrize(
    ("dtype", "count"), [("float32", 7), ("float16", 2**19 + 5), ("float64", 2**18)]
)
def test_device_memory_is_filled_with_random_numbers_to_the_last_byte(host_device, dtype, count):
    item = np.dtype(dtype).itemsize
    bench = Session(host_device, 2**26, quick=True).bench
    pointer = bench.reserve((count + 1) * item)
    memory = np.frombuffer((ctypes.c_char * ((count + 1) * item)).from_address(pointer), dtype)
    memory.view(np.uint8)[...] = 0
    bench.fill(pointer, count * item, dtype)
    assert np.isfinite(memory).all()
    assert memory[:count].all()
    assert memory[count] == 0
    assert len(np.unique(memory[: min(count, 100)])) > 5
    host_device.arena.release_block()


def test_threads_run_every_pass_once_to_have_its_kernel_compiled(monkeypatch):
    device, launched = get_device("host"), []
    made = TimedLaunches(Session(device, 2**31, quick=True))
    passes_ = [launch for dtype in made.pass_types for launch, _ in made.passes(dtype)]
    assert sorted(made.pass_types) == ["float16", "float32"]
    monkeypatch.setattr(device, "run", lambda launch, *rest: launched.append(launch))
    with device.arena.lock:
        made.build()
        device.arena.release_block()
    assert len(launched) == len(passes_)
    assert all(launch in passes_ for launch in launched)


@pytest.mark.parametrize(("seconds", "held"), [(1e-5, 8 * 2e-4), (4e-4, 8 * 4e-4), (6e-4, None)])
def test_a_card_is_held_until_short_launches_lie_ready(monkeypatch, seconds, held):
    device, holds = SimulatedDevice(shipped("h200")), []
    monkeypatch.setattr(device, "kind", "cuda", raising=False)
    monkeypatch.setattr(device, "spin", lambda seconds, stream: holds.append(seconds))

    def launch(handle):
        handle.seconds += seconds

    bench = Session(device, 2**31, quick=False).bench
    (found,) = bench.steady([{"compute": lambda: launch}], staged=False)
    assert found["compute"].seconds == pytest.approx(seconds)
    assert holds == pytest.approx([held] * bench.batches if held else [])


# --- beside copies --------------------------------------------------------------------------------


def lost(device, limit):
    """What computing loses, by what it loses it to."""
    session = Session(device, limit, quick=True)
    host_memory(session)
    found = session.taken_by(lambda: losses(session))
    device.arena.release_block()
    return {key.removeprefix("losses/"): held.seconds[0] for key, held in found.items()}


def test_copies_and_steps_of_a_host_take_the_processors_that_compute(host_device):
    """A second of either costs computing a second."""
    machine = dataclasses.replace(shipped("host"), losses=lost(host_device, 2**30))
    assert machine.lost_seconds(9.0, 2.0, 0.5) == pytest.approx(2.0 + 0.5)


@pytest.mark.parametrize("share", [0.0, 0.03, 0.2])
def test_what_a_card_loses_is_found(share):
    machine = dataclasses.replace(shipped("h200"), losses={"copies": share})
    assert lost(SimulatedDevice(machine), 2**31)["copies"] == pytest.approx(share, abs=1e-6)


def test_nothing_is_measured_without_room():
    assert lost(SimulatedDevice(shipped("h200")), 2**22) == {}
