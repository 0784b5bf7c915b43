"""The executor: the same steps and bits however it runs, in exactly the memory the plan counts."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.errors import DeviceOutOfMemoryError
from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.elementwise.activation import Activation
from ooc_cudnn.operations.elementwise.binary import AddTensor
from ooc_cudnn.pipeline import lookahead
from ooc_cudnn.pipeline.lookahead import RUN_AHEAD_PIECES
from ooc_cudnn.pipeline.task_buffers import place_buffers
from ooc_cudnn.pipeline.views import region_of
from perfmodel import Split
from tests.support import reference
from tests.support.forced import DEPTHS, PLENTY, Forced, legal_splits
from tests.support.sampling import number

pytestmark = pytest.mark.usefixtures("no_threads_left", "searches_are_shared")


@pytest.fixture
def made(random):
    convolution = Convolution.of((2, 3, 9, 5), (4, 3, 3, 3), padding=1)
    shape = convolution.output_shape
    chain = Chain((convolution, AddTensor(shape), Activation(shape, "relu")), "float32")
    arrays = {
        name: random.standard_normal(operand.shape).astype("f4")
        for name, operand in chain.operands.items()
    }
    return Forced(chain, arrays)


def figures(trace):
    return [(s.stream, s.piece, s.operands, s.host_bytes) for s in trace.steps]


def test_overlap_timing_and_progress_alter_nothing(made):
    y = made.arrays["y"]
    for split in [*legal_splits(made.chain)][:: number(61, of=7)]:
        results, steps = [], []
        for depth in DEPTHS:
            executors = {
                overlap: made.executor(split, depth=depth, overlap=overlap)
                for overlap in (True, False)
            }
            for overlap, options in (
                (True, {"timed": True}),
                (False, {"timed": True}),
                (True, {}),
                (False, {}),
                (True, {"on_piece": lambda done: None}),
            ):
                y[...] = np.nan
                executor = executors[overlap]
                trace = made.execute(executor, **options)
                results.append(y.copy())
                if trace is not None:
                    steps.append(figures(trace))
                    assert len(trace.steps) == len(executor.schedule.steps)
            assert steps[-1] == steps[-2]
        assert all(np.array_equal(results[0], result) for result in results)


def test_what_a_first_run_launches_is_compiled_ahead_once(made, host_device, monkeypatch):
    """Each step that computes, and no copy."""
    collected, run = [], host_device.run

    def compile_ahead(actions):
        monkeypatch.setattr(host_device, "run", lambda launch, *_: collected.append(launch))
        for action in actions:
            action(None)
        monkeypatch.setattr(host_device, "run", run)

    monkeypatch.setattr(host_device, "compile_ahead", compile_ahead)
    executor = made.executor(made.chain.extents, depth=1)
    for _ in range(2):
        made.execute(executor)
    assert collected == [launch for step in executor.schedule.steps for launch in step.launches]
    assert len(collected) > 1


def test_the_layout_takes_what_the_plan_counts_and_overlaps_nowhere(made):
    for split in [*legal_splits(made.chain)][::5]:
        for depth in DEPTHS:
            executor = made.executor(split, depth=depth, layout="channels_last")
            layout, plan = executor.offsets[0], executor.program.items[0].plan
            assert layout.total_bytes == plan.device_bytes
            spans = [(layout.workspace[0], sum(layout.workspace))]
            for offset, size, slots in layout.slots.values():
                spans += [(offset + i * size, offset + (i + 1) * size) for i in range(slots)]
            for offset, nbytes in layout.buffers.values():
                spans.append((offset, offset + nbytes))
            spans.sort()
            for (_, end), (start, _) in itertools.pairwise(spans):
                assert end <= start
            assert spans[-1][1] <= layout.total_bytes
            assert all(start % 256 == 0 for start, _ in spans)


def test_a_plan_that_counts_wrong_is_refused(made):
    executor = made.executor(Split(n=1, c_y=4, c_x=3, h_y=3))
    plan = executor.program.items[0].plan
    wrong = replace(plan, memory=(*plan.memory, ("nothing", 256)))
    with pytest.raises(ValueError, match="the plan counts"):
        place_buffers(wrong, executor.schedule.sizes[0])


def test_every_byte_of_the_block_may_hold_nan_before(made, host_device):
    """Nothing reads memory that the call has not written: slots, sums, workspace."""
    expected = np.maximum(
        reference.convolution(made.arrays["x"], made.arrays["w"], padding=1)
        + reference.bias(made.arrays["b"], 4),
        0,
    )
    y = made.arrays["y"]
    for split in [*legal_splits(made.chain)][:: number(7, of=3)]:
        executor = made.executor(split)
        host_device.release_caches()
        host_device.arena.reserve(executor.program.device_bytes, 2**30, purpose="a test")
        host_device.arena._block.bytes[...] = 255  # NaN in every dtype
        y[...] = np.nan
        made.run(split)
        bound = reference.bound(made.arrays["x"], made.arrays["w"], made.arrays["b"], padding=1)
        reference.assert_close(y, expected, bound, str(split))


def test_nothing_is_written_beside_the_block(made, host_device):
    for split in [*legal_splits(made.chain)][::5]:
        executor = made.executor(split, depth=2)
        host_device.release_caches()
        pointer = host_device.arena.reserve(executor.program.device_bytes, 2**30, purpose="a test")
        memory = host_device.arena._block.bytes
        used = pointer - memory.ctypes.data, executor.program.device_bytes
        memory[: used[0]] = 99
        memory[sum(used) :] = 99
        made.run(split, depth=2)
        assert (memory[: used[0]] == 99).all()
        assert (memory[sum(used) :] == 99).all()


def test_a_call_follows_its_block_to_another_place(made, host_device):
    """What an executor keeps of one call is not where the next one works."""
    executor = made.executor(Split(n=1, c_y=2, c_x=2, h_y=3), depth=2)
    sources = {name: wrapped.array for name, wrapped in made.wrapped.items()}
    host_device.release_caches()
    results, blocks = [], []
    for size in (1, 2, 3):  # each block larger than the last, which is kept, so it is elsewhere
        host_device.arena.reserve(size * executor.program.device_bytes, PLENTY, purpose="a test")
        blocks.append(host_device.arena._block)
        for block in blocks:
            block.bytes[...] = 255
        made.arrays["y"][...] = np.nan
        executor.run(host_device, sources, staged=True, wait=True, limit_bytes=PLENTY)
        results.append(made.arrays["y"].copy())
        assert all((block.bytes == 255).all() for block in blocks[:-1])
    assert len({block.pointer for block in blocks}) == 3
    assert not np.isnan(results[0]).any()
    assert all(np.array_equal(results[0], result) for result in results)


def test_one_byte_less_than_the_plan_is_refused(made, host_device):
    executor = made.executor(Split(n=1, c_y=4, c_x=3, h_y=3))
    sources = {name: wrapped.array for name, wrapped in made.wrapped.items()}
    bytes_ = executor.program.items[0].plan.device_bytes
    options = {"staged": True, "wait": True}
    with pytest.raises(DeviceOutOfMemoryError):
        executor.run(host_device, sources, limit_bytes=bytes_ - 1, **options)
    executor.run(host_device, sources, limit_bytes=bytes_, **options)


def test_progress_counts_each_piece_once_and_in_order(made):
    split = Split(n=1, c_y=1, c_x=1, h_y=1)
    seen = []
    executor, _ = made.run(split, on_piece=seen.append)
    assert executor.program.items[0].plan.pieces > 2 * RUN_AHEAD_PIECES
    assert seen == list(range(1, executor.program.items[0].plan.pieces + 1))


def test_the_host_stays_close_to_the_device(made, host_device, monkeypatch):
    """No more than so many pieces are under way, however long the call."""
    monkeypatch.setattr(lookahead, "RUN_AHEAD_SECONDS", 0.0)
    submitted, ended, most = 0, 0, 0
    real = type(host_device).run

    def run(self, *arguments):
        nonlocal ended
        real(self, *arguments)
        ended += 1

    monkeypatch.setattr(type(host_device), "run", run)
    from ooc_cudnn.devices.worker import WorkerRun

    submit = WorkerRun.submit

    def counted(self, stream, waits, action, *, signals):
        nonlocal submitted, most
        if stream == "compute":
            submitted += 1
            most = max(most, submitted - ended)
        return submit(self, stream, waits, action, signals=signals)

    monkeypatch.setattr(WorkerRun, "submit", counted)
    made.run(Split(n=1, c_y=4, c_x=3, h_y=1))
    made.run(Split(n=1, c_y=1, c_x=3, h_y=1))
    assert submitted == 18 + 72
    assert most <= RUN_AHEAD_PIECES + 2


def test_region_of(random):
    x = random.standard_normal((3, 4, 5))
    region = ((1, 3), (0, 4), (2, 4))
    assert np.shares_memory(region_of(x, region), x)
    assert np.array_equal(region_of(x, region), x[1:3, :, 2:4])


@pytest.mark.parametrize("overlap", [True, False])
def test_a_call_from_inside_a_progress_callable_is_refused(random, overlap):
    """The block is one: a nested call would overwrite what the outer one has in it."""
    x = random.standard_normal((4, 2, 40, 9)).astype("f4")
    w = random.standard_normal((3, 2, 3, 3)).astype("f4")
    refused, made = [], []

    def progress(done, total):
        made.append(ooc_cudnn.empty((50,)))  # may not take the block away either
        made[-1][...] = np.nan
        with pytest.raises(ooc_cudnn.OocError, match="progress callable") as caught:
            ooc_cudnn.convolution_forward(x, w)
        refused.append(caught)

    with ooc_cudnn.settings(memory_limit="6KiB", progress=progress, overlap=overlap):
        y = ooc_cudnn.convolution_forward(x, w)
    assert refused
    reference.assert_close(y, reference.convolution(x, w), reference.bound(x, w))
    made.clear()
    assert np.array_equal(ooc_cudnn.convolution_forward(x, w).shape, y.shape)
