"""The executor: runs the steps of a schedule on a device. The one loop, for every program.

Timing, tracing and progress observe the steps and never alter them; without overlap the same steps
run one after the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

from ooc_cudnn import interrupts
from ooc_cudnn.call_planner.plan import Plan
from ooc_cudnn.call_planner.request import Request
from ooc_cudnn.devices.base import Device, Event, Run, open_run
from ooc_cudnn.devices.binding import bind
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.convolution.gradients import AnyConvolution
from ooc_cudnn.pipeline.bound_steps import BoundSteps
from ooc_cudnn.pipeline.check_engines import check_engines
from ooc_cudnn.pipeline.graph_replay import RepeatedRuns, may_be_recorded
from ooc_cudnn.pipeline.instructions import Instruction
from ooc_cudnn.pipeline.lookahead import pieces_ahead
from ooc_cudnn.pipeline.program import COPY_IN, Move, Program, Task, program_of
from ooc_cudnn.pipeline.schedule import Schedule, make_schedule
from ooc_cudnn.pipeline.task_buffers import place_buffers
from ooc_cudnn.pipeline.trace import Trace, make_trace
from ooc_cudnn.pipeline.views import Source, Views, drop_unit_axes, packed_image, region_of

#: Sets of addresses that a call which copies nothing is kept ready for.
BOUND_ADDRESSES = 64


class PlacedOperand(Protocol):
    """An operand on the device: what it takes to bind a step to it."""

    @property
    def pointer(self) -> int:
        """Its address."""

    def view(self) -> DeviceView:
        """The operand as device memory."""


class Executor:
    """Runs one program: everything that does not depend on the data's addresses is fixed.

    Parameters
    ----------
    program : Program
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.schedule: Schedule = make_schedule(program)
        #: Of each task, by its index among the items.
        self.offsets = {
            index: place_buffers(item.plan, self.schedule.sizes[index], item.offset)
            for index, item in enumerate(program.items)
            if isinstance(item, Task)
        }
        #: What a call that copies nothing does, by its operands' addresses, at one of the block.
        #: It holds addresses alone and keeps nothing alive.
        self._bound: dict[tuple[int, ...], tuple[Callable[[Any], None], ...]] = {}
        self._bound_base = -1
        self._ahead = pieces_ahead(program, self.schedule.pieces)
        #: Items that the host computes: it waits for what they read.
        self._on_host = {
            index
            for index, item in enumerate(program.items)
            if isinstance(item, Task) and item.is_on_host
        }
        #: The last step that reads memory of the host that is the caller's.
        self._last_read = _last_read(program, self.schedule.steps)
        self._views: list[Views | None] = []
        self._views_base = -1
        self._bound_steps: BoundSteps | None = None
        #: Whether it ran: what it launches is compiled and loaded then.
        self.has_run = False
        recorded = may_be_recorded(program, self.schedule.pieces)
        self._repeated = RepeatedRuns(program) if recorded else None
        #: What its engines were checked by.
        self._checked_by: Hashable = None

    def run(
        self,
        device: Device,
        arrays: Mapping[str, Source],
        *,
        staged: bool,
        wait: bool,
        timed: bool = False,
        on_piece: Callable[[int], None] | None = None,
        limit_bytes: int | None = None,
        block: int | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> Trace | None:
        """Run every step.

        Parameters
        ----------
        arrays : mapping
            Every tensor that is handed in, as it is given.
        staged : bool
            Whether a tensor is in memory that cannot be copied from as it is.
        wait : bool
            Whether to block until all is written; else until memory of the host that is the
            caller's was read.
        timed : bool
            Whether to return a trace.
        on_piece : callable, optional
            Told how many pieces are done, now and then.
        limit_bytes : int, optional
            What the library may hold on the device; without it, the plans' limit beside all arrays.
        block : int, optional
            The address of the block, where the caller has reserved it and it holds something.
        meanwhile : callable, optional
            What the host does while the device works, once every step was issued.

        Raises
        ------
        Exception
            The first error of any step, after the streams are drained.
        """
        if limit_bytes is None:
            least = min(task.plan.memory_limit for task in self.program.tasks)
            limit_bytes = least + device.arena.array_bytes
        base = self._begins(self._reserve(device, limit_bytes) if block is None else block)
        work = device.arena.at_work(self.program.device_bytes)
        how = {"overlap": self.program.overlap, "staged": staged, "timed": timed}
        issue = partial(self._issue, device, arrays, base, timed=timed, on_piece=on_piece)
        with interrupts.defer_signals(), work:
            repeated = None if timed or staged or on_piece else self._repeated
            if repeated is not None:
                where = repeated.addresses(device, arrays, base)
                recorded = repeated.of(device, where, issue)
                if recorded is not None:
                    recorded.launch()
                    try:
                        if meanwhile is not None:
                            meanwhile()
                    finally:
                        if wait:
                            recorded.wait()
                        else:
                            recorded.wait_until_read()
                    return None
            if not self.has_run:
                self._compile_ahead(device, arrays, base)
            with open_run(device, **how) as run:
                events = issue(run)
                is_fit = run.may_be_recorded
                if meanwhile is not None:
                    meanwhile()
                run.finish(wait=wait or timed)
            self.has_run = True
            if repeated is not None:
                repeated.ran(where, may_be_recorded=is_fit)
        return self._trace(events) if timed else None

    def is_bound(self, addresses: tuple[int, ...]) -> bool:
        """True if it was launched on operands at these addresses, in the chain's order."""
        return addresses in self._bound

    def launch(self, device: Device, arrays: Mapping[str, PlacedOperand], limit_bytes: int) -> None:
        """Run a program that copies nothing, and that nobody watches, on the caller's stream.

        Such a call lasts microseconds, and making it ready would take longer than running it; so
        what it does at some addresses is kept. Results come back to the same few, as memory that
        lies ready is lent again.

        Raises
        ------
        Exception
            The first error of any step, after the stream is drained.
        """
        base = self._begins(self._reserve(device, limit_bytes))
        if base != self._bound_base or len(self._bound) >= BOUND_ADDRESSES:
            self._bound, self._bound_base = {}, base
        addresses = tuple(arrays[name].pointer for name in self.program.bindings)
        actions = self._bound.get(addresses)
        if actions is None:
            sources = self._sources({name: arrays[name].view() for name in arrays}, base)
            actions = self._bound[addresses] = tuple(
                self._action(device, index, step, sources)
                for index, step in enumerate(self.schedule.steps)
            )
        device.compute(actions)

    def _issue(
        self,
        device: Device,
        arrays: Mapping[str, Source],
        base: int,
        run: Run,
        *,
        timed: bool,
        on_piece: Callable[[int], None] | None,
    ) -> list[Event | None]:
        with self._bound_to(device, arrays, base) as bound:
            return self._issue_bound(device, bound, run, timed=timed, on_piece=on_piece)

    def _issue_bound(
        self,
        device: Device,
        bound: BoundSteps,
        run: Run,
        *,
        timed: bool,
        on_piece: Callable[[int], None] | None,
    ) -> list[Event | None]:
        steps = self.schedule.steps
        events: list[Event | None] = []
        ends: deque[Event] = deque()  # the last signalled step of each recent piece
        done = 0
        throttled = self.schedule.pieces > self._ahead or on_piece is not None
        bind_step = partial(self._action, device, sources=bound.sources)
        for index, step in enumerate(steps):
            interrupts.hear()
            action = bound.action(index, partial(bind_step, index, step))
            waits = [event for at in step.waits if (event := events[at]) is not None]
            if step.item in self._on_host:
                for event in waits:
                    run.synchronize(event)
            ends_piece = throttled and (
                index + 1 == len(steps) or steps[index + 1].piece != step.piece
            )
            event = run.submit(
                step.stream, waits, action, signals=step.signals or timed or ends_piece
            )
            events.append(event)
            if index == self._last_read:
                run.note_read(step.stream)
            if ends_piece and event is not None:
                ends.append(event)
                if len(ends) > self._ahead:
                    run.synchronize(ends.popleft())
                    done += 1
                    if on_piece is not None:
                        on_piece(done)
        while ends and on_piece is not None:
            run.synchronize(ends.popleft())
            done += 1
            on_piece(done)
        return events

    def _compile_ahead(self, device: Device, arrays: Mapping[str, Source], base: int) -> None:
        """Compile what its steps launch, before the first of them runs."""
        with self._bound_to(device, arrays, base) as bound:
            device.compile_ahead(
                bound.action(index, partial(self._action, device, index, step, bound.sources))
                for index, step in enumerate(self.schedule.steps)
                if step.launches and step.item not in self._on_host
            )

    def check_engines(self, device: Device, limit_bytes: int) -> None:
        """Check the engines that it would use and nobody checked; the block is nobody's meanwhile.

        Who reserves the block has it done first.
        """
        known_by = None if device.engines is None else device.engines.known_by
        if known_by is None or known_by == self._checked_by:
            return
        check_engines(device, self._convolutions(), limit_bytes)
        assert device.engines is not None
        self._checked_by = device.engines.known_by

    def _convolutions(self) -> Iterator[tuple[AnyConvolution, int]]:
        """Convolutions that engines run, with the bytes of workspace."""
        for step in self.schedule.steps:
            if step.launches and step.item not in self._on_host:
                _, nbytes = self.offsets[step.item].workspace
                for launch in step.launches:
                    if isinstance(launch.operation, AnyConvolution):
                        yield launch.operation, nbytes

    def _reserve(self, device: Device, limit_bytes: int) -> int:
        """The address of the block."""
        program = self.program
        self.check_engines(device, limit_bytes)
        return device.arena.reserve(program.device_bytes, limit_bytes, purpose=program.name)

    def _begins(self, base: int) -> int:
        """The address where it begins; views of another one are forgotten."""
        program = self.program
        if base != self._views_base:
            self._views = [None] * len(program.items)
            self._views_base = base
        return base

    @contextmanager
    def _bound_to(
        self, device: Device, arrays: Mapping[str, Source], base: int
    ) -> Iterator[BoundSteps]:
        """Bind steps while they are issued: to arrays, and to the address of the block."""
        bound = self._bound_steps
        if bound is None:
            bound = self._bound_steps = BoundSteps(self.program, self.schedule.steps)
        try:
            bound.begin(device, arrays, base)
            yield bound
        finally:
            bound.end()

    def _sources(self, arrays: Mapping[str, Source], base: int) -> dict[str, Source]:
        """Every tensor, where it is: handed in, a view of that, or in the block."""
        sources: dict[str, Source] = {}
        for name, (spec, offset, of, region, _) in self.program.bindings.items():
            if offset is not None:
                sources[name] = DeviceView(base + offset, spec.dtype, spec.shape, spec.strides)
            else:
                sources[name] = (
                    drop_unit_axes(region_of(sources[of], region), spec) if of else arrays[name]
                )
        return sources

    def _views_of(self, item: int) -> Views:
        views = self._views[item]
        if views is None:
            task = self.program.items[item]
            assert isinstance(task, Task)
            call, orders = task.request.chain, dict(task.request.orders)
            views = self._views[item] = Views(call, orders, self.offsets[item], self._views_base)
        return views

    def _action(
        self, device: Device, index: int, step: Instruction, sources: Mapping[str, Source]
    ) -> Callable[[Any], None]:
        """The step's action, bound to addresses; it runs when its stream comes to it."""
        item = self.program.items[step.item]
        if isinstance(item, Move):
            (place,) = step.places
            on_device, on_host = (region_of(sources[end], place.region) for end in item.ends)
            return _copy(device, step.copies, on_device, on_host)
        assert isinstance(item, Task)
        views = self._views_of(step.item)
        held = views.of(index, step)
        if step.copies:
            (place,) = step.places
            outside = region_of(sources[item.binds[place.operand]], place.region)
            return _copy(device, step.copies, held[place.operand], outside)
        if item.is_on_host:
            arrays = {
                place.operand: region_of(sources[item.binds[place.operand]], place.region)
                for place in step.places
            }
            return _on_host(step, arrays)
        in_place: dict[str, DeviceView] = {}
        for place in step.places:
            if place.slot < 0:
                view = region_of(sources[item.binds[place.operand]], place.region)
                if not isinstance(view, DeviceView):
                    raise TypeError(f"{place.operand} is planned in place, but not on the device")
                in_place[place.operand] = packed_image(view)
        taken = {**held, **in_place} if in_place else held
        return bind(device, step.launches, views.declared(step), taken, views.workspace)

    def _trace(self, events: list[Event | None]) -> Trace:
        ran = [
            (step, event)
            for step, event in zip(self.schedule.steps, events, strict=True)
            if event is not None
        ]
        return make_trace(
            self.program,
            [step for step, _ in ran],
            [event.interval for _, event in ran],
        )


def _last_read(program: Program, steps: Sequence[Instruction]) -> int | None:
    """The last step that copies in what the caller has on the host; None if there is none."""
    last = None
    for index, step in enumerate(steps):
        if step.copies != COPY_IN:
            continue
        item, (place,) = program.items[step.item], step.places
        assert isinstance(item, Task | Move)
        name = item.ends[1] if isinstance(item, Move) else item.binds[place.operand]
        spec, _, of, _, _ = program.bindings[name]
        if spec.placement != "device" and (of or name) not in program.between:
            last = index
    return last


def _copy(device: Device, way: str, slot: Source, outside: Source) -> Callable[[Any], None]:
    """A copy between the device and what is outside of it, or of the slot."""
    assert isinstance(slot, DeviceView)
    if way == COPY_IN:
        return lambda at: device.copy_in(slot, outside, at)
    return lambda at: device.copy_out(outside, slot, at)


def _on_host(step: Instruction, arrays: Mapping[str, Source]) -> Callable[[Any], None]:
    """The action of a step of the host, on its arrays: their operations are run by themselves."""

    def run(_: Any) -> None:
        for launch in step.launches:
            launch.operation.run([arrays[name] for name in launch.inputs], arrays[launch.output])

    return run


def make_executor(request: Request, plan: Plan) -> Executor:
    """Make the executor of one call by itself; its tensors are its operands."""
    return Executor(program_of(request, plan))
