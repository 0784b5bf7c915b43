"""Ctrl-C at random moments of calls of many kinds; after each, whether anything is left or wrong.

A thread sends SIGINT to the process while a call plans, starts threads, copies, computes, allocates
or ends; every third time once more, while the first is seen to. Then the inputs must be what they
were, nothing of the call may be left (threads, locks, device and pinned memory, staging slabs), and
the same call must return what it returned at first. A watchdog ends the process, with the place of
every thread, where one of this takes too long.

    python -m tests.fuzz.interruptions --device host --count 500
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import queue
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import ooc_cudnn
from ooc_cudnn import operations
from ooc_cudnn.bench import placing, script
from ooc_cudnn.functions.call.call_cache import forget_calls
from tests.support.left_behind import in_use, left_behind

NAME = "interruptions"
COUNT, QUICK_COUNT = 500, 9
#: One interruption with all that follows it takes a second or so; a hang takes for ever.
WATCHDOG_SECONDS = 180
SHAPES = {"cuda": (16, 32, 256, 256), "host": (8, 16, 64, 64), "quick": (4, 4, 24, 16)}
LIMITS = {"cuda": "48MiB", "host": "1MiB", "quick": "64KiB"}


@dataclass
class Kind:
    """A kind of call: what runs it and returns its results; what it reads, and how that looked."""

    name: str
    call: Callable[[], tuple[Any, ...]]
    inputs: tuple[Any, ...]
    settings: dict[str, Any]
    #: What the call updates in place: as it was if the call was given up.
    updated: tuple[np.ndarray[Any, Any], ...] = ()

    def __post_init__(self) -> None:
        self.kept = [_copy(each) for each in self.inputs]
        self.before = [_copy(each) for each in self.updated]
        began = time.perf_counter()
        self.expected = self.results()
        self.first_seconds = time.perf_counter() - began
        began = time.perf_counter()
        self.results()
        self.seconds = time.perf_counter() - began
        self.after = [_copy(each) for each in self.updated]

    def run(self) -> tuple[Any, ...]:
        """Call."""
        for array, before in zip(self.updated, self.before, strict=True):
            array[...] = before
        with ooc_cudnn.settings(**self.settings):
            return self.call()

    def results(self) -> list[np.ndarray[Any, Any]]:
        return [_copy(each) for each in self.run()]

    def wrong(self, given_up: bool) -> list[str]:
        """What is wrong with the inputs, and with the next call."""
        due = [self.after, self.before] if given_up else [self.after]
        if not any(all(map(_same, self.updated, each)) for each in due):
            return [f"what {self.name} updates"]
        found = [
            f"input {at} of {self.name}"
            for at, (each, kept) in enumerate(zip(self.inputs, self.kept, strict=True))
            if not np.array_equal(_copy(each), kept)
        ]
        same = map(_same, self.results(), self.expected)
        return found if all(same) else [*found, f"the next result of {self.name}"]


def _same(found: np.ndarray[Any, Any], due: np.ndarray[Any, Any]) -> bool:
    """Whether results agree; integers do to the bit, averages as sums in any order do."""
    return bool(np.allclose(found, due, rtol=1e-5, atol=1e-6))


def _copy(array: Any) -> np.ndarray[Any, Any]:
    """The contents of an array, wherever it lies."""
    return np.array(array.get() if hasattr(array, "get") else array)


def kinds(arguments: Any, folder: str) -> Iterator[Kind]:
    """Yield calls of every kind that goes its own way through the library."""
    size = "quick" if arguments.quick else "cuda" if arguments.cuda else "host"
    shape, small = SHAPES[size], {"memory_limit": LIMITS[size]}
    random = np.random.default_rng(5)

    def drawn(*extents: int) -> np.ndarray[Any, Any]:
        return random.integers(-3, 4, extents).astype(np.float32)

    c = shape[1]
    x, w, b = drawn(*shape), drawn(c, c, 3, 3), drawn(c)

    def fused(x: Any, **given: Any) -> tuple[Any, ...]:
        return (
            ooc_cudnn.convolution_add_activation_forward(
                x, w, b, padding=1, activation="relu", **given
            ),
        )

    yield Kind("pageable", lambda: fused(x), (x, w, b), small)
    yield Kind("without overlap", lambda: fused(x), (x, w, b), small | {"overlap": False})

    def first() -> tuple[Any, ...]:
        forget_calls()
        return fused(x)

    yield Kind("a first call", first, (x, w, b), small)

    x_pinned, y_pinned = script.allocate_pinned(shape), script.allocate_pinned(shape)
    x_pinned[...] = x
    yield Kind("pinned", lambda: fused(x_pinned, out=y_pinned), (x_pinned, w, b), small)

    x_file = np.memmap(os.path.join(folder, "x"), np.float32, "w+", shape=shape)
    y_file = np.memmap(os.path.join(folder, "y"), np.float32, "w+", shape=shape)
    x_file[...] = x
    yield Kind("files", lambda: fused(x_file, out=y_file), (x_file, w, b), small)

    few = drawn(2, *shape[1:])
    few_on_device = placing.to_device(few, cuda=arguments.cuda)
    ample = {"memory_limit": "8GiB"}
    yield Kind("on the device", lambda: fused(few_on_device), (few_on_device, w, b), ample)

    def gradients() -> tuple[Any, ...]:
        dw = ooc_cudnn.convolution_backward_filter(x, x, padding=1, filter_shape=w.shape)
        return dw, ooc_cudnn.convolution_backward_data(w, x, padding=1)

    yield Kind("gradients", gradients, (x, w), small)

    layers = [
        operations.Convolution(w, padding=1),
        operations.Activation("relu"),
        operations.Pooling(2),
        operations.Convolution(w, padding=1),
    ]
    yield Kind("a chain", lambda: (ooc_cudnn.chain_forward(x, layers),), (x, w), small)

    scale, shift = np.ones(c, np.float32), np.zeros(c, np.float32)
    averages = drawn(c), np.abs(drawn(c))

    def normalised() -> tuple[Any, ...]:
        mean, variance = averages
        found = ooc_cudnn.batch_normalization_forward_training(
            x, scale, shift, running_mean=mean, running_variance=variance
        )
        return found if isinstance(found, tuple) else (found,)

    yield Kind("running averages", normalised, (x, scale, shift), small, averages)

    def memory() -> tuple[Any, ...]:
        array = ooc_cudnn.empty((4, c))
        ooc_cudnn.memcpy(array, b[None].repeat(4, 0))
        whole = ooc_cudnn.zeros(shape)
        with ooc_cudnn.pin(w):
            return _copy(array), _copy(whole[:1, :1])

    yield Kind("memory", memory, (b, w), small)


class Keyboard(threading.Thread):
    """Presses Ctrl-C when asked, after so many seconds, and perhaps once more."""

    def __init__(self) -> None:
        super().__init__(name="keyboard", daemon=True)
        self.orders: queue.SimpleQueue[list[float]] = queue.SimpleQueue()
        self.pressed_at = 0.0
        self.idle = True

    def run(self) -> None:
        while True:
            for number, seconds in enumerate(self.orders.get()):
                time.sleep(seconds)
                if number == 0:
                    self.pressed_at = time.perf_counter()
                os.kill(os.getpid(), signal.SIGINT)
            self.idle = True

    def press(self, seconds: list[float]) -> None:
        self.idle = False
        self.orders.put(seconds)


def interrupted(kind: Kind, keyboard: Keyboard, seconds: list[float]) -> tuple[bool, float]:
    """Run a call and press Ctrl-C; whether it was given up, and how long after that."""
    given_up, after = False, 0.0
    try:
        keyboard.press(seconds)
        kind.run()
    except KeyboardInterrupt:
        given_up, after = True, time.perf_counter() - keyboard.pressed_at
    while True:  # whatever is pressed yet falls in here
        with contextlib.suppress(KeyboardInterrupt):
            while not keyboard.idle:
                time.sleep(0.001)
            time.sleep(0.001)
            return given_up, after


def body(report: script.Report) -> None:
    """Interrupt as often as was asked, each time another kind of call."""
    arguments = report.arguments
    report.file = f"{NAME}_{'cuda' if arguments.cuda else 'host'}"
    count = arguments.count or (QUICK_COUNT if arguments.quick else COUNT)
    random = np.random.default_rng(arguments.seed)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    keyboard = Keyboard()
    keyboard.start()
    wrong: list[str] = []
    given_up: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as folder:
        ready = list(kinds(arguments, folder))
        held = in_use()
        for number in range(count):
            faulthandler.dump_traceback_later(WATCHDOG_SECONDS, exit=True)
            kind = ready[number % len(ready)]
            seconds = [random.uniform(0, 1.1 * kind.seconds)]
            if number % 3 == 2:
                seconds.append(random.uniform(0, 0.3 * kind.seconds))
            was, after = interrupted(kind, keyboard, seconds)
            if was:
                given_up.setdefault(kind.name, []).append(after)
            found = left_behind(held) + kind.wrong(was)
            wrong += [f"{number}, {kind.name}, {seconds}: {what}" for what in found]
            if number % 50 == 49:
                report.say(f"{number + 1} interruptions, {len(wrong)} wrong")
        faulthandler.cancel_dump_traceback_later()
        ready.clear()
    report.check(
        "contents, and nothing left, after every interruption",
        {"ok": not wrong, "interruptions": count, "wrong": wrong},
    )
    late = [seconds for each in given_up.values() for seconds in each]
    report.measure(
        "calls given up",
        {name: len(each) for name, each in given_up.items()},
        spoken=str(len(late)),
    )
    report.claim("interruptions survived", count if not wrong else 0, ">=", count)
    report.claim("share of them that a call heard", len(late) / count, ">=", 0.5)
    report.claim(
        "from Ctrl-C to KeyboardInterrupt, median", statistics.median(late or [0]), unit="s"
    )
    report.claim("from Ctrl-C to KeyboardInterrupt, longest", max(late or [0]), unit="s")


def main(argv: list[str] | None = None) -> int:
    """Run and report."""

    def more(parser: Any) -> None:
        parser.add_argument("--count", type=int, help=f"interruptions; by default {COUNT}")
        parser.add_argument("--seed", type=int, default=0, help="of the moments that are drawn")

    return script.run(NAME, body, __doc__, argv, needs_card=False, more=more)


if __name__ == "__main__":
    sys.exit(main())
