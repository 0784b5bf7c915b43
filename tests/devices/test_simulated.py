"""The simulated device: the executor's own steps, priced and replayed, without data."""

import dataclasses

import numpy as np
import pytest

from ooc_cudnn.call_planner.planner import make_plan
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.errors import DeviceOutOfMemoryError
from ooc_cudnn.functions.call.plan_api import plan, plan_request
from ooc_cudnn.memory.arena import Arena
from ooc_cudnn.operations.core.pointwise import Relayout
from ooc_cudnn.pipeline.execute import make_executor
from ooc_cudnn.pipeline.schedule import plan_schedule
from ooc_cudnn.pipeline.simulate import ReplayedSchedule, simulate
from ooc_cudnn.pipeline.virtual_steps import StepCost
from ooc_cudnn.tensor import DTYPES, TensorSpec
from perfmodel import (
    ComputeModel,
    Line,
    MachineModel,
    Slowdown,
    Split,
    Stages,
    TransferModel,
    closed_form,
    shipped,
)
from perfmodel.machine import SECONDS
from tests.support.forced import rings
from tests.support.simulated_device import (
    SimulatedArray,
    SimulatedDevice,
    simulated_array,
    simulated_operand,
)

H200 = shipped("h200")
WAYS = ("copy_in", "copy_out")


def machine(slowdown=1.0, in_alpha=1e-9, out_alpha=1e-9, compute_alpha=1e-12, beta=0.0):
    """A machine whose every step can be computed by hand."""
    in_line, out_line = Line(in_alpha, beta), Line(out_alpha, beta)
    placements = ("pinned", "pageable", "disk")
    return MachineModel(
        "by hand",
        {},
        TransferModel(
            dict.fromkeys(placements, in_line),
            dict.fromkeys(placements, out_line),
            {"pinned/pinned": Slowdown(slowdown, slowdown)},
        ),
        ComputeModel(
            {"convolution/tf32": Line(compute_alpha, beta), "pointwise/float32": Line(0.0, 0.0)}
        ),
    )


def request_of(model, *, n=8, limit="1GiB", placement="pinned", **arguments):
    x = TensorSpec((n, 32, 64, 64), placement=placement)
    w = TensorSpec((32, 32, 3, 3), placement="device")
    return plan_request(
        "convolution_forward",
        x=x, w=w, padding=1, out=x, machine=model, memory_limit=limit, **arguments,
    )  # fmt: skip


def run(device, submitted, *, overlap=True):
    """Submit (stream, seconds, waits) as steps and return their intervals."""
    run = device.start(overlap=overlap, staged=False, timed=True)
    events = []
    for stream, seconds, waits in submitted:

        def action(handle, seconds=seconds):
            handle.seconds += seconds

        events.append(run.submit(stream, [events[i] for i in waits], action, signals=True))
        run.synchronize(events[-1])
    run.finish(wait=True)
    return [event.interval for event in events]


def executed(request, plan):
    """The trace of a plan that the executor runs on the simulated device."""
    operands = {
        name: simulated_operand(dataclasses.replace(spec, placement=request.crosses_as(name)))
        for name, spec in request.operands
    }
    device, staged = SimulatedDevice(request.machine), request.in_threads and plan.pieces > 1
    return make_executor(request, plan).run(device, operands, staged=staged, wait=True, timed=True)


class TestClock:
    def test_streams_overlap_and_waits_hold(self):
        steps = [("copy_in", 1.0, ()), ("compute", 2.0, (0,)), ("copy_in", 1.0, ())]
        assert run(SimulatedDevice(machine()), steps) == [(0.0, 1.0), (1.0, 3.0), (1.0, 2.0)]

    def test_without_overlap_the_steps_follow_each_other(self):
        steps = [("copy_in", 1.0, ()), ("copy_out", 2.0, ()), ("compute", 1.0, ())]
        slow = SimulatedDevice(machine(slowdown=3.0))
        assert run(slow, steps, overlap=False) == [(0.0, 1.0), (1.0, 3.0), (3.0, 4.0)]

    def test_the_two_directions_slow_each_other_down(self):
        steps = [("copy_in", 2.0, ()), ("copy_out", 2.0, ())]
        slow = SimulatedDevice(machine(slowdown=1.5))
        assert run(slow, steps) == [(0.0, 3.0), (0.0, 3.0)]

    def test_a_cancelled_run_leaves_nothing(self):
        run = SimulatedDevice(machine()).start(overlap=True, staged=False, timed=False)
        run.submit("copy_in", (), lambda handle: None, signals=False)
        run.cancel()
        assert run.call.steps == []


