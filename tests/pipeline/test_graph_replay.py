"""Programs that are run again at the same addresses: recorded once, and launched whole."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.arrays.making import empty_in
from ooc_cudnn.devices import get_device
from ooc_cudnn.operations.core.subcall import SubCall
from ooc_cudnn.operations.external.calls import Cost, ExternalCall, ExternalInput
from ooc_cudnn.pipeline import graph_replay
from ooc_cudnn.pipeline.graph_replay import MOST_RECORDED
from ooc_cudnn.pipeline.program import Move


class Recorded:
    """What was submitted, done again in its order."""

    def __init__(self, issue):
        self.actions, self.read = [], []
        issue(self)

    def submit(self, stream, waits, action, *, signals):
        self.actions.append(action)

    def note_read(self, stream):
        self.read.append(len(self.actions))

    def launch(self):
        for action in self.actions:
            action(None)

    def wait(self):
        pass

    def wait_until_read(self):
        pass


class Recorder:
    """Makes the host device one that records, whose memory is all pinned."""

    def __init__(self, monkeypatch):
        self.made, self.pinned = [], True
        host = get_device("host")
        monkeypatch.setattr(type(host), "is_pinned", lambda *_: self.pinned)
        monkeypatch.setattr(type(host), "record", lambda _, issue, *, overlap: self.record(issue))
        monkeypatch.setattr(host, "start", self.start(host.start))

    def record(self, issue):
        self.made.append(Recorded(issue))
        return self.made[-1]

    @staticmethod
    def start(opened):
        def start(**how):
            run = opened(**how)
            run.may_be_recorded = True
            return run

        return start


@pytest.fixture
def recorder(monkeypatch):
    return Recorder(monkeypatch)


def network():
    net = ooc_cudnn.Network(seed=3)
    x = net.input("x", (2, 2, 6, 5), "float64")
    for _ in range(6):
        x = net.activation(net.convolution(x, 3, window=3, padding=1), "tanh")
    return net, net.mean_squared_error(x, net.input("target", x.shape, "float64"))


def pinned(shape, seed):
    array = empty_in(get_device("host"), "pinned", shape, "float64", "channels_first")
    array[...] = np.random.default_rng(seed).standard_normal(shape)
    return array


@pytest.fixture
def step():
    net, loss = network()
    with ooc_cudnn.settings(device="host"):
        yield net.training_step(loss, memory_limit="16MiB", policy="keep")


def inputs(seed=0):
    return {"x": pinned((2, 2, 6, 5), seed), "target": pinned((2, 3, 6, 5), seed + 1)}


def test_a_step_that_is_repeated_is_recorded_and_makes_the_same(recorder, step):
    given = inputs()
    losses, gradients = [], []
    for _ in range(12):
        losses.append(step(**given))
        gradients.append({name: np.array(each) for name, each in step.gradients.items()})
    assert 0 < len(recorder.made) <= MOST_RECORDED
    assert set(losses) == {losses[0]}
    for found in gradients[1:]:
        for name, gradient in found.items():
            np.testing.assert_array_equal(gradient, gradients[0][name])


def test_what_is_recorded_reads_what_its_arrays_hold_now(recorder, step):
    given, others = inputs(), inputs(5)
    for _ in range(12):
        step(**given)
    assert recorder.made
    made = len(recorder.made)
    expected = step(**others)  # at other addresses: step by step
    assert len(recorder.made) == made
    for name, array in given.items():
        array[...] = others[name]
    assert step(**given) == expected
    assert len(recorder.made) == made


def test_memory_that_is_no_longer_pinned_is_copied_step_by_step(recorder, step):
    given = inputs()
    (expected,) = {step(**given) for _ in range(12)}
    recorder.pinned = False
    for each in recorder.made:
        each.actions.clear()  # nothing would be written
    assert step(**given) == expected


def test_other_memory_at_the_same_addresses_is_another_run(recorder, step, monkeypatch):
    """On a card a recorded copy is of memory that is gone: an invalid argument, or worse."""
    number = 1
    monkeypatch.setattr(type(get_device("host")), "allocation_of", lambda *_: number)
    given = inputs()
    (expected,) = {step(**given) for _ in range(12)}
    assert recorder.made
    number = 2
    for each in recorder.made:
        each.actions.clear()  # nothing would be written
    made = len(recorder.made)
    given["x"][...] += 1.0
    changed = [step(**given) for _ in range(12)]
    assert len(set(changed)) == 1
    assert changed[0] != expected
    assert len(recorder.made) > made


def test_what_cannot_be_recorded_is_tried_once(monkeypatch, recorder, step):
    tried = []
    monkeypatch.setattr(type(get_device("host")), "record", lambda *_, **how: tried.append(how))
    given = inputs()
    assert len({step(**given) for _ in range(12)}) == 1
    assert 0 < len(tried) <= MOST_RECORDED
    before = len(tried)
    for _ in range(6):
        step(**given)
    assert len(tried) == before


def test_steps_that_somebody_watches_are_issued(recorder, step):
    given = inputs()
    for _ in range(12):
        step(**given)
    with ooc_cudnn.profile() as profiled:
        step(**given)
    assert len(profiled.calls[0].steps) > 20


def test_short_programs_and_those_that_the_host_is_part_of_are_not_recorded(recorder, monkeypatch):
    x = pinned((2, 3, 8, 8), 1)
    out = pinned(x.shape, 2)
    with ooc_cudnn.settings(device="host"):
        for _ in range(5):
            ooc_cudnn.activation_forward(x, out=out)
        assert not recorder.made
        monkeypatch.setattr(graph_replay, "FEWEST_TASKS", 10**6)
        net, loss = network()
        step = net.training_step(loss, memory_limit="16MiB", policy="keep")
        for _ in range(6):
            step(**inputs())
    assert not recorder.made


def test_what_another_library_computes_is_not_recorded():
    """It takes memory of its own for each run, which is somebody else's when it is repeated."""
    net = ooc_cudnn.Network(seed=3)
    x = net.input("x", (2, 2, 6, 5), "float64")
    y = net.activation(net.convolution(x, 3, window=1), "tanh")
    plan = SimpleNamespace(rings=(), compute_seconds=1e-5, copy_in_seconds=0, copy_out_seconds=0)

    def program(call):
        request = SimpleNamespace(chain=call)
        task = SimpleNamespace(is_on_host=False, request=request, plan=plan)
        return SimpleNamespace(given={}, tasks=[task] * graph_replay.FEWEST_TASKS)

    ours = net.forward_phases(y).phases[0].call
    taken = (ExternalInput((4, 3), "float32", True),)
    theirs = ExternalCall(Theirs(), taken, (4, 3), "float32", 4, 4)
    parts = SubCall.of_images(ours, (0, 1)), SubCall.of_images(theirs, (0, 1))
    assert all(graph_replay.may_be_recorded(program(call), 20) for call in (ours, parts[0]))
    assert all(graph_replay.may_be_recorded(program(call), 20) for call in (theirs, parts[1]))
    drawing = replace(theirs, draws=True)
    looking = replace(theirs, computation=Theirs(may_be_recorded=False))
    for call in (drawing, looking, SubCall.of_images(looking, (0, 1))):
        assert not graph_replay.may_be_recorded(program(call), 20)


@dataclass(frozen=True)
class Theirs:
    """A computation of another library."""

    name: str = "theirs"
    why: str = "it is a test"
    may_be_recorded: bool = True

    def cost(self, images, wanted):
        return Cost(0, 0, 0)


def test_the_end_of_reading_is_noted_behind_the_last_copy_of_what_is_given(recorder, step):
    given = inputs()
    for _ in range(12):
        step(**given)
    for each in recorder.made:
        assert len(each.read) == 1
    names = {*given, *step._network.parameters, "mean_squared_error_1.gradient"}
    executor = step._last_ready[1].executor
    steps, items = executor.schedule.steps, executor.program.items
    copies = [
        index for index, each in enumerate(steps)
        if each.copies == "copy_in" and copied(items[each.item], each) in names
    ]  # fmt: skip
    assert recorder.made[0].read[0] == copies[-1] + 1


def copied(item, step):
    return item.ends[1] if isinstance(item, Move) else item.binds[step.places[0].operand]
