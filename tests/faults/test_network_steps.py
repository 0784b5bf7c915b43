"""Steps of training that are cut short: what lives between steps is as before, or all of it new."""

from __future__ import annotations

import signal

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.arrays import making
from ooc_cudnn.errors import DeviceOutOfMemoryError, HostOutOfMemoryError
from ooc_cudnn.memory import release
from tests.support.left_behind import in_use, left_behind
from tests.support.points import Pressed
from tests.support.refusals import Refusing


@pytest.fixture(autouse=True)
def as_python_has_it():
    """Ctrl-C raises KeyboardInterrupt, whatever runs the tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Case:
    """A step that changes running statistics and the state of dropout, in several pieces."""

    def __init__(self):
        net = self.net = ooc_cudnn.Network(seed=2)
        x = net.input("x", (4, 3, 6, 5), "float64")
        y = net.batch_normalization(net.convolution(x, 4, window=3, padding=1))
        y = net.dropout(net.activation(y, "relu"), 0.3)
        target = net.input("target", y.shape, "float64")
        self.loss = net.mean_squared_error(y, target)
        random = np.random.default_rng(1)
        self.inputs = {
            n: random.standard_normal(t.shape) for n, t in (("x", x), ("target", target))
        }
        full = net.plan(self.loss, memory_limit="1MiB", policy="keep").device_bytes
        self.limit = full * 2 // 3
        self.first = {name: np.array(array) for name, array in net.running.items()}
        self.fresh()
        self.old = self.state()
        self.step(**self.inputs)
        self.new = self.state()
        assert not self.same(self.old, self.new)

    def fresh(self):
        """A step of its own after one call, from where the first began."""
        for name, array in self.first.items():
            self.net.running[name] = array.copy()
        self.step = self.net.training_step(self.loss, memory_limit=self.limit)
        self.step(**self.inputs)

    def back(self):
        """To where it was after the first call."""
        for name in self.net.running:
            self.net.running[name] = self.old[name].copy()
        self.step.gradients = {
            name: self.old[f"gradient of {name}"].copy() for name in self.step.gradients
        }

    def state(self):
        """Copies of all that lives between steps."""
        found = {**self.net.parameters, **self.net.running}
        found |= {f"gradient of {name}": each for name, each in self.step.gradients.items()}
        return {name: np.array(array) for name, array in found.items()}

    @staticmethod
    def same(one, other):
        return one.keys() == other.keys() and all(
            np.array_equal(array, other[name]) for name, array in one.items()
        )

    def wrong(self):
        """What is wrong after a call that was cut short."""
        now, kept = self.state(), {}
        found = []
        if not (self.same(now, self.old) or self.same(now, self.new)):
            kept = {n: ("old" if np.array_equal(a, self.old[n]) else "new") for n, a in now.items()}
            found.append(f"half of a step: {kept}")
        self.back()
        self.step(**self.inputs)
        if not self.same(self.state(), self.new):
            found.append("the next call")
        return found


@pytest.mark.parametrize("end", [False, True], ids=["all through", "at the end"])
def test_ctrl_c_changes_nothing_or_all(end):
    case = Case()
    with Pressed() as none:
        case.step(**case.inputs)
    count = none.visited
    assert count > 1000
    points = range(count - 90, count + 1, 2) if end else range(1, count, count // 25)
    found = {}
    for at in points:
        case.back()
        held = in_use()
        try:
            with Pressed(at):
                case.step(**case.inputs)
        except KeyboardInterrupt:
            pass
        wrong = left_behind(held) if case.same(case.state(), case.old) else []
        if wrong := wrong + case.wrong():
            found[at] = wrong
    assert found == {}


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for good"])
def test_memory_that_is_refused_changes_nothing(monkeypatch, host_device, for_good):
    case = Case()
    memory = Refusing(
        monkeypatch,
        (host_device.arena, "_allocate"),
        (host_device, "allocate_pinned"),
        (making, "_pageable"),
    )
    release()
    case.back()
    memory.begin(range(0))
    before = memory.asked
    case.step(**case.inputs)
    count = memory.asked - before
    assert count > 0
    raised = 0
    for at in range(count):
        case.back()
        release()
        memory.begin(range(at, 10**9 if for_good else at + 1))
        try:
            case.step(**case.inputs)
        except (DeviceOutOfMemoryError, HostOutOfMemoryError, MemoryError):
            raised += 1
            assert case.same(case.state(), case.old), at
        memory.begin(range(0))
        assert case.wrong() == [], at
    assert raised > 0 or not for_good