class TestOperands:
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_an_array_of_any_size_takes_no_memory(self, dtype):
        array = simulated_array((2**20, 64, 256, 256), dtype, "disk")
        assert array.nbytes == 2**42 * DTYPES[dtype]
        assert array.strides == (0, 0, 0, 0)

    @pytest.mark.parametrize("placement", ["pinned", "pageable", "disk"])
    def test_slices_keep_the_placement(self, placement):
        array = simulated_array((4, 4, 8, 8), "float32", placement)
        assert array[1:2, :, 2:4].placement == placement
        assert isinstance(array[1:2], SimulatedArray)

    def test_an_operand_on_the_device_is_a_view(self):
        found = simulated_operand(TensorSpec((2, 3, 4, 4), placement="device"))
        assert isinstance(found, DeviceView)
        assert found.shape == (2, 3, 4, 4)

    def test_real_arrays_are_priced_by_where_they_live(self, tmp_path):
        model = dataclasses.replace(
            H200,
            transfer=TransferModel(
                {"pinned": Line(1e-9, 0), "pageable": Line(2e-9, 0), "disk": Line(3e-9, 0)}, {}
            ),
        )
        device = SimulatedDevice(model)
        view = DeviceView(0, "float32", (256,), (1,))
        plain = np.zeros(256, np.float32)
        file = np.memmap(tmp_path / "file", np.float32, "w+", shape=(256,))
        pinned = device.allocate_pinned(1024).view(np.float32)
        seconds = []
        for array in (plain, file[:], pinned[:], view):
            handle = StepCost()
            device.copy_in(view, array, handle)
            seconds.append(handle.seconds)
        inside = model.compute.seconds(Relayout((256,), "float32").work())
        assert seconds == pytest.approx([2 * 1024e-9, 3 * 1024e-9, 1024e-9, inside])
        device.pin(plain.ctypes.data, plain.nbytes)
        assert device._placement(plain[8:]) == "pinned"
        device.unpin(plain.ctypes.data)
        assert device._placement(plain[8:]) == "pageable"


class TestMemory:
    def test_the_arena_is_real_and_only_counts(self):
        device = SimulatedDevice(H200, device_bytes=2**40)
        assert isinstance(device.arena, Arena)
        device.arena.reserve(2**39, 2**40, purpose="a test")
        assert device.free_bytes() == 2**39
        with pytest.raises(DeviceOutOfMemoryError):
            device.arena.allocate_array(2**40 + 1, 2**62)  # the idle block would make way

    def test_memory_is_that_of_the_machine(self):
        assert SimulatedDevice(H200).free_bytes() == H200.device_bytes
        assert SimulatedDevice(machine()).free_bytes() > 2**60

    def test_an_array_is_uncounted_when_it_is_gone(self):
        device = SimulatedDevice(H200)
        allocation = device.arena.allocate_array(4096, 2**30)
        array = device.as_array(allocation, (1024,), "float32")
        del allocation
        assert (array.nbytes, device.arena.array_bytes) == (4096, 4096)
        del array
        assert device.arena.array_bytes == 0


