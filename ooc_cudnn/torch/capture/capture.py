"""Capturing by TorchDynamo: a model's forward becomes a graph, with guards that say for how long.

Each kind of call has a small function of its own, which is compiled with our backend; Dynamo traces
the model's forward within it. The first call captures. Later ones run what was captured wherever
its guards hold: they compare all that forward has read, attributes, hooks, functions, lists and
globals. Where they do not, the call is captured anew. What forward leaves on modules is Dynamo's to
leave there.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from ooc_cudnn.activity import activity
from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.network.runtime.larger_plans import LargerPlans
from ooc_cudnn.settings import current
from ooc_cudnn.torch.autograd.late_state import LateRead, LateState
from ooc_cudnn.torch.capture.backend import RefusedSizesError, capturing, compile_with, handle_call
from ooc_cudnn.torch.capture.capture_errors import explain_refusal
from ooc_cudnn.torch.capture.dynamo_patches.lstm_results import lstm_results_as_computed
from ooc_cudnn.torch.capture.guards.asked_again import Questions
from ooc_cudnn.torch.capture.guards.classes import Methods
from ooc_cudnn.torch.capture.guards.comparisons import Compared, comparisons_noted
from ooc_cudnn.torch.capture.guards.extra_guards import (
    BY_DICTIONARIES,
    Names,
    WatchedState,
    noting_missed_lookups,
)
from ooc_cudnn.torch.capture.lazy_layers import lazy_layers_drawing
from ooc_cudnn.torch.capture.refusals import check_model
from ooc_cudnn.torch.capture.stand_ins import give_back
from ooc_cudnn.torch.errors import UnsupportedModelError
from ooc_cudnn.torch.lowering.fallback_runner import kept_as_they_are
from ooc_cudnn.torch.options import Options
from ooc_cudnn.torch.runtime.ranks import as_batch_normalization
from ooc_cudnn.torch.tracing.switches import switches_kept

#: What Dynamo must see, and compare again at each call. Shapes, numbers and flags are constants.
_CONFIG = {
    "skip_nnmodule_hook_guards": False,
    "skip_guards_on_constant_func_defaults": False,  # before 2.13 it loses what changes in them
    **dict.fromkeys(BY_DICTIONARIES, False),  # the backend says where they are safe
    "max_saved_pointers_for_recursive_dict_tags_check": 2**20,
    "assume_dunder_attributes_remain_unchanged": False,
    "allow_rnn": True,
    "optimize_ddp": False,  # the whole graph is planned, and gradients come in groups by themselves
    "specialize_float": True,
    "specialize_int": False,  # counters become numbers that the graph is given
    "allow_unspec_int_on_nn_module": True,
    "automatic_dynamic_shapes": True,
    "record_runtime_overhead": False,  # it would note the time of each call, in which it takes part
    "use_numpy_random_stream": True,  # else numpy.random is drawn of PyTorch's: this refuses it
    "assume_static_by_default": True,
    "suppress_errors": False,
    "error_on_recompile": False,
    "recompile_limit": 2**20,
    "accumulated_recompile_limit": 2**20,
    "cache_size_limit": 2**20,
    "accumulated_cache_size_limit": 2**20,
}
#: What makes constants of numbers, too.
_CONSTANT = {"specialize_int": True, "automatic_dynamic_shapes": False}
_captured_by = threading.local()
_numbers = itertools.count()


class _Missed(Exception):
    """No capture's guards hold."""


class _CaptureDone(Exception):
    """A capture is there; nothing has run."""


class _Found(Exception):
    """The ready model that would run a call, and the tensors that it would be given."""

    def __init__(self, ready: Any, tensors: Sequence[Any]) -> None:
        super().__init__()
        self.ready, self.tensors = ready, tensors


