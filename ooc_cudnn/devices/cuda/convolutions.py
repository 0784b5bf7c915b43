"""Convolutions and their gradients through NVIDIA's cudnn-frontend: plans built once a shape.

Measured on cuDNN 9.19: every dtype, layout, stride, dilation, group count and asymmetric padding is
supported on packed tensors, if not by every engine that says so (`cudnn_engines`), nor in every
combination of types (`cudnn_forms`); on strided tensors of 2**31 elements and more cuDNN writes
nonsense, so pieces are always packed here. What it does not support, our own kernels
`convolution_direct*.cu` compute.

An engine that was measured to be the fastest computes (`devices.engines`); where none was measured,
or none fits, the heuristics' choice does.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from ooc_cudnn.devices.cuda.checked_engines import CheckedEngines, build_for, every
from ooc_cudnn.devices.cuda.cudnn_forms import PADDED, UNFOLDED, Form, forms, leaves_the_card_idle
from ooc_cudnn.devices.cuda.cudnn_graphs import INPUTS, RESULT, collect_errors
from ooc_cudnn.devices.cuda.cudnn_plans import Executable, Plans, kind_of
from ooc_cudnn.devices.cuda.frontend import cudnn_version, import_frontend
from ooc_cudnn.devices.engine_kinds import CheckedKind
from ooc_cudnn.devices.engine_verdicts import UncheckedEngine, Verdict, Verdicts, describe_verdict
from ooc_cudnn.devices.engines import (
    HEURISTICS,
    NO_TENSOR_CORES,
    NOT_SPLIT,
    Engine,
    EngineFailedError,
    Kind,
    Tables,
)
from ooc_cudnn.devices.kernels import convolution_direct
from ooc_cudnn.devices.kernels.launch import Call
from ooc_cudnn.devices.kernels.pointwise import pointwise
from ooc_cudnn.devices.kernels.relayout import fill_zero
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.errors import CudnnError
from ooc_cudnn.memory.alignment import align
from ooc_cudnn.operations.convolution.fused_forward import FusedConvolution
from ooc_cudnn.operations.convolution.gradients import (
    AddedBackwardData,
    AnyConvolution,
    forward_of,
    input_shapes,
    without_epilogue,
)
from ooc_cudnn.tensor import packed_strides
from ooc_cudnn.warnings_once import warn_once
from perfmodel.cached import cached_property


class Convolutions:
    """cuDNN's handle and the plans of one GPU.

    Parameters
    ----------
    tables : callable
        Returns what was measured on the GPU.
    store : callable
        Stores these tables, once an engine that they have failed.
    verdicts : callable, optional
        Returns what was found out about engines on the GPU; by default nothing is to be.
    store_verdicts : callable, optional
        Stores that.
    """

    def __init__(
        self,
        tables: Callable[[], Tables],
        store: Callable[[], object],
        verdicts: Callable[[], Verdicts | None] = lambda: None,
        store_verdicts: Callable[[], object] = lambda: None,
    ) -> None:
        self._cudnn, self._tables, self._store = import_frontend(), tables, store
        self._checked, self._store_verdicts = CheckedEngines(verdicts), store_verdicts
        self._handle: Any = None
        self._lock = threading.RLock()
        #: What the heuristics choose, by the workspace that they may choose from.
        self._ranked: dict[AnyConvolution, dict[float, Executable | None]] = {}
        self._of_engines: dict[tuple[AnyConvolution, Engine], Executable | None] = {}
        #: `_split`.
        self._splits: dict[AnyConvolution, Executable | None] = {}
        #: What runs in so much workspace, by what the tables of that version say.
        self._chosen: dict[tuple[AnyConvolution, int], Executable | None] = {}
        self._chosen_by: tuple[Tables, int] | None = None
        #: Engines, or names of plans, that failed at run time.
        self._failed: set[tuple[Kind, Engine | str]] = set()
        self._forced: Executable | None = None
        #: Lists of the plans that run: `collect_plans`.
        self._collecting: tuple[list[Executable], ...] = ()
        #: Engines that were said to be wrong, and for what.
        self._told: set[tuple[str, str]] = set()

    @property
    def handle(self) -> Any:
        """The cuDNN handle, made at first use."""
        if self._handle is None:
            self._handle = self._cudnn.create_handle()
        return self._handle

    @cached_property
    def _plans(self) -> Plans:
        return Plans(self._cudnn, self.handle)

    # Choosing -----------------------------------------------------------------------------------

    def executable(
        self, operation: AnyConvolution, budget_bytes: int | None, sparing: int = 0
    ) -> Executable | None:
        """Return an operation's plan, its workspace within a budget; None if there is none.

        That of the fastest engine that was measured, without the `sparing` ones that take most
        workspace; else the heuristics' choice.
        """
        with self._lock:
            for option in self._tables().options(operation, sparing):
                plan = self._of_engine(operation, option.engine)
                if plan and (budget_bytes is None or plan.workspace_bytes <= budget_bytes):
                    return plan
            return self._ranked_for(operation, budget_bytes, keep=True)

    def chosen(self, operation: AnyConvolution, budget_bytes: int | None = None) -> Engine | None:
        """Return the heuristics' choice: `EngineProvider`."""
        with self._lock:
            found = self._by_heuristics(operation, budget_bytes)
        return None if found is None else self._plans.engine_of(found)

    def running(
        self, operation: AnyConvolution, workspace_bytes: int
    ) -> tuple[Engine, bool] | None:
        """Return what runs an operation in so much workspace: `EngineProvider`."""
        with self._lock:
            plan = self._choose(operation, workspace_bytes)
        if plan is None:
            return None
        engine = plan.asked or self._plans.engine_of(plan)
        return None if engine is None else (engine, plan.asked is not None)

    def candidates(
        self, operation: AnyConvolution, *, every: bool, compiled: bool
    ) -> Iterator[Engine]:
        """Yield what may compute an operation, each once: `EngineProvider`."""
        if not _is_for_cudnn(operation):
            return
        lists = [self._plans.engines(form, every=every, compiled=compiled)
                 for form in forms(operation)]  # fmt: skip
        # every one of a form with its slowest last, else the first of each form before the others
        in_turns = itertools.chain(*(lists if every else itertools.zip_longest(*lists)))
        yield from dict.fromkeys(engine for engine in in_turns if engine is not None)

    @contextmanager
    def forced(self, operation: AnyConvolution, engine: Engine) -> Iterator[tuple[int, str] | None]:
        """Have an operation computed by an engine meanwhile: `EngineProvider`."""
        with self._lock:
            found = self._of_engine(operation, engine)
        with self._running(found) as built:
            yield built

    @contextmanager
    def _running(self, plan: Executable | None) -> Iterator[tuple[int, str] | None]:
        """Have a plan run whatever is asked for meanwhile."""
        try:
            plan = plan and self._plans.build(plan)
        except EngineFailedError:
            plan = None
        if plan is None:
            yield None
            return
        self._forced = plan
        try:
            yield plan.workspace_bytes, plan.engine
        finally:
            self._forced = None

    def forget_built(self) -> None:
        """Let go of what was built to be measured; what is chosen is built again."""
        with self._lock:
            self._of_engines.clear()
            self._splits.clear()

    def _choose(self, operation: AnyConvolution, available_bytes: int) -> Executable | None:
        tables = self._tables()
        if self._chosen_by != (tables, tables.version):
            self._chosen.clear()
            self._chosen_by = tables, tables.version
        key = operation, available_bytes
        try:
            return self._chosen[key]
        except KeyError:
            plan = self.executable(operation, None)
            if plan is not None and plan.workspace_bytes > available_bytes:
                plan = self.executable(operation, available_bytes)
            try:
                self._chosen[key] = plan and self._plans.build(plan)
            except EngineFailedError as error:
                assert plan is not None
                self._forget_failed(operation, plan, error)
                return self._choose(operation, available_bytes)
            return self._chosen[key]

    def _of_engine(self, operation: AnyConvolution, engine: Engine) -> Executable | None:
        """The plan of an engine, in the first form of its kind that it computes."""
        key = operation, engine
        if key not in self._of_engines:
            self._of_engines[key] = None
            has_failed = (Kind.of(operation), engine) in self._failed
            if engine == HEURISTICS and not has_failed:
                plan = self._by_heuristics(operation, None)
                self._of_engines[key] = plan and plan._replace(asked=engine)
            elif _is_for_cudnn(operation) and not has_failed:
                fitting = (
                    form
                    for form in forms(operation)
                    if kind_of(form) == engine.form and not self._checked.bars(form, engine)
                )
                with collect_errors():
                    built = (self._plans.of_engine(form, engine) for form in fitting)
                    self._of_engines[key] = next(filter(None, built), None)
        return self._of_engines[key]

    def _by_heuristics(
        self, operation: AnyConvolution, budget_bytes: int | None
    ) -> Executable | None:
        """The heuristics' choice, which is not kept: what is measured may be launched nowhere."""
        try:
            return self._ranked_for(operation, budget_bytes, keep=False)
        except CudnnError:  # a convolution that no plan launches may be too large for cuDNN
            return None

    def _ranked_for(
        self, operation: AnyConvolution, budget_bytes: int | None, *, keep: bool
    ) -> Executable | None:
        """The heuristics' choice within a budget: that within a larger one, where it fits."""
        known = self._ranked.setdefault(operation, {})
        budget = math.inf if budget_bytes is None else budget_bytes
        wider = min((each for each in known if each >= budget), default=None)
        if wider is not None:
            found = known[wider]
            if found is None or found.workspace_bytes <= budget:
                return found
        found = self._rank_first(operation, budget_bytes)
        if found is not None and budget_bytes is not None:
            found = found._replace(lacks=self._lacks(operation, found, keep=keep))
        if keep:
            known[budget] = found
        return found

    def _lacks(self, operation: AnyConvolution, found: Executable, *, keep: bool) -> str:
        """Mark of what the heuristics' choice lacks beside that without a budget; or ""."""
        split = self._split(operation)
        if found.on_tensor_cores and (split is None or found == split):
            return ""
        with_room = self._ranked_for(operation, None, keep=keep)
        if with_room is None or with_room == found:
            return ""
        if with_room.on_tensor_cores and not found.on_tensor_cores:
            return NO_TENSOR_CORES
        return NOT_SPLIT if with_room == split else ""

    def _rank_first(self, operation: AnyConvolution, budget_bytes: int | None) -> Executable | None:
        if not _is_for_cudnn(operation):
            return None
        kind = Kind.of(operation)
        failed = {name for of, name in self._failed if of == kind and isinstance(name, str)}
        with collect_errors():
            split, most = self._split(operation), math.inf if budget_bytes is None else budget_bytes
            if split and split.workspace_bytes <= most and _plan_name(split) not in failed:
                return split
            candidates = [*forms(operation)]
            may_be_padded = any(form.name in (PADDED, UNFOLDED) for form in candidates)
            first = None
            for form in candidates:
                left = None if budget_bytes is None else budget_bytes - form.nbytes
                if left is not None and left < 0:
                    continue
                plan = self._plans.ranked_first(form, left, self._checked.rank(form, failed))
                if plan is not None and (plan.on_tensor_cores or not may_be_padded):
                    return plan
                first = first or plan
            return first
        return None

    def _split(self, operation: AnyConvolution) -> Executable | None:
        """The plan of a small filter's gradient that keeps all of the card at work."""
        if not leaves_the_card_idle(operation):
            return None
        if operation in self._splits:
            return self._splits[operation]
        engines = (
            (form, engine)
            for form in forms(operation)
            if form.name in ("", PADDED, UNFOLDED)
            for engine in self._plans.split(form)[:1]
            if not self._checked.bars(form, engine)
        )
        plans = (self._plan_later(form, engine) for form, engine in engines)
        found = next(filter(None, plans), None)
        self._splits[operation] = found and found._replace(asked=None)
        return self._splits[operation]

    def _plan_later(self, form: Form, engine: Engine) -> Executable | None:
        """The plan of an engine, which is built when it is to run, if that may be."""
        if self._plans.bounds_workspace:
            return self._plans.unbuilt(form, engine, None)
        return self._plans.of_engine(form, engine)

    # Checking -----------------------------------------------------------------------------------

    @property
    def known_by(self) -> Hashable:
        """Key of what is known about engines, and of their speed: `EngineProvider`."""
        version = self._checked.version
        return None if version is None else (version, self._tables().version)

    def unchecked(self, operation: AnyConvolution, workspace_bytes: int) -> UncheckedEngine | None:
        """Return what would run it, if it is to be checked first: `EngineProvider`."""
        if 0 in (*operation.output_shape, *itertools.chain(*input_shapes(operation))):
            return None
        with self._lock:
            plan = self._choose(operation, workspace_bytes)
            if plan is not None:
                return self._checked.unchecked(plan, self._plans)
        alone = without_epilogue(operation)
        return None if alone is operation else self.unchecked(alone, workspace_bytes)

    @contextmanager
    def trying(
        self, unchecked: UncheckedEngine, problem: AnyConvolution
    ) -> Iterator[tuple[int, str] | None]:
        """Have a small problem computed by an unchecked engine: `EngineProvider`."""
        with self._lock, collect_errors():
            found = build_for(self._plans, unchecked, problem)
        with self._running(found) as built:
            yield built

    def judge(self, unchecked: UncheckedEngine, verdict: Verdict) -> None:
        """Take a verdict: `EngineProvider`."""
        with self._lock:
            self._checked.take(unchecked, verdict)
            if not verdict.is_right:
                self._forget_choices()
                self._tables().forget_plans()
        told = unchecked.engine, unchecked.kind.function
        if verdict.is_right is False and told not in self._told:
            self._told.add(told)
            version = cudnn_version(self._cudnn.backend_version())
            warn_once(
                f"engine {unchecked.engine} of cuDNN {version} computes wrong results, so for such "
                f"problems the next one is taken: {unchecked.kind} ({describe_verdict(verdict)})"
            )

    def every(self, kind: CheckedKind, problem: AnyConvolution) -> list[UncheckedEngine]:
        """Every engine that may compute a small problem: `EngineProvider`."""
        with self._lock, collect_errors():
            return every(self._plans, kind, problem)

    def keep_verdicts(self) -> None:
        """Store the verdicts: `EngineProvider`."""
        self._store_verdicts()

    # Running ------------------------------------------------------------------------------------

    @contextmanager
    def collect_plans(self) -> Iterator[list[Executable]]:
        """List the plans that run meanwhile, for whoever runs their kernels without them."""
        mine: list[Executable] = []
        with self._lock:
            self._collecting = (*self._collecting, mine)
        try:
            yield mine
        finally:
            with self._lock:
                self._collecting = tuple(each for each in self._collecting if each is not mine)

    def run(
        self,
        operation: AnyConvolution,
        inputs: tuple[DeviceView, ...],
        output: DeviceView,
        workspace: tuple[int, int],
        stream: Any,
    ) -> None:
        """Launch on a stream; a workspace that is large enough for the preferred plan gets it.

        Inputs in the operation's order; all packed, at multiples of 16 bytes. What comes after a
        convolution is a launch of its own where no engine does both.
        """
        if 0 in output.shape:
            return
        first, second, *_ = inputs
        if 0 in second.shape:  # a gradient of no window
            nbytes = output.size * output.item_bytes
            fill_zero(output.pointer, nbytes, 1, nbytes, stream)
            return
        if 0 in first.shape:  # nothing but padding: zeros, by what may be infinite
            self._run_without_engine(operation, inputs, output, workspace, stream)
            return
        pointer, available = workspace
        if self._forced is not None:
            self._launch(self._forced, inputs, output, pointer, stream)
            return
        has_dropped = False
        while (plan := self._choose(operation, available)) is not None:
            try:
                self._launch(plan, inputs, output, pointer, stream)
                break
            except EngineFailedError as error:
                self._forget_failed(operation, plan, error)
                has_dropped |= plan.asked is not None
        else:
            self._run_without_engine(operation, inputs, output, workspace, stream)
        if has_dropped:  # and something else ran: it was the engine that failed, not the device
            self._store()

    def build_ahead(self, operation: AnyConvolution, available_bytes: int) -> None:
        """Build what would run an operation in so much workspace."""
        if _is_for_cudnn(operation) and self._choose(operation, available_bytes) is None:
            alone = without_epilogue(operation)
            if alone is not operation:
                self._choose(alone, available_bytes)

    def _run_without_engine(
        self,
        operation: AnyConvolution,
        inputs: tuple[DeviceView, ...],
        output: DeviceView,
        workspace: tuple[int, int],
        stream: Any,
    ) -> None:
        """Launch our own kernel; of a convolution with what comes after it, one after the other."""
        *operands, last = inputs
        if isinstance(operation, FusedConvolution):
            self.run(operation.forward, tuple(operands), output, workspace, stream)
            pointwise(output, output, shift=last, mode=operation.mode, stream=stream)
        elif isinstance(operation, AddedBackwardData):
            pointer, available = workspace
            nbytes = align(operation.alone_bytes)
            if nbytes > available:
                raise CudnnError(
                    f"no engine of cuDNN computes {operation}, and in two launches it takes "
                    f"{nbytes} bytes of workspace, of which there are {available}"
                )
            strides = packed_strides(output.shape, operation.forward.layout)
            dx = DeviceView(pointer, operation.alone.result_dtype, output.shape, strides)
            rest = pointer + nbytes, available - nbytes
            self.run(operation.alone, tuple(operands), dx, rest, stream)
            pointwise(output, dx, old=last, beta=1.0, stream=stream)
        else:
            convolution_direct.run(operation, Call(inputs, output, workspace, stream))

    def _launch(
        self,
        plan: Executable,
        inputs: tuple[DeviceView, ...],
        output: DeviceView,
        pointer: int,
        stream: Any,
    ) -> None:
        form, addresses = plan.form, {}
        count = len(inputs)
        copies = (*form.inputs, None)[:count]  # the third, of an epilogue, is taken as it is
        for uid, view, copy in zip(INPUTS[:count], inputs, copies, strict=True):
            addresses[uid] = pointer + copy.offset if copy else view.pointer
            if copy:
                copy.fill(view, pointer, stream)
        addresses[RESULT] = pointer + form.result.offset if form.result else output.pointer
        handle = self.handle
        self._cudnn.set_stream(handle, stream.ptr)
        try:
            plan.graph.execute_plan_at_index(
                addresses, pointer + form.nbytes, plan.plan_index, handle
            )
        except self._plans.errors as error:
            raise EngineFailedError(str(error)) from error
        for plans in self._collecting:
            plans.append(plan)
        if form.result:
            form.result.give_back(output, pointer, stream)

    def _forget_failed(self, operation: AnyConvolution, plan: Executable, error: Exception) -> None:
        """Never take an engine again that failed, for such an operation of any size."""
        kind = Kind.of(operation)
        with self._lock:
            if plan.asked is not None:
                self._failed.add((kind, plan.asked))
                self._tables().drop(operation, plan.asked)
            else:
                self._failed.add((kind, _plan_name(plan)))
            self._forget_choices()
        warn_once(
            f"cuDNN's engine {plan.engine} failed for {operation.name} ({kind.work}), so the next "
            f"one is taken: {error}"
        )

    def _forget_choices(self) -> None:
        self._ranked.clear()
        self._of_engines.clear()
        self._splits.clear()
        self._chosen.clear()


def _plan_name(plan: Executable) -> str:
    """A plan as cuDNN calls it, whatever its form."""
    return plan.engine.partition(",")[0]


def _is_for_cudnn(operation: AnyConvolution) -> bool:
    """It takes no negative padding: a piece of dx whose first rows no window reaches."""
    forward = forward_of(operation)
    least = min(*forward.x_shape, *forward.w_shape, *forward.output_shape)
    return least >= 1 and all(min(pair) >= 0 for pair in forward.padding)
