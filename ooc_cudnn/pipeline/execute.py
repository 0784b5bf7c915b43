"""The executor: runs the steps of a schedule on a device. The one loop, for every function.

Timing, tracing and progress observe the steps and never alter them; without overlap the same steps
run one after the other.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ooc_cudnn import interrupts
from ooc_cudnn.devices.base import Device, Event, Run, running
from ooc_cudnn.devices.binding import bind
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.splittable import Splittable
from ooc_cudnn.pipeline.schedule import COMPUTE, COPY_IN, Schedule, Step, plan_schedule
from ooc_cudnn.pipeline.trace import Trace, traced
from ooc_cudnn.pipeline.views import Source, Views, lay_out, region_of
from ooc_cudnn.pricing.plan import Plan
from ooc_cudnn.pricing.request import Request
from ooc_cudnn.tensor import ITEM_BYTES

#: Pieces that may be in flight before the host waits: enough to hide the issuing, few enough that
#: Ctrl-C and the progress bar stay close to what the device does.
RUN_AHEAD_PIECES = 16

#: Sets of addresses that a call which copies nothing is kept ready for.
BOUND_ADDRESSES = 64


class Placed(Protocol):
    """An operand on the device: what it takes to bind a step to it."""

    @property
    def pointer(self) -> int:
        """Its address."""

    def view(self) -> DeviceView:
        """The operand as device memory."""


class Executor:
    """Runs one prepared call: everything that does not depend on the data's addresses is fixed.

    Parameters
    ----------
    chain, plan, schedule
        What is run, and how.
    orders : mapping
        Memory order of each operand's slots.
    """

    def __init__(
        self,
        chain: Splittable,
        plan: Plan,
        schedule: Schedule,
        orders: Mapping[str, str],
    ) -> None:
        self.chain, self.plan, self.schedule = chain, plan, schedule
        self.orders = orders
        self.offsets = lay_out(plan, schedule.sizes)
        #: What a call that copies nothing does, by its operands' addresses, at one of the block.
        #: It holds addresses alone and keeps nothing alive.
        self._bound: dict[tuple[int, ...], tuple[Callable[[Any], None], ...]] = {}
        self._bound_base = -1
        self._views: Views | None = None

    def run(
        self,
        device: Device,
        operands: Mapping[str, Source],
        *,
        staged: bool,
        wait: bool,
        timed: bool = False,
        on_piece: Callable[[int], None] | None = None,
        limit_bytes: int | None = None,
    ) -> Trace | None:
        """Run every step.

        Parameters
        ----------
        operands : mapping
            Every operand, as it is given.
        staged : bool
            Whether an operand is in memory that cannot be copied from as it is.
        wait : bool
            Whether to block until all is written.
        timed : bool
            Whether to return a trace.
        on_piece : callable, optional
            Told how many pieces are done, now and then.
        limit_bytes : int, optional
            What the library may hold on the device; without it, the plan's limit beside all arrays.

        Raises
        ------
        Exception
            The first error of any step, after the streams are drained.
        """
        if limit_bytes is None:
            limit_bytes = self.plan.memory_limit + device.arena.array_bytes
        base = device.arena.reserve(
            self.offsets.total_bytes, limit_bytes, purpose=self.plan.function
        )
        how = {"overlap": self.plan.overlap, "staged": staged, "timed": timed}
        with interrupts.deferred(), device.arena.at_work(), running(device, **how) as run:
            events = self._issue(device, run, base, operands, timed, on_piece)
            run.finish(wait=wait or timed)
        return self._trace(events) if timed else None

    def is_bound(self, addresses: tuple[int, ...]) -> bool:
        """Whether it was launched on operands at these addresses, in the chain's order."""
        return addresses in self._bound

    def launch(self, device: Device, operands: Mapping[str, Placed], limit_bytes: int) -> None:
        """Run a call that copies nothing, and that nobody watches, on the caller's stream.

        Such a call lasts microseconds, and making it ready would take longer than running it; so
        what it does at some addresses is kept. Results come back to the same few, as memory that
        lies ready is lent again.

        Raises
        ------
        Exception
            The first error of any step, after the stream is drained.
        """
        base = device.arena.reserve(
            self.offsets.total_bytes, limit_bytes, purpose=self.plan.function
        )
        if base != self._bound_base or len(self._bound) >= BOUND_ADDRESSES:
            self._bound, self._bound_base = {}, base
        addresses = tuple(operands[name].pointer for name in self.chain.operands)
        actions = self._bound.get(addresses)
        if actions is None:
            sources = {name: operands[name].view() for name in self.chain.operands}
            views = self._views_at(base)
            actions = self._bound[addresses] = tuple(
                _action(device, index, step, views, sources)
                for index, step in enumerate(self.schedule.steps)
            )
        run = device.start(overlap=False, staged=False, timed=False)
        try:
            for action in actions:
                run.submit(COMPUTE, (), action, signals=False)
            run.finish(wait=False)
        except BaseException:
            run.cancel()
            raise

    def _issue(
        self,
        device: Device,
        run: Run,
        base: int,
        operands: Mapping[str, Source],
        timed: bool,
        on_piece: Callable[[int], None] | None,
    ) -> list[Event | None]:
        steps = self.schedule.steps
        events: list[Event | None] = []
        ends: deque[Event] = deque()  # the last signalled step of each recent piece
        done = 0
        # What a deep ring can hold ahead of its use must be issued ahead, too.
        ahead = max(RUN_AHEAD_PIECES, 2 * max((slots for _, slots in self.plan.rings), default=0))
        throttled = self.schedule.pieces > ahead or on_piece is not None
        views = self._views_at(base)
        for index, step in enumerate(steps):
            interrupts.hear()
            action = _action(device, index, step, views, operands)
            waits = [event for at in step.waits if (event := events[at]) is not None]
            ends_piece = throttled and (
                index + 1 == len(steps) or steps[index + 1].piece != step.piece
            )
            event = run.submit(
                step.stream, waits, action, signals=step.signals or timed or ends_piece
            )
            events.append(event)
            if ends_piece and event is not None:
                ends.append(event)
                if len(ends) > ahead:
                    run.synchronize(ends.popleft())
                    done += 1
                    if on_piece is not None:
                        on_piece(done)
        while ends and on_piece is not None:
            run.synchronize(ends.popleft())
            done += 1
            on_piece(done)
        return events

    def _views_at(self, base: int) -> Views:
        if self._views is None or self._views.base != base:
            steps = len(self.schedule.steps)
            self._views = Views(self.chain, self.orders, self.offsets, steps, base)
        return self._views

    def _trace(self, events: list[Event | None]) -> Trace:
        ran = [
            (step, event)
            for step, event in zip(self.schedule.steps, events, strict=True)
            if event is not None
        ]
        return traced(
            [step for step, _ in ran],
            [event.interval for _, event in ran],
            [self._host_bytes(step) for step, _ in ran],
        )

    def _host_bytes(self, step: Step) -> int:
        if step.stream == COMPUTE:
            return 0
        (place,) = step.places
        if dict(self.plan.operands)[place.operand].placement == "device":
            return 0
        item_bytes = ITEM_BYTES[self.chain.operands[place.operand].dtype]
        return math.prod(high - low for low, high in place.region) * item_bytes