class TestSimulate:
    def test_seconds_by_hand(self):
        """Eight equal pieces, copy-bound: fill, eight copies in, one compute, one copy out."""
        model = machine(in_alpha=4e-9, out_alpha=1e-9)
        request = request_of(model)
        found = make_plan(request, split=Split(n=1, c_y=32, c_x=32, h_y=64))
        piece_bytes = 32 * 64 * 64 * 4
        compute = 2 * 64 * 64 * 9 * 32 * 32 * 1e-12
        trace = simulate(request, found)
        assert trace.seconds == pytest.approx(8 * piece_bytes * 4e-9 + compute + piece_bytes * 1e-9)
        assert trace.moved_bytes("copy_in") == found.bytes_in
        assert trace.moved_bytes("copy_out") == found.bytes_out

    @pytest.mark.parametrize("bound", ["copy_in", "compute", "copy_out"])
    @pytest.mark.parametrize("slowdown", [1.0, 1.3])
    def test_the_closed_form_agrees_where_its_assumptions_hold(self, bound, slowdown):
        """Equal pieces, three slots, one stage that binds clearly."""
        model = machine(
            slowdown,
            in_alpha=4e-9 if bound == "copy_in" else 1e-9,
            out_alpha=4e-9 if bound == "copy_out" else 1e-9,
            compute_alpha=5e-11 if bound == "compute" else 1e-12,
        )
        request = request_of(model, n=32)
        found = make_plan(request, split=Split(n=1, c_y=32, c_x=32, h_y=64))
        assert found.binding_stage == bound
        assert simulate(request, found).seconds == pytest.approx(found.seconds, rel=0.03)

    def test_the_closed_form_knows_a_ring_of_one_slot(self):
        """Nothing is copied beside computing; a copy out still overlaps with the next one in."""
        request = request_of(machine(in_alpha=1e-9, out_alpha=1e-9, compute_alpha=5e-12), n=16)
        split = Split(n=1, c_y=32, c_x=32, h_y=64)
        found = make_plan(request, split=split)
        with rings(depth=1):
            short = make_plan(request, split=split)
        assert 1.2 * found.seconds < simulate(request, short).seconds
        assert simulate(request, short).seconds == pytest.approx(short.seconds, rel=0.01)

    @pytest.mark.parametrize("placements", [("pinned", "pageable"), ("pageable", "pageable")])
    def test_no_more_steps_are_slow_beside_staging_than_there_are(self, placements):
        """Of little that is staged, of which no threads issue the steps."""
        each = 1e-3
        link = {"pinned": Line(1e-9, 0.0), "pageable": Line(2e-9, 0.0)}
        late = {f"{way}/pageable": Line(0.0, 1e-5) for way in ("copy_in", "copy_out")}
        model = dataclasses.replace(
            machine(), transfer=TransferModel(link, link, {}, late), staged_step_seconds=each
        )
        x, y = (TensorSpec((32, 8, 64, 64), placement=place) for place in placements)
        request = plan_request("activation_forward", x=x, out=y, machine=model, memory_limit=2**30)
        assert not request.in_threads
        for pieces in (32, 1):
            split = Split(n=32 // pieces, c_y=8, c_x=1, h_y=64)
            found = make_plan(request, split=split)
            replayed = simulate(request, found).seconds
            slow = 3 * pieces * each if pieces > 1 else 0.0
            assert slow <= found.seconds < slow + 0.03
            assert replayed == pytest.approx(found.seconds, abs=3 * each)

    @pytest.mark.parametrize("both", [False, True])
    def test_narrow_rows_that_lie_apart_cost_something(self, both):
        line = Line(1e-9, 0.0, {"rows": 1e-6})
        link = TransferModel({"pinned": line}, {"pinned": line})
        device = SimulatedDevice(dataclasses.replace(machine(), transfer=link))
        rows, width = 16, 2**12
        host = simulated_array((rows, width // 4), "float32", "pinned", (3 * 2**19, 1))
        view = DeviceView(0, "float32", (rows, width // 4), (width // 4, 1))
        run = device.start(overlap=True, staged=False, timed=True)
        events = [
            run.submit("copy_in", (), lambda on: device.copy_in(view, host, on), signals=True)
        ]
        if both:
            events.append(
                run.submit("copy_out", (), lambda on: device.copy_out(host, view, on), signals=True)
            )
        run.finish(wait=True)
        for event in events:
            assert event.interval[1] == pytest.approx(rows * (width * 1e-9 + 1e-6))

    @pytest.mark.parametrize("overlap", [True, False])
    def test_many_small_pieces_take_what_issuing_them_takes(self, overlap):
        """Three steps of a piece, one after the other on the host, and the last copy out."""
        from ooc_cudnn.settings import settings

        model = dataclasses.replace(machine(), step_seconds=1e-3)
        with settings(overlap=overlap):
            request = request_of(model, n=64)
            found = make_plan(request, split=Split(n=1, c_y=32, c_x=32, h_y=64))
        trace = simulate(request, found)
        assert trace.seconds == pytest.approx(64 * 3 * 1e-3, rel=0.02)
        assert found.seconds == pytest.approx(trace.seconds, rel=0.02)

    @pytest.mark.parametrize(("placement", "each"), [("pinned", 1e-3), ("pageable", 2e-3)])
    def test_threads_that_stage_hand_steps_to_each_other(self, placement, each):
        model = dataclasses.replace(machine(), step_seconds=1e-3, staged_step_seconds=2e-3)
        request = request_of(model, n=64, placement=placement)
        found = make_plan(request, split=Split(n=1, c_y=32, c_x=32, h_y=64))
        trace = simulate(request, found)
        assert trace.seconds == pytest.approx(64 * 3 * each, rel=0.02)
        assert found.seconds == pytest.approx(trace.seconds, rel=0.02)

    @pytest.mark.parametrize(("n", "placement"), [(1, "disk"), (1, "pageable"), (64, "pageable")])
    def test_little_that_is_staged_is_priced_as_pinned(self, n, placement):
        """Half a megabyte is worth no threads; 32 are."""
        predicted, replayed = [], []
        for where in ("pinned", placement):
            request = request_of(H200, n=n, placement=where)
            found = make_plan(request)
            predicted.append(found.seconds)
            replayed.append(simulate(request, found).seconds)
        for pinned, staged in (predicted, replayed):
            assert staged == pytest.approx(pinned) if n == 1 else staged > 1.2 * pinned

    def test_without_overlap_the_stages_add_up(self):
        from ooc_cudnn.settings import settings

        with settings(overlap=False):
            compute = dataclasses.replace(H200.compute, launching={})
            at_once = dict.fromkeys(set(SECONDS) - {"staged_step_seconds"}, 0.0)
            request = request_of(dataclasses.replace(H200, compute=compute, **at_once))
            found = make_plan(request, split=Split(n=2, c_y=32, c_x=32, h_y=32))
        assert found.overlap is False
        trace = simulate(request, found)
        cost = [trace.busy_seconds(stream) for stream in ("copy_in", "compute", "copy_out")]
        assert trace.seconds == pytest.approx(sum(cost))
        assert trace.seconds == pytest.approx(found.seconds, rel=0.01)

    def test_accumulating_pieces_and_halos_run(self):
        request = request_of(H200, limit="2MiB", n=2)
        found = make_plan(request, split=Split(n=1, c_y=16, c_x=8, h_y=16))
        trace = simulate(request, found)
        assert len({s.piece for s in trace.steps if s.stream == "compute"}) == found.pieces
        assert found.pieces == 2 * 2 * 4 * 4
        assert trace.moved_bytes("copy_out") == found.bytes_out

    def test_operands_on_the_device_are_computed_on_in_place(self):
        request = request_of(H200, placement="device")
        found = make_plan(request)
        assert found.in_core
        trace = simulate(request, found)
        assert {step.stream for step in trace.steps} == {"compute"}

    def test_a_call_far_larger_than_this_machine(self):
        x = TensorSpec((512, 64, 256, 256), placement="disk")
        w = TensorSpec((64, 64, 3, 3))
        arguments = {"x": x, "w": w, "padding": 1, "machine": "h200", "memory_limit": "1GiB"}
        found = plan("convolution_forward", **arguments)
        trace = simulate(plan_request("convolution_forward", **arguments), found)
        assert trace.seconds == pytest.approx(found.seconds, rel=0.05)

    def test_a_plan_that_takes_more_than_its_limit_is_refused(self):
        request = request_of(H200)
        found = make_plan(request)
        object.__setattr__(found, "memory_limit", found.device_bytes - 1)
        with pytest.raises(DeviceOutOfMemoryError):
            executed(request, found)

    def test_a_plan_that_takes_more_than_it_says_is_refused(self):
        request = request_of(H200)
        found = make_plan(request)
        less = dataclasses.replace(found, memory=found.memory[:-1])
        with pytest.raises(ValueError, match="its buffers take"):
            simulate(request, less)

    @pytest.mark.parametrize("placement", ["device", "pinned", "pageable", "disk"])
    @pytest.mark.parametrize("depth", [1, 2])
    def test_the_executor_on_this_device_takes_as_long(self, placement, depth):
        """But for what the call takes before its first step, and for others that are staged."""
        link = H200.transfer
        latency = {way: Line(line.alpha, line.beta) for way, line in link.latency.items()}
        model = dataclasses.replace(H200, transfer=dataclasses.replace(link, latency=latency))
        request = request_of(model, placement=placement)
        with rings(depth=depth):
            found = make_plan(request, split=Split(n=2, c_y=32, c_x=32, h_y=16))
        trace = executed(request, found)
        begun = request.setup_seconds - model.step_seconds
        simulated = simulate(request, found)
        for expected, step in zip(simulated.steps, trace.steps, strict=True):
            moments = (step.start_seconds + begun, step.stop_seconds + begun)
            assert (expected.start_seconds, expected.stop_seconds) == pytest.approx(moments)
            assert dataclasses.replace(expected, start_seconds=0, stop_seconds=0) == (
                dataclasses.replace(step, start_seconds=0, stop_seconds=0)
            )


class TestReplayed:
    """What a call takes, not only its steps."""

    def replayed(self, model, *, n=16, placement="pinned", depth=2):
        request = request_of(model, n=n, placement=placement)
        with rings(depth=depth):
            found = make_plan(request, split=Split(n=1, c_y=32, c_x=32, h_y=64))
        return ReplayedSchedule(plan_schedule(request, found))

    def test_a_call_is_set_up_before_its_first_step(self):
        plain = self.replayed(machine()).seconds
        model = dataclasses.replace(machine(), call_seconds=1.0)
        found = self.replayed(model)
        assert found.timeline.start[0] == pytest.approx(0.5)
        assert found.seconds == pytest.approx(max(0.5 + plain, 1.0))

    def test_a_call_that_copies_nothing_is_repeated_as_it_was(self):
        model = dataclasses.replace(machine(compute_alpha=1e-12), call_seconds=1.0)
        request = request_of(model, placement="device")
        found = make_plan(request)
        replayed = ReplayedSchedule(plan_schedule(request, found))
        assert replayed.seconds == pytest.approx(0.3, rel=0.01)

    @pytest.mark.parametrize(("depth", "others"), [(1, 1), (2, 3), (3, 5)])
    def test_what_is_staged_beside_others_holds_its_slot_for_longer(self, depth, others):
        """Slots of x and y; a copy is late by its own latency where no slot is waited for."""
        link = dict.fromkeys(("pinned", "pageable"), Line(1e-12, 0.0))
        late = {f"{way}/pageable": Line(0.0, 1.0, {"others": 0.25}) for way in WAYS}
        model = dataclasses.replace(machine(), transfer=TransferModel(link, link, {}, late))
        found = self.replayed(model, n=32, placement="pageable", depth=depth)
        late = [cost for cost in found.costs if cost.latency]
        assert {cost.latency for cost in late} == {1.0}
        assert [cost.turn for cost in late] == pytest.approx([1.0 + 0.25 * others] * len(late))
        rounds = -(-32 // depth) - 1
        expected = 1.0 + rounds * (1.0 + 0.25 * others) + 1.0
        assert found.seconds == pytest.approx(expected, rel=0.02)

    def test_a_slot_is_held_for_what_the_link_takes_and_not_for_what_the_threads_do(self):
        """Of a file: threads take 0.4 s a piece, the link next to nothing; two slots turn."""
        link = {"pinned": Line(0.0, 0.0), "disk": Line(0.4 / (32 * 64 * 64 * 4), 0.0)}
        late = {"copy_in/disk": Line(0.0, 0.5)}
        model = dataclasses.replace(machine(), transfer=TransferModel(link, link, {}, late))
        x = TensorSpec((32, 32, 64, 64), placement="disk")
        request = plan_request(
            "activation_forward", x=x, out=dataclasses.replace(x, placement="pinned"),
            machine=model, memory_limit=2**30,
        )  # fmt: skip
        with rings(depth=2):
            found = make_plan(request, split=Split(n=1, c_y=32, c_x=1, h_y=64))
        replayed = ReplayedSchedule(plan_schedule(request, found))
        assert replayed.seconds == pytest.approx(0.5 + 32 * 0.4, rel=0.01)


def test_the_closed_form_of_a_hand_made_cost_is_the_replay():
    """The one assumption of `machine` above: no placement but "device" is free."""
    cost = Stages(8.0, 4.0, 2.0, 1.0, 0.5, 0.5, 0.25)
    assert closed_form(cost) == pytest.approx(8.75)