@dataclass(eq=False)
class Call:
    """A call of a model.

    Attributes
    ----------
    model : Module
    forward : callable
        Its own, without a limit.
    args, kwargs
        What it is called with, stand-ins among them.
    options : Options
    real : mapping
        Of each stand-in, by its `id`, what it stands for.
    containers : sequence
        Lists and dictionaries of the user's, each with the one that forward is given in its place.
    missed, compared, names, questions, switches, larger, has_free_sizes
        While it is captured: the errors of lookups that found nothing, what was compared by what it
        is, what was looked into, what is asked again, how switches of the process were set before,
        plans of the model for larger inputs, and whether what is captured takes arguments of other
        sizes, too.
    late_reads, globals
        What its backward would read by names, and the objects where some of these begin.
    late_state : LateState, optional
        What these find.
    in_inference_mode : bool
        Whether it is made in inference mode, which TorchDynamo leaves while it captures; or as if.
    """

    model: torch.nn.Module
    forward: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    options: Options
    real: Mapping[int, Any] = field(default_factory=dict)
    containers: Sequence[tuple[Any, Any]] = ()
    missed: Sequence[str] = ()
    compared: Compared | None = None
    names: Names | None = None
    questions: Questions | None = None
    switches: Sequence[Any] | None = None
    larger: LargerPlans | None = None
    has_free_sizes: bool = False
    late_reads: Sequence[LateRead] = ()
    globals: Mapping[str, Any] = field(default_factory=dict)
    late_state: LateState | None = None
    in_inference_mode: bool = field(default_factory=torch.is_inference_mode_enabled)

    def give_back(self, result: Any) -> None:
        """Leave in the user's containers what forward has left in theirs. Forward is over."""
        give_back(self.containers, self.real)
        if self.late_state is not None:
            self.late_state.note(result, {id(made): of for of, made in self.containers})

    @property
    def scope(self) -> dict[str, Any]:
        """Roots of TorchDynamo's names of what it is given."""
        return {"L": {"forward": self.forward, "args": self.args, "kwargs": self.kwargs}}

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Those among its arguments."""
        leaves = pytree.tree_leaves((self.args, dict(self.kwargs)))
        return [each for each in leaves if isinstance(each, torch.Tensor)]


def _entry(forward: Any, args: Any, kwargs: Any) -> Any:
    """Entry that Dynamo compiles: each kind of call has a copy of it, with a cache of its own."""
    if not torch.compiler.is_compiling():
        raise missed  # type: ignore[name-defined]  # noqa: F821  # a global of each copy
    return forward(*args, **kwargs)


class _Capture:
    """One capture: a function that Dynamo compiles, with a cache of its own, and what it read."""

    def __init__(self, name: str) -> None:
        code = _entry.__code__.replace(co_name=name)
        scope: dict[str, Any] = {"torch": torch, "missed": _Missed, "__name__": __name__}
        scope["__builtins__"] = __builtins__
        self.function = types.FunctionType(code, scope)
        weakref.finalize(self, _drop, scope)
        self._known = torch._dynamo.run(self.function)
        self._held: WatchedState | None = None
        self._questions = Questions()
        #: Whether it draws of Python's random numbers, before it runs.
        self.draws = False
        #: Whether it takes arguments of other sizes than those it was captured with.
        self.has_free_sizes = False

    def read(self, ready: Any, tensors: Sequence[Any], call: Call) -> None:
        """Note what the captured graph was given, and what forward looked into."""
        assert call.names is not None
        assert call.questions is not None
        self.has_free_sizes = call.has_free_sizes
        self._held = WatchedState(ready.graph, tensors, call.model, call.names)
        self._questions = call.questions

    def __call__(self, call: Call, action: Callable[..., Any]) -> Any:
        """Run a call; raise `_Missed` where that is not as it was captured."""
        held, questions = self._held, self._questions

        def checked(ready: Any, tensors: Sequence[Any]) -> Any:
            if held is not None and not held.are_as_they_were(tensors):
                raise _Missed
            if not questions.have_their_answers(call.scope):
                raise _Missed
            return action(ready, tensors)

        state = random.getstate() if self.draws else None
        try:
            with handle_call(call, checked):
                return self._known(call.forward, call.args, call.kwargs)
        except (_Missed, RefusedSizesError, PlanInfeasibleError) as error:
            if state is not None:
                random.setstate(state)
            if isinstance(error, RefusedSizesError):
                raise _Missed from error
            raise


class Captures:
    """All captures of one kind of call.

    Parameters
    ----------
    larger : LargerPlans, optional
        Plans of the model for larger inputs.
    """

    def __init__(self, larger: LargerPlans | None = None) -> None:
        self._larger = larger
        # by its name Dynamo remembers what changed: sizes of another model's inputs are none of it
        self._name = f"call_{next(_numbers)}"
        self._begin()
        #: How often a call was captured, but for what is not kept.
        self.count = 0

    def _begin(self) -> None:
        """Begin without any."""
        #: Of those for one size the last used is the first. Those for all sizes follow in the order
        #: in which they came: so each size stays with the capture that it was made ready in.
        self._captures: tuple[_Capture, ...] = ()
        self._methods: Methods | None = None
        self._is_synchronised: bool | None = None
        self._as_seen: Hashable = None

    def __call__(self, call: Call, action: Callable[..., Any]) -> Any:
        """Run a call; capture it where no guards hold.

        Parameters
        ----------
        call : Call
        action : callable
            Runs what was captured, of a `ReadyModel` and the tensors that it is given.

        Returns
        -------
        tree
            What the model returns.

        Raises
        ------
        UnsupportedModelError
            If Dynamo refuses, with its reason and the user's line.
        """
        made = self._with(call, action)
        if not call.real:
            return made
        return pytree.tree_map(lambda each: call.real.get(id(each), each), made)

    def __len__(self) -> int:
        return len(self._captures)

    def keep(self, most: int) -> None:
        """Keep so many at the most: the newest for all sizes, then those that were used last."""
        if len(self._captures) <= most:
            return
        self.count -= len(self._captures) - most
        of_all_sizes = [each for each in self._captures if each.has_free_sizes][-most:]
        others = [each for each in self._captures if not each.has_free_sizes]
        self._captures = (*others[: most - len(of_all_sizes)], *of_all_sizes)

    def find(self, call: Call) -> tuple[Any, Sequence[Any]]:
        """Find what would run a call, and the tensors it would be given; it does not run.

        Raises
        ------
        UnsupportedModelError
            As for a call; or if nothing of it is computed.
        """

        def report(ready: Any, tensors: Sequence[Any]) -> Any:
            raise _Found(ready, tensors)

        try:
            with _as_drawn():
                self._with(call, report)
        except _Found as result:
            return result.ready, result.tensors
        raise UnsupportedModelError(f"{type(call.model).__name__} computes no tensor")

    def _come_first(self, capture: _Capture) -> None:
        others = tuple(each for each in self._captures if each is not capture)
        if not capture.has_free_sizes:
            self._captures = (capture, *others)
        elif len(others) == len(self._captures):  # it is new
            self._captures = (*others, capture)

    def _with(self, call: Call, action: Callable[..., Any]) -> Any:
        if self._methods is not None and self._methods.now() != self._as_seen:
            self._begin()
        if self._is_synchronised is None:
            kinds = map(type, call.model.modules())
            self._is_synchronised = any(issubclass(e, torch.nn.SyncBatchNorm) for e in kinds)
        with as_batch_normalization(call.model) if self._is_synchronised else nullcontext():
            for _ in range(3):
                tried = self._captures
                for capture in tried:
                    try:
                        outputs = capture(call, action)
                    except _Missed:
                        continue
                    if capture is not self._captures[0] and not capture.has_free_sizes:
                        self._come_first(capture)
                    return outputs
                with capturing:
                    if not set(self._captures) <= set(tried):
                        continue  # another thread has captured this kind of call meanwhile
                    done = self._capture(call)
                if done is not None:  # it computes nothing, and has run
                    return done[0]
        raise UnsupportedModelError(
            f"{type(call.model).__name__} does not stay as it was captured from one call to the "
            "next: what forward reads changes while it is looked at"
        )

    def _capture(self, call: Call) -> tuple[Any] | None:
        """Capture a call; where there is nothing to compute it has run: return what it returns.

        Numbers that have changed since an earlier capture are inputs of the graph; where Dynamo
        cannot follow them so, they are constants.
        """
        with activity(f"capturing {type(call.model).__name__}", current().progress):
            try:
                return self._traced(call, {})
            except Exception:
                if not self._captures:
                    raise
            return self._traced(call, _CONSTANT)

    def _traced(self, call: Call, config: dict[str, Any]) -> tuple[Any] | None:
        capture = _Capture(self._name)

        def captured(ready: Any, tensors: Sequence[Any]) -> Any:
            capture.read(ready, tensors, call)
            raise _CaptureDone

        check_model(call.model)
        options = {name: each for name, each in (_CONFIG | config).items() if _has(name)}
        compiled = torch.compile(capture.function, backend=compile_with, fullgraph=True)
        with (
            nest_capture(),
            torch._dynamo.config.patch(options),
            kept_as_they_are(),
            lstm_results_as_computed(),
            _followed_otherwise(call),
            lazy_layers_drawing(call.model),
            switches_kept() as call.switches,
            _quiet(),
            _as_drawn(),
            warnings.catch_warnings(),
            noting_missed_lookups() as call.missed,
            comparisons_noted() as call.compared,
        ):
            # Dynamo looks at .grad of all tensors
            warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor")
            # and makes an instance of a user's autograd function, and tells of what it refuses
            warnings.filterwarnings("ignore", message=".*should not be instantiated")
            warnings.filterwarnings("ignore", message="Dynamo does not know how to trace")
            self.count += 1
            call.larger = self._larger
            outputs: tuple[Any] | None
            drawn = random.getstate()
            self._methods = Methods(call.model)
            self._as_seen = self._methods.now()
            try:
                with handle_call(call, captured):
                    outputs = (compiled(call.forward, call.args, call.kwargs),)
            except _CaptureDone:
                outputs, capture.draws = None, random.getstate() != drawn
            except _Missed:
                raise UnsupportedModelError(_why_not_captured()) from None
            except Exception as error:
                raise explain_refusal(error, call.model, call.forward, call) from None
            self._come_first(capture)
        return outputs


@contextmanager
def _followed_otherwise(call: Call) -> Iterator[None]:
    """Have TorchDynamo follow some things in other ways than its own."""
    # they derive from classes of TorchDynamo, which is imported at the first capture
    from ooc_cudnn.torch.capture.dynamo_patches.checkpoints import checkpoints_followed
    from ooc_cudnn.torch.capture.dynamo_patches.constant_numbers import constant_numbers_known
    from ooc_cudnn.torch.capture.dynamo_patches.container_writes import container_writes_followed
    from ooc_cudnn.torch.capture.dynamo_patches.copies import copies_followed
    from ooc_cudnn.torch.capture.dynamo_patches.covariances import covariances_followed
    from ooc_cudnn.torch.capture.dynamo_patches.iterables import iterables_followed
    from ooc_cudnn.torch.capture.dynamo_patches.jit_isinstance import jit_isinstance_followed
    from ooc_cudnn.torch.capture.dynamo_patches.legacy_variables import variables_followed
    from ooc_cudnn.torch.capture.dynamo_patches.numpy_scalars import numpy_scalars_followed
    from ooc_cudnn.torch.capture.dynamo_patches.traced_functions import functions_followed
    from ooc_cudnn.torch.capture.dynamo_patches.traced_tensors import tensors_followed
    from ooc_cudnn.torch.capture.dynamo_patches.truths import truths_followed
    from ooc_cudnn.torch.capture.guards.constant_types import types_of_constants_guarded
    from ooc_cudnn.torch.capture.guards.key_orders import key_orders_guarded
    from ooc_cudnn.torch.capture.guards.unguarded_reads import unguarded_reads_guarded
    from ooc_cudnn.torch.capture.late_reads import late_reads_refused
    from ooc_cudnn.torch.tracing.element_indexing import indices_followed

    with ExitStack() as stack:
        for enter in (
            jit_isinstance_followed,
            checkpoints_followed,
            functions_followed,
            partial(tensors_followed, in_inference_mode=call.in_inference_mode),
            container_writes_followed,
            copies_followed,
            covariances_followed,
            constant_numbers_known,
            types_of_constants_guarded,
            iterables_followed,
            variables_followed,
            indices_followed,
            late_reads_refused,
            unguarded_reads_guarded,
            key_orders_guarded,
            numpy_scalars_followed,
            truths_followed,
        ):
            stack.enter_context(enter())
        yield


def _why_not_captured() -> str:
    """The reason why TorchDynamo does not trace in this thread."""
    modes = _get_current_dispatch_mode_stack()
    if modes:
        return (
            f"the call is within a {type(modes[-1]).__name__} (a TorchDispatchMode), and "
            "TorchDynamo traces nothing there: call the model outside of it, or release(model)"
        )
    return (
        "TorchDynamo is switched off here (TORCHDYNAMO_DISABLE, torch.compiler.set_stance), and a "
        "model under a limit is captured by it"
    )


def _drop(scope: dict[str, Any]) -> None:
    """Let go of what was compiled: Dynamo remembers the globals of a function longer than it."""
    scope.update(dict.fromkeys(scope))


def _has(name: str) -> bool:
    return hasattr(torch._dynamo.config, name)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence PyTorch's logs of errors that are raised, too; with TORCH_LOGS, let them be."""
    if os.environ.get("TORCH_LOGS"):
        yield
        return
    logger = logging.getLogger("torch")  # a part of it that has a level of its own was asked for
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def _as_drawn() -> Iterator[None]:
    """Let Python's next random number be what it is: what Dynamo compiles draws before it runs."""
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)


@contextmanager
def nest_capture() -> Iterator[None]:
    """Let modules under limits of their own be parts of what is captured in this thread."""
    before = getattr(_captured_by, "us", False)
    _captured_by.us = True
    try:
        yield
    finally:
        _captured_by.us = before


def is_captured_by_us() -> bool:
    """True if Dynamo traces for us in this thread, and not for a `torch.compile` of the user's."""
    return bool(getattr(_captured_by, "us", False))


# As `torch.compiler.assume_constant_result` does, which would import TorchDynamo: 2 s of CPU.
is_captured_by_us._dynamo_marked_constant = True  # type: ignore[attr-defined]