def _action(
    device: Device, index: int, step: Step, views: Views, operands: Mapping[str, Source]
) -> Callable[[Any], None]:
    """What the step does, bound to addresses; it runs when its stream comes to it."""
    held = views.of(index, step)
    if step.stream == COMPUTE:
        return _compute(device, step, held, views, operands)
    (place,) = step.places
    slot, outside = held[place.operand], region_of(operands[place.operand], place.region)
    if step.stream == COPY_IN:
        return lambda stream: device.copy_in(slot, outside, stream)
    return lambda stream: device.copy_out(outside, slot, stream)


def _compute(
    device: Device,
    step: Step,
    held: Mapping[str, DeviceView],
    views: Views,
    operands: Mapping[str, Source],
) -> Callable[[Any], None]:
    in_place: dict[str, DeviceView] = {}
    for place in step.places:
        if place.slot < 0:
            view = region_of(operands[place.operand], place.region)
            if not isinstance(view, DeviceView):
                raise TypeError(f"{place.operand} is planned in place, but not on the device")
            in_place[place.operand] = view
    taken = {**held, **in_place} if in_place else held
    return bind(device, step.launches, views.declared(step), taken, views.workspace)


def make_executor(request: Request, plan: Plan) -> Executor:
    """Make a plan's schedule, and the executor that runs it."""
    return Executor(request.chain, plan, plan_schedule(request, plan), dict(request.orders))
