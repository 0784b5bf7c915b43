"""Caches that threads share: one reads while another adds, forgets or lets go."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.arrays import pinning
from ooc_cudnn.devices import tuning_database
from ooc_cudnn.devices.engines import Engine, Measurement, Option, Tables
from ooc_cudnn.devices.tuning_database import forget_tables, tables_of
from ooc_cudnn.functions.call import call_cache
from ooc_cudnn.functions.call.call_cache import forget_calls, recall_call
from ooc_cudnn.memory import limit
from ooc_cudnn.memory.limit import forget_limits, limit_bytes
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.settings import current
from perfmodel import shipped

ROUNDS = 3000


@pytest.fixture(autouse=True)
def threads_take_turns_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def at_once(*actions, rounds=ROUNDS):
    """Do each of these so many times, each on a thread of its own, all of them at once.

    An action is given the number of the round. What the first one raises is raised here.
    """
    barrier, errors = threading.Barrier(len(actions)), []

    def again_and_again(action):
        try:
            barrier.wait()
            for at in range(rounds):
                if errors:
                    return
                action(at)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=again_and_again, args=(each,)) for each in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        raise error


@pytest.fixture
def device():
    """Memory of a device, as limits ask for it."""
    arena = SimpleNamespace(array_bytes=0, held_bytes=0)
    return SimpleNamespace(name="some", arena=arena, free_bytes=lambda: 2**20)


def test_calls_are_remembered_while_others_forget_them(device):
    plan = SimpleNamespace(device_bytes=1, in_core=True)
    made = SimpleNamespace(plan=plan, result_bytes=0, available_bytes=2**20)
    with ooc_cudnn.settings(memory_limit=2**20):
        settings = current()

    def remember(at):
        with call_cache._lock:
            call_cache._prepared[at % 3] = made
            while len(call_cache._prepared) > 2:
                call_cache._prepared.popitem(last=False)

    def look(at):
        assert recall_call(at % 3, device, settings) in (made, None)

    at_once(look, look, remember, lambda at: forget_calls() if at % 7 == 0 else None)


def test_what_is_read_is_read_under_the_lock(device, monkeypatch):
    """The same without chance: the other thread comes when what is found is about to be moved."""
    plan = SimpleNamespace(device_bytes=1, in_core=True)
    made = SimpleNamespace(plan=plan, result_bytes=0, available_bytes=2**20)
    held = []

    class Watched(type(call_cache._prepared)):
        def get(self, key, default=None):
            held.append(call_cache._lock.locked())
            return super().get(key, default)

        def move_to_end(self, key, last=True):
            held.append(call_cache._lock.locked())
            super().move_to_end(key, last)

    monkeypatch.setattr(call_cache, "_prepared", Watched(key=made))
    with ooc_cudnn.settings(memory_limit=2**20):
        assert recall_call("key", device, current()) is made
        assert recall_call("other", device, current()) is None
    assert held == [True, True, True]


def test_limits_are_resolved_while_others_forget_them(device):
    at_once(
        *[lambda at: np.testing.assert_equal(limit_bytes(device, 0.5), 2**19)] * 2,
        lambda at: forget_limits(),
    )


def test_a_limit_that_is_forgotten_at_once_is_returned_all_the_same(device, monkeypatch):
    class Forgotten(dict):
        def __setitem__(self, key, value):
            """Another thread forgets it."""

        def setdefault(self, key, value):
            return value

    monkeypatch.setattr(limit, "_resolved", Forgotten())
    assert limit_bytes(device, 0.5) == 2**19


def test_tables_are_read_while_others_measure():
    """Planning went through what is known while a call added to it."""
    tables, machine = Tables(), shipped("h200")
    operations = [Convolution.of((1, 4, 16 + at, 16), (4, 4, 3, 3)) for at in range(200)]
    works = [operation.work() for operation in operations]

    def measure(at):
        operation, seconds = operations[at % 200], 1e-6 * (1 + at)
        tables.add(Measurement(works[at % 200], (Option(seconds, 0, Engine(1), "e"),), operation))

    def read(at):
        tables.options(operations[at % 200])
        tables.knows(works[at % 200])
        tables.levels(works[:1])
        list(tables.unstored())

    measure(0)
    at_once(
        read, measure, lambda at: tables.corrected(machine) if at % 50 == 0 else None, rounds=400
    )
    assert len(list(tables)) == 200


def test_what_was_corrected_before_another_measured_is_not_kept(monkeypatch):
    tables, machine = Tables(), shipped("h200")
    operation = Convolution.of((1, 4, 16, 16), (4, 4, 3, 3))
    work = operation.work()

    def measured(seconds):
        return Measurement(work, (Option(seconds, 0, Engine(1), "e"),), operation)

    tables.add(measured(1.0))
    correct = Tables._with_factors

    def meanwhile_another_adds(self, *arguments, **how):
        monkeypatch.undo()
        found = correct(self, *arguments, **how)
        tables.add(measured(2.0))
        return found

    monkeypatch.setattr(Tables, "_with_factors", meanwhile_another_adds)
    assert tables.corrected(machine).compute.seconds(work) == pytest.approx(1.0)
    assert tables.corrected(machine).compute.seconds(work) == pytest.approx(2.0)


def test_threads_that_ask_at_once_share_one_table(monkeypatch, host_device):
    """What was measured was added to one of two, and the other was kept."""
    stored, barrier, found = tuning_database._stored, threading.Barrier(2), []

    def read_at_once(*arguments):
        barrier.wait()
        return stored(*arguments)

    forget_tables()
    monkeypatch.setattr(tuning_database, "_stored", read_at_once)
    at_once(*[lambda at: found.append(tables_of(host_device))] * 2, rounds=1)
    assert found[0] is found[1]
    assert tables_of(host_device) is found[0]


def test_arrays_that_are_let_go_are_unlocked_once(monkeypatch):
    dropped, unlocked = pinning._dropped, []
    monkeypatch.setattr(pinning, "unlock", unlocked.append)
    at_once(
        lambda at: dropped.append(at),
        *[lambda at: pinning.unlock_dropped()] * 3,
    )
    pinning.unlock_dropped()
    assert sorted(unlocked) == list(range(ROUNDS))


def test_nothing_is_unlocked_that_another_thread_takes(monkeypatch):
    class Taken:
        def __bool__(self):
            return True

        def popleft(self):
            raise IndexError("pop from an empty deque")

    monkeypatch.setattr(pinning, "_dropped", Taken())
    pinning.unlock_dropped()


def forgotten_after(name):
    """An attribute that another thread forgets as soon as it was read."""

    def read(self):
        return vars(self).pop(name, None)

    def write(self, value):
        vars(self)[name] = value

    return property(read, write)


def test_what_a_step_knows_is_read_once(monkeypatch):
    """It was looked at, and then read again, when another thread had forgotten it."""
    net = ooc_cudnn.Network()
    y = net.convolution(net.input("x", (1, 2, 4, 4)), 2, window=1)
    step = net.forward_step(net.activation(y))
    x = np.ones((1, 2, 4, 4), np.float32)
    w, b = (np.array(net.parameters[f"convolution_1.{name}"]) for name in "wb")
    expected = np.maximum(np.einsum("oi,nihw->nohw", w[:, :, 0, 0], x) + b[:, None, None], 0.0)

    def call(tf32):
        def under(at):
            with ooc_cudnn.settings(allow_tf32=tf32):
                found = step.run({"x": x}, {}).outputs[0]
            np.testing.assert_allclose(found, expected, rtol=1e-6)

        return under

    at_once(call(True), call(False), rounds=20)
    for name in ("_last_ready", "_changed"):
        monkeypatch.setattr(type(step), name, forgotten_after(name), raising=False)
    for _ in range(2):
        call(True)(0)
    call(True)(0)
    assert step.program is not None
    assert step.program is None  # it was read, so it is forgotten
