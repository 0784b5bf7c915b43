"""`profile()`: it sees every call, and alters none."""

from __future__ import annotations

import itertools
import json
import threading

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.profiling import recording

X, W = np.ones((4, 2, 12, 5), "f4"), np.ones((3, 2, 3, 3), "f4")


def run(**options):
    with ooc_cudnn.settings(memory_limit="3KiB"):
        return ooc_cudnn.convolution_forward(X, W, **options)


def test_calls_in_order_with_their_figures():
    with ooc_cudnn.profile() as p:
        run()
        run(padding=1)
    assert recording() is None
    run()
    assert [call.function for call in p.calls] == ["convolution_forward"] * 2
    for call in p.calls:
        assert call.plan.pieces > 1
        assert call.seconds > 0
        assert call.predicted_seconds == call.plan.seconds > 0
        assert (call.bytes_in, call.bytes_out) == (call.plan.bytes_in, call.plan.bytes_out)
        assert call.peak_device_bytes == call.plan.device_bytes
        assert call.trace.seconds <= call.seconds
        assert len({step.piece for step in call.steps}) == call.plan.pieces
        assert str(call).startswith("convolution_forward: ")
    assert len(str(p).splitlines()) == 2


def test_profiling_alters_neither_schedule_nor_result(monkeypatch):
    from ooc_cudnn.devices.worker import WorkerRun

    submitted, real = [], WorkerRun.submit

    def submit(self, stream, waits, action, *, signals):
        submitted[-1].append((stream, len(waits)))
        return real(self, stream, waits, action, signals=signals)

    monkeypatch.setattr(WorkerRun, "submit", submit)
    submitted.append([])
    plain = run()
    submitted.append([])
    with ooc_cudnn.profile():
        profiled = run()
    submitted.append([])
    with ooc_cudnn.settings(progress=lambda done, total: None):
        watched = run()
    assert submitted[0] == submitted[1] == submitted[2]
    assert np.array_equal(plain, profiled)
    assert np.array_equal(plain, watched)


def test_steps_of_a_stream_do_not_overlap_and_come_after_what_they_wait_for():
    with ooc_cudnn.profile() as p:
        run()
    for stream in ("copy_in", "compute", "copy_out"):
        steps = [step for step in p.calls[0].steps if step.stream == stream]
        assert steps
        for earlier, later in itertools.pairwise(steps):
            assert earlier.stop_seconds <= later.start_seconds
    by_piece = {}
    for step in p.calls[0].steps:
        by_piece.setdefault(step.piece, {}).setdefault(step.stream, []).append(step)
    for steps in by_piece.values():
        (compute,) = steps["compute"]
        assert all(s.stop_seconds <= compute.start_seconds for s in steps.get("copy_in", ()))
        assert all(s.start_seconds >= compute.stop_seconds for s in steps.get("copy_out", ()))


def test_nested_blocks_and_threads_see_their_own_calls():
    with ooc_cudnn.profile() as outer:
        run()
        with ooc_cudnn.profile() as inner:
            run()
        run()
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert (len(outer.calls), len(inner.calls)) == (2, 1)


def test_a_failed_call_is_not_recorded():
    with ooc_cudnn.profile() as p:
        with pytest.raises(ValueError, match="stride"):
            run(stride=0)
        run()
    assert len(p.calls) == 1


def test_save_and_plot(tmp_path):
    pytest.importorskip("matplotlib")
    with ooc_cudnn.profile() as p:
        run()
        ooc_cudnn.convolution_forward(X, W)
    p.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    steps = [event for event in events if event["ph"] == "X"]
    assert len(steps) == sum(len(call.steps) for call in p.calls)
    moved = sum(event["args"]["bytes"] for event in steps if event["cat"] == "copy_in")
    assert moved == sum(call.bytes_in for call in p.calls)
    p.plot(tmp_path / "timeline.png")
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")


def test_nothing_recorded(tmp_path):
    with ooc_cudnn.profile() as p:
        pass
    for write in (p.save, p.plot):
        with pytest.raises(ValueError, match="nothing was recorded"):
            write(tmp_path / "x.png")
    assert not list(tmp_path.iterdir())


def test_what_a_step_computes_says_which_part_it_is_of():
    net = ooc_cudnn.Network()
    x = net.input("x", (2, 3, 8, 8))
    y = net.activation(net.convolution(x, 4, window=3, padding=1))
    loss = net.mean_squared_error(y, net.input("target", y.shape))
    given = {name: np.ones(net.graph.tensors[name].shape, "f4") for name in ("x", "target")}
    with ooc_cudnn.profile() as p:
        net.training_step(loss, memory_limit="64KiB")(**given)
        run()
    step, call = p.calls
    computed = [each for each in step.steps if each.stream == "compute"]
    parts = [part for part, _ in itertools.groupby(each.part for each in computed)]
    assert parts[0] == "forward"
    assert "backward" in parts
    gradients = [each for each in computed if each.task.endswith("filter gradient")]
    assert {each.part for each in gradients} == {"backward"}
    assert {each.part for each in step.steps if each.stream != "compute"} == {""}
    assert {each.part for each in call.steps} == {""}
