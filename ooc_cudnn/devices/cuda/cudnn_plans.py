"""cuDNN's plans of a convolution: those that its heuristics rank, and that of any engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from ooc_cudnn.devices.cuda.cudnn_engines import forbidden_notes, is_faulty
from ooc_cudnn.devices.cuda.cudnn_forms import PADDED, UNFOLDED, WIDENED, Form
from ooc_cudnn.devices.cuda.cudnn_graphs import describe, forget_frames
from ooc_cudnn.devices.cuda.frontend import is_cudnn_engine
from ooc_cudnn.devices.engines import MEASURED, Engine, EngineFailedError
from ooc_cudnn.errors import CudnnError
from ooc_cudnn.operations.convolution.gradients import (
    ConvolutionBackwardFilter,
    forward_of,
    result_dtype,
    without_epilogue,
)
from ooc_cudnn.tensor import DTYPES
from perfmodel.cached import cached_property

#: How an engine that is compiled at run time is set for half filter gradients with float32 results.
#: The heuristics leave it whole, and most of the card idle: where the filter is small there are few
#: tiles. On an H200 (cuDNN 9.19), milliseconds by default, by the best of these, and widened:
#: 96 images of 56 x 56, 256 to 64 channels 1.58, 0.14 and -; a window of 3, 64 to 64 1.60, 0.25 and
#: -; 64 to 32 channels of volumes 10.7, 3.3 and 5.5; a map of two classes (padded) 41, 1.1 and 1.7.
SPLIT = (
    {"KERNEL_CFG": 9, "SPLIT_K_SLC": 16},
    {"KERNEL_CFG": 16, "SPLIT_K_SLC": 32},
    {"KERNEL_CFG": 16, "SPLIT_K_SLC": 64},
    {"KERNEL_CFG": 8, "SPLIT_K_SLC": 16},
)
#: The same for an image whose columns are channels: its filter is a tile or two. Of 32 clips of
#: R3D-18 1.94 in place of 2.29, of 64 images of EfficientNet 0.35 for 0.52, of a volume of nnU-Net
#: 2.27 for 3.09.
SPLIT_OF_UNFOLDED = (SPLIT[2], SPLIT[1], SPLIT[0])
#: cuDNN says from this version on whether an engine's workspace fits without building it.
BOUNDS_WORKSPACE = 90200
#: The workspace of what is not built is known to such a share of it, or to so many bytes.
NEAR_WORKSPACE, LITTLE_WORKSPACE = 0.03, 2**16
#: No engine takes more.
LARGEST_WORKSPACE = 2**40
#: What the frontend calls a knob that it has no name for.
NAMELESS = "NOT_SET"
#: Where not every engine is tried, so many that the heuristics rank are: as many as PyTorch tries.
MOST_RANKED = 10


class Executable(NamedTuple):
    """A plan: its graph, which of the graph's plans, all its scratch bytes, its engine.

    `asked` is the engine that was asked for; None where the heuristics chose. What they choose may
    compute `on_tensor_cores`, and `lacks` what they would choose if there were room for workspace:
    `NO_TENSOR_CORES`, `NOT_SPLIT` or "". What is compiled at run time `is_built` once it runs; till
    then its workspace is a bound.
    """

    graph: Any
    plan_index: int
    workspace_bytes: int
    engine: str
    form: Form
    asked: Engine | None = None
    on_tensor_cores: bool = False
    lacks: str = ""
    is_built: bool = True

    @property
    def name(self) -> str:
        """Name that a plan shows."""
        if self.asked is not None:
            return f"{self.engine}{MEASURED}"
        return f"{self.engine}{self.lacks}"


class Plans:
    """Builds plans.

    Parameters
    ----------
    cudnn : module
    handle : cuDNN's handle
    """

    def __init__(self, cudnn: Any, handle: Any) -> None:
        self._cudnn, self._handle = cudnn, handle
        #: What cuDNN raises where it cannot do something.
        self.errors: tuple[type[Exception], ...] = (cudnn.cudnnGraphNotSupportedError, RuntimeError)
        #: The same, or that a frontend before 1.28 does not know how to ask for an engine.
        self._declined = (*self.errors, AttributeError)

    def ranked_first(
        self, form: Form, budget_bytes: int | None, rank: Callable[[str], int | None]
    ) -> Executable | None:
        """Return the heuristics' choice, its workspace within a budget; None if there is none.

        `rank` says, by the names of plans, which must not be taken (None), and which are to be
        taken only where there is no other (more than 0).
        """
        cudnn, operation = self._cudnn, form.operation
        graph = describe(cudnn, self._handle, operation)
        try:
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
            graph.deselect_numeric_notes(forbidden_notes(cudnn, operation))
            if budget_bytes is not None:
                graph.deselect_workspace_greater_than(budget_bytes)
            graph.check_support()
            ranks = dict[int, int]()
            for index in range(graph.get_execution_plan_count()):
                engine = graph.get_plan_name_at_index(index)
                if is_cudnn_engine(engine) and not is_faulty(engine, operation):
                    position = rank(engine)
                    ranks |= {} if position is None else {index: position}
            for index in sorted(ranks, key=ranks.__getitem__):
                if self.bounds_workspace and self._is_compiled(graph, index):
                    engine_there = self._askable_engine_at(graph, index, form)
                    found = engine_there and self.unbuilt(form, engine_there, budget_bytes)
                    if found:  # else it cannot be asked for by its number
                        return found
                try:  # the best ranked that is neither deselected nor unsupported
                    graph.build_plan_at_index(index)
                except self.errors:
                    continue
                found = _executable(graph, index, form)
                return found._replace(on_tensor_cores=self._is_on_tensor_cores(graph, index))
            return None
        except cudnn.cudnnGraphNotSupportedError:
            return None
        except RuntimeError as error:
            if without_epilogue(operation) is not operation:  # there is another way
                return None
            raise CudnnError(f"cuDNN cannot build {operation}: {error}") from error
        finally:
            forget_frames(graph)

    def of_engine(self, form: Form, engine: Engine) -> Executable | None:
        """Return the plan of an engine; None where it cannot, or must not, compute a form."""
        with self._graph_of(form, engine, measured=True) as graph:
            if graph is None:
                return None
            try:
                index = graph.get_execution_plan_count() - 1
                graph.build_plan_at_index(index)
                return _executable(graph, index, form)._replace(asked=engine)
            except self._declined:
                return None

    @cached_property
    def bounds_workspace(self) -> bool:
        """Tell whether cuDNN says what fits without building it."""
        return bool(self._cudnn.backend_version() >= BOUNDS_WORKSPACE)

    def unbuilt(self, form: Form, engine: Engine, most: int | None) -> Executable | None:
        """Return the plan of an engine that is compiled at run time, before it is compiled.

        Its workspace is no more than it says, nor than `most`. To compile one takes 0.2 to 0.6 s,
        and of those that a planner asks for few run.
        """
        nbytes = None
        if NAMELESS not in engine.knobs:
            nbytes = self._workspace_bound(form, engine, most)
        if nbytes is None:
            return None
        on_tensor_cores = self._is_supported(form, engine, nbytes, on_tensor_cores=True)
        with self._graph_of(form, engine) as graph:
            if graph is None:
                return None
            index = graph.get_execution_plan_count() - 1
            found = _described(graph, index, form, nbytes)
            return found._replace(on_tensor_cores=on_tensor_cores, is_built=False)

    def build(self, found: Executable) -> Executable:
        """Build a plan that is not yet.

        Raises
        ------
        EngineFailedError
            If it cannot be.
        """
        if found.is_built:
            return found
        try:
            found.graph.build_plan_at_index(found.plan_index)
        except self._declined as error:
            raise EngineFailedError(str(error)) from error
        finally:
            forget_frames(found.graph)
        built = _executable(found.graph, found.plan_index, found.form)
        return found._replace(workspace_bytes=built.workspace_bytes, is_built=True)

    def _workspace_bound(self, form: Form, engine: Engine, most: int | None) -> int | None:
        """Workspace that an engine takes, or little less; None for more than `most`, or no plan."""
        high = LARGEST_WORKSPACE if most is None else most
        if not self._is_supported(form, engine, high):
            return None
        if self._is_supported(form, engine, 0):
            return 0
        low = 0
        while high - low > max(NEAR_WORKSPACE * low, LITTLE_WORKSPACE):
            middle = math.isqrt(max(low, LITTLE_WORKSPACE) * high)
            if self._is_supported(form, engine, middle):
                high = middle
            else:
                low = middle
        return high

    def _is_supported(
        self, form: Form, engine: Engine, most: int, *, on_tensor_cores: bool = False
    ) -> bool:
        """True if an engine computes a form in so much workspace; nothing is built."""
        with self._graph_of(form, engine) as graph:
            if graph is None:
                return False
            try:
                graph.deselect_workspace_greater_than(most)
                if on_tensor_cores:
                    graph.select_numeric_notes([self._cudnn.numerical_note.TENSOR_CORE])
                graph.check_support()
            except self._declined:
                return False
            return True

    @contextmanager
    def _graph_of(self, form: Form, engine: Engine, *, measured: bool = False) -> Iterator[Any]:
        """The graph of a form with the plan of an engine alone; None where there is none.

        What is used where it was `measured` alone is barred else (`forbidden_notes`).
        """
        cudnn, operation = self._cudnn, form.operation
        known = cudnn.knob_type.__members__
        if is_faulty(f"eng{engine.number}", operation) or not known.keys() >= engine.knobs.keys():
            yield None
            return
        graph, has_plan = describe(cudnn, self._handle, operation), True
        try:
            try:
                graph.validate()
                graph.build_operation_graph()
                knobs = {known[name]: choice for name, choice in engine.knobs.items()}
                graph.create_execution_plan(engine.number, knobs)
                graph.deselect_numeric_notes(forbidden_notes(cudnn, operation, measured=measured))
            except self._declined:
                has_plan = False
            yield graph if has_plan else None
        finally:
            forget_frames(graph)

    def split(self, form: Form) -> list[Engine]:
        """Return the first engine that the heuristics rank with the knobs of `SPLIT`, set so.

        Of unfolded images with those of `SPLIT_OF_UNFOLDED`.

        Of half filter gradients with float32 results; of other forms there is none.
        """
        operation, modes = form.operation, self._cudnn.heur_mode
        is_half = DTYPES[forward_of(operation).dtype] == 2
        is_gradient = isinstance(operation, ConvolutionBackwardFilter)
        if not (is_gradient and is_half and result_dtype(operation) == "float32"):
            return []
        settings = SPLIT_OF_UNFOLDED if form.name == UNFOLDED else SPLIT
        graph = describe(self._cudnn, self._handle, operation)
        try:
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([modes.A, modes.FALLBACK])  # it is one of the second
            numbers = dict.fromkeys(
                _engine_at(graph, index, form).number
                for index in range(graph.get_execution_plan_count())
            )
            for number in numbers:
                knobs = graph.get_knobs_for_engine(number)
                most = {knob.type.name: knob.max_value for knob in knobs}
                engines = [
                    Engine(number, setting, kind_of(form))
                    for setting in settings
                    if all(choice <= most.get(name, -1) for name, choice in setting.items())
                ]
                if engines:
                    return engines
        except self._declined:
            pass
        finally:
            forget_frames(graph)
        return []

    def is_compiled(self, found: Executable) -> bool:
        """True if a plan is compiled at run time."""
        return self._is_compiled(found.graph, found.plan_index)

    def engine_of(self, found: Executable) -> Engine | None:
        """Return the engine of a plan, as it may be asked for; None where that cannot be told."""
        return self._askable_engine_at(found.graph, found.plan_index, found.form)

    def _askable_engine_at(self, graph: Any, index: int, form: Form) -> Engine | None:
        try:
            return _engine_at(graph, index, form)
        except self._declined:
            return None

    def engines(self, form: Form, *, every: bool, compiled: bool) -> list[Engine]:
        """Return the engines that may compute a form, those that the heuristics rank first.

        Every one there is, too, or only the first of those; and without `compiled`, those alone
        that are not compiled at run time, beside the heuristics' first.
        """
        modes = self._cudnn.heur_mode
        engines = self.split(form)
        graph = describe(self._cudnn, self._handle, form.operation)
        try:
            graph.validate()
            graph.build_operation_graph()
            number = graph.get_engine_count() if every else 0
            graph.create_execution_plans([modes.A, *([modes.B] if every else ()), modes.FALLBACK])
            for index in range(graph.get_execution_plan_count()):
                if not is_cudnn_engine(graph.get_plan_name_at_index(index)):
                    continue
                if index and not compiled and self._is_compiled(graph, index):
                    continue
                engines.append(_to_ask_for(_engine_at(graph, index, form)))
                if not every and len(engines) >= MOST_RANKED:
                    break
            numbers = range(number) if compiled else self._at_once(form, number)
            # the latest first: those that take seconds are among the oldest
            engines += (Engine(each, {}, kind_of(form)) for each in reversed(numbers))
            # the oldest last, which the heuristics' mode of fallbacks ranks, too: on an H100 it
            # took 7.9 s for a filter gradient of volumes that others make in 54 ms, and measuring
            # ended with it
            engines.sort(key=lambda engine: every and engine.number == 0)
        except self._declined:  # it cannot be computed so, or no further: what was found will do
            pass
        finally:
            forget_frames(graph)
        return engines

    def not_compiled(self, form: Form) -> list[int]:
        """Return the numbers of engines that compute a form, but those compiled at run time."""
        graph = describe(self._cudnn, self._handle, form.operation)
        try:
            graph.validate()
            graph.build_operation_graph()
            return self._at_once(form, graph.get_engine_count())
        except self._declined:
            return []
        finally:
            forget_frames(graph)

    def _at_once(self, form: Form, number: int) -> list[int]:
        """Those of so many engines that compute a form and are not compiled at run time."""
        graph = describe(self._cudnn, self._handle, form.operation)
        engines = list[int]()
        try:
            graph.validate()
            graph.build_operation_graph()
            for engine in range(number):
                try:
                    graph.create_execution_plan(engine, {})
                    if not self._is_compiled(graph, graph.get_execution_plan_count() - 1):
                        engines.append(engine)
                except self._declined:
                    continue
        finally:
            forget_frames(graph)
        return engines

    def _is_on_tensor_cores(self, graph: Any, index: int) -> bool:
        """True if a plan that was built is on tensor cores; the others of its graph are barred."""
        try:
            graph.select_numeric_notes([self._cudnn.numerical_note.TENSOR_CORE])
            graph.build_plan_at_index(index)  # there is nothing to build, but it may be barred
        except self._declined:
            return False
        return True

    def _is_compiled(self, graph: Any, index: int) -> bool:
        """True if a plan is compiled at run time."""
        notes = graph.get_behavior_notes_for_plan_at_index(index)
        return self._cudnn.behavior_note.RUNTIME_COMPILATION in notes


def kind_of(form: Form) -> str:
    """Return what an engine of a form says of it (`Engine.form`)."""
    return form.name if form.name in (WIDENED, PADDED, UNFOLDED) else ""


def _engine_at(graph: Any, index: int, form: Form) -> Engine:
    """The engine of one of a graph's plans."""
    number, knobs = graph.get_engine_and_knobs_at_index(index)
    return Engine(number, {knob.name: choice for knob, choice in knobs.items()}, kind_of(form))


def _to_ask_for(engine: Engine) -> Engine:
    """The engine without knobs that the frontend has no name for: these keep their defaults."""
    named = {name: choice for name, choice in engine.knobs.items() if name != NAMELESS}
    return replace(engine, knobs=named)


def _executable(graph: Any, index: int, form: Form) -> Executable:
    return _described(graph, index, form, int(graph.get_workspace_size_plan_at_index(index)))


def _described(graph: Any, index: int, form: Form, workspace_bytes: int) -> Executable:
    engine = graph.get_plan_name_at_index(index)
    fused = "" if without_epilogue(form.operation) is form.operation else "fused"
    name = ", ".join(filter(None, (engine, form.name, fused)))
    return Executable(graph, index, form.nbytes + workspace_bytes, name, form)
