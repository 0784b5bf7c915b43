"""One call of a model under autograd: forward when it is called, backward when its turn comes.

Backward is a chain of functions, one for each group of gradients that are final at once. A token
goes from each to the next, so autograd runs them in this order; what is to be done with a group
(DistributedDataParallel begins to sum it over processes) it does before it comes to the next one.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from typing import Any

import numpy as np
import torch

from ooc_cudnn.arrays.tensors import to_tensor
from ooc_cudnn.devices import get_device
from ooc_cudnn.network.runtime.two_part import PausedStep, TwoPartStep
from ooc_cudnn.settings import current, settings
from ooc_cudnn.settings_table import SETTINGS, Settings
from ooc_cudnn.torch.autograd.fixed_places import FixedPlaces, LentPlaces
from ooc_cudnn.torch.autograd.late_state import LateState
from ooc_cudnn.torch.autograd.late_tensors import LateTensors
from ooc_cudnn.torch.autograd.none_as_none import hand_on_none_behind
from ooc_cudnn.torch.autograd.tensor_refs import TensorRefs
from ooc_cudnn.torch.cards import at, making_there
from ooc_cudnn.torch.errors import HiddenGradientError, SecondDerivativeError
from ooc_cudnn.torch.places import users_frame


class Request:
    """What a call hands to autograd's functions beside tensors: its step, and what that is given.

    Parameters
    ----------
    step : TwoPartStep
    otherwise : callable
        Of places of outputs, the step in which those have gradients, and no others.
    names : sequence of str
        In the network, of the tensors that gradients are made of.
    others : mapping
        What else the network is given, by name.
    inputs : collection of str
        Those of all names that are inputs of the network; the others are parameters and running
        statistics.
    places : FixedPlaces
        Where outputs are to be.
    wrapping : TensorRefs
    changing : collection of str
        Of all names those whose tensors the step may change: they are nobody else's.
    seeds : mapping
        Of each state of a dropout in the network the seed, from which every forward begins.
    reached : sequence of collection of str
        Of each output, in order, the names whose gradients depend on that of the output.
    told : callable
        Of a name what a user is told.
    """

    def __init__(
        self,
        step: TwoPartStep,
        otherwise: Callable[[frozenset[int]], TwoPartStep],
        names: Sequence[str],
        others: Mapping[str, Any],
        inputs: Collection[str],
        places: FixedPlaces,
        wrapping: TensorRefs,
        changing: Collection[str],
        seeds: Mapping[str, int],
        reached: Sequence[Collection[str]],
        told: Callable[[str], str],
    ) -> None:
        self.seeds, self.reached = seeds, reached
        self.step, self.names, self.others = step, tuple(names), dict(others)
        self._otherwise, self._told = otherwise, told
        self.device, self.wrapping, self.changing = places.device, wrapping, frozenset(changing)
        self.lent = LentPlaces(places)
        self.inputs = frozenset(inputs)
        # a step is made anew in other settings than those of the call
        self._outputs = [each.name for each in step.outputs]
        self._watched: list[tuple[weakref.ref[torch.Tensor], frozenset[str]]] = []
        #: What backward would read by names, and of tensors.
        self.late_state: LateState | None = None
        self.late_tensors: LateTensors | None = None

    def switch_to(self, gradients: Sequence[torch.Tensor | None]) -> bool:
        """Take the step in which these outputs have gradients; return whether it is another one.

        PyTorch does not multiply with a gradient that is not there. Zeros in its place would be NaN
        behind what has an infinite derivative, and take time.
        """
        pairs = enumerate(zip(gradients, self.reached, strict=True))
        seeded = frozenset(at for at, (each, names) in pairs if each is not None and names)
        if seeded == self.step.seeded:
            return False
        self.step = self._otherwise(seeded)
        return True

    def forward(self, tensors: Sequence[Any]) -> PausedStep:
        """Run forward on tensors in the order of the names; again, it draws the same masks.

        It runs on the device of the settings in force, as `at` sets them.
        """
        self.others |= {name: state_of(seed, self.device) for name, seed in self.seeds.items()}
        arrays = {**self.others, **dict(zip(self.names, tensors, strict=True))}
        out = self.lent.results(self.step.outputs)
        inputs, lasting = hand_over(arrays, self.inputs, self.wrapping)
        making = making_there(self.device, self.changing)
        return self.step.run(inputs, out, lasting, making)

    def watch(self, outputs: Sequence[tuple[torch.Tensor, frozenset[str]]]) -> None:
        """Note outputs, and what is changed, that forward reads further; what is made of each."""
        self._watched = [(weakref.ref(each), later) for each, later in outputs]

    def check_hooks(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """Refuse a hook that would not see all that autograd adds up.

        Raises
        ------
        HiddenGradientError
            If an output has hooks or keeps its gradient, and others with gradients are made of it.
        """
        pairs = zip(self._outputs, gradients, strict=True)
        seeded = {name for name, gradient in pairs if gradient is not None}
        for output, later in self._watched:
            tensor = output()
            if tensor is None or not later & seeded:
                continue
            if tensor._backward_hooks or tensor.retains_grad:
                raise HiddenGradientError(
                    "an output, or an argument that forward changes in place, of shape "
                    f"{tuple(tensor.shape)} has a hook or keeps its gradient, and forward makes "
                    "another output of it, whose gradient it would not see: register the hook in "
                    "forward (y.register_hook), or put the limit on the parts before and behind "
                    f"that tensor{users_frame()}"
                )

    def check_late(self) -> None:
        """Refuse a backward before which what it reads late has changed; the last lets go of it.

        Raises
        ------
        LateChangeError
            With its name.
        """
        for late in (self.late_state, self.late_tensors):
            if late is not None:
                late.check()
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            self.late_state = self.late_tensors = None  # what it holds may hold an output

    def versions(self) -> dict[str, int]:
        """Versions of the tensors that forward read and autograd does not watch."""
        return {
            name: each._version
            for name, each in self.others.items()
            if isinstance(each, torch.Tensor)
            and name not in self.changing
            and not each.is_inference()
        }

    def check_unchanged(self, versions: Mapping[str, int]) -> None:
        """Raise RuntimeError, as PyTorch does, if a tensor was changed in place since."""
        for name, version in self.versions().items():
            if version != versions[name]:
                raise RuntimeError(
                    f"{self._told(name)} has been modified by an inplace operation between forward "
                    f"and backward: it is at version {version}; expected version {versions[name]}. "
                    f"Change it after backward, or give the model a clone"
                )


class Run:
    """A call: forward has run; backward goes on group by group.

    Parameters
    ----------
    request : Request
    tensors : sequence of Tensor
        In the order of the request's names.
    """

    def __init__(self, request: Request, tensors: Sequence[torch.Tensor]) -> None:
        self.request = request
        self._settings, self._context = current(), copy_context()
        self._paused: PausedStep | None = request.forward(tensors)
        self.outputs = self._paused.outputs
        self.groups, self._shared = self._paused.groups, self._paused.shared
        self._read_again = self._paused.read_again
        self._differentiable = {name for group in self.groups for name in group}
        self._versions = request.versions()
        self._own: list[tuple[torch.Tensor, int]] = []
        self._made: dict[str, Any] = {}
        #: The names that have gradients in this backward: as in PyTorch, others have none, not 0.
        self._reached = set[str]()
        #: With create_graph, what gradients depend on.
        self.read: tuple[torch.Tensor, ...] = ()

    def handed_out(self, outputs: Sequence[torch.Tensor]) -> None:
        """Note the outputs as the user gets them: backward reads the memory of some.

        That of a copy it does not.
        """
        triples = zip(self.request.step.outputs, map(tensor_of, self.outputs), outputs, strict=True)
        self._own = [
            (each.detach(), each._version)
            for output, made, each in triples
            if output.name in self._read_again and each.data_ptr() == made.data_ptr()
        ]

    def begin(
        self, tensors: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]
    ) -> None:
        """Begin backward; a second time (retain_graph) after forward, which kept nothing for it.

        So it does where an output was changed in place that it would read: PyTorch kept another
        tensor, or raises an error.

        Outputs that a loss does not depend on have None for a gradient.
        """
        self.request.check_hooks(gradients)
        self.request.check_late()
        pairs = zip(self.request.reached, gradients, strict=True)
        self._reached = {n for names, each in pairs if each is not None for n in names}
        self._made = {}
        if self._reached:
            self._context.run(self._begin, tensors, gradients)

    def _begin(
        self, tensors: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]
    ) -> None:
        request = self.request
        request.check_unchanged(self._versions)
        with as_in_forward(self._settings), at(request.device):
            paused, self._paused = self._paused, None  # nor is it there after an error
            changed = any(each._version != version for each, version in self._own)
            if request.switch_to(gradients) or paused is None or paused.has_begun or changed:
                paused = None  # what it holds makes room
                paused = request.forward(tensors)
                self._differentiable = {name for group in paused.groups for name in group}
                self._shared = paused.shared
            seeds = [
                request.lent.gradient(y, each)
                for y, each, names in zip(
                    request.step.outputs, gradients, request.reached, strict=True
                )
                if each is not None and names
            ]
            self._made = paused.begin_backward(seeds)
            self._paused = paused

    def gradients(
        self, names: Sequence[str], devices: Sequence[torch.device]
    ) -> list[torch.Tensor | None]:
        """Go on until the gradients of some names are there; return them, each on its device."""
        if not self._reached:
            return [None] * len(names)
        # autograd may be on a thread of its own, which knows no block that the caller is in
        self._context.run(self._go_on, self._differentiable.intersection(names))
        computed = {name: self._made.pop(name, None) for name in names}
        results = [
            _apart(name, computed[name] if name in self._reached else None, device, self._shared)
            for name, device in zip(names, devices, strict=True)
        ]
        if self._paused is not None and self._paused.is_over:
            self._paused = None
            self.request.lent.give_back()
        return results

    def _go_on(self, names: set[str]) -> None:
        with as_in_forward(self._settings), at(self.request.device):
            while self._paused is not None and not names <= self._made.keys():
                self._made |= self._paused.go_on()


def differentiable_outputs(
    request: Request, tensors: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """Run forward on tensors in the order of the request's names; autograd knows what it made."""
    with torch.no_grad():
        run = Run(request, tensors)
    named = dict(zip(request.names, tensors, strict=True))
    later = {name for group in run.groups[1:] for name in group}
    token: tuple[torch.Tensor, ...] = ()
    for group in reversed(run.groups[1:]):
        names = [name for name in group if name in named]
        token = (Later.apply(run, names, *(named[n] for n in names), *token),)
    names = [name for name in named if name not in later]
    outputs: tuple[torch.Tensor, ...] = StepFunction.apply(
        run, names, tensors, *(named[n] for n in names), *token
    )
    return outputs


class NoSecond(torch.autograd.Function):
    """Hands gradients on; whoever differentiates them is told that this cannot be.

    Of PyTorch's `once_differentiable` they could be taken for constants: where what backward was
    given is one, as the gradient of a sum is.
    """

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The gradients; behind so many tensors are those that they depend on."""
        return tuple(each.view_as(each) for each in tensors[:count])

    @staticmethod
    @torch._disable_dynamo  # a compiled function that calls backward traces what that calls
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        """Refuse.

        Raises
        ------
        SecondDerivativeError
            Always.
        """
        raise SecondDerivativeError(
            "a gradient that a model under a limit made is differentiated (create_graph=True), and "
            "the library has first derivatives alone: ooc_cudnn.torch.release(model) before this"
            + users_frame()
        )


class StepFunction(torch.autograd.Function):
    """Results of forward; its backward returns the gradients that are final first."""

    @staticmethod
    def forward(
        ctx: Any,
        run: Run,
        names: Sequence[str],
        tensors: Sequence[torch.Tensor],
        *given: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Hand out the outputs. What is given are the tensors of the names, and a token."""
        ctx.run, ctx.names, ctx.tokens = run, names, [each.detach() for each in given[len(names) :]]
        ctx.devices = [each.device for each in given[: len(names)]]
        # tensors of their own: what has a graph must not be held by what the graph holds
        outputs = tuple(run.request.lent.apart(tensor_of(each)) for each in run.outputs)
        run.handed_out(outputs)
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        reached = zip(outputs, run.request.reached, strict=True)
        ctx.mark_non_differentiable(*(each for each, names in reached if not names))
        return outputs

    @staticmethod
    @torch._disable_dynamo  # a compiled function that calls backward traces what that calls
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
        """Run the first part of backward."""
        run = ctx.run
        tensors = ctx.saved_tensors  # raises if one was changed since
        read = (*tensors, *(each for each in gradients if each is not None))
        run.read = read if torch.is_grad_enabled() else ()
        with torch.no_grad():
            run.begin(tensors, gradients)
            results = run.gradients(ctx.names, ctx.devices)
        _leave_out(ctx, results)
        return None, None, None, *first_alone(results, run.read), *ctx.tokens


class Later(torch.autograd.Function):
    """Makes a token; its backward returns the gradients that are final next."""

    @staticmethod
    def forward(ctx: Any, run: Run, names: Sequence[str], *given: torch.Tensor) -> torch.Tensor:
        """Make the token. What is given are the tensors of the names, and the token before."""
        ctx.run, ctx.names, ctx.tokens = run, names, [each.detach() for each in given[len(names) :]]
        ctx.devices = [each.device for each in given[: len(names)]]
        return torch.empty(0, device=run.request.device)

    @staticmethod
    @torch._disable_dynamo  # a compiled function that calls backward traces what that calls
    def backward(ctx: Any, _: torch.Tensor) -> tuple[Any, ...]:
        """Run the next part of backward."""
        with torch.no_grad():
            found = ctx.run.gradients(ctx.names, ctx.devices)
        _leave_out(ctx, found)
        return None, None, *first_alone(found, ctx.run.read), *ctx.tokens


def _leave_out(ctx: Any, gradients: Sequence[torch.Tensor | None]) -> None:
    """Have what the loss leaves out have no gradients, nor what it was made of."""
    if any(each is None for each in gradients):
        hand_on_none_behind(gradients, (node for node, _ in ctx.next_functions))


def first_alone(
    gradients: Sequence[torch.Tensor | None], read: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor | None]:
    """Gradients that nobody can differentiate by what was read for them; as they are by nothing."""
    made = [each for each in gradients if each is not None]
    if not made or not read:
        return gradients
    marked = iter(NoSecond.apply(len(made), *made, *read))
    return [None if each is None else next(marked) for each in gradients]


def _apart(name: str, gradient: Any, device: torch.device, shared: Collection[str]) -> Any:
    """A gradient as a tensor of its own: its owner may change it in place."""
    if gradient is None:
        return None
    made = tensor_of(gradient)
    made = made.clone() if name in shared else made
    return made if made.device == device else made.to(device)


def hand_over(
    arrays: Mapping[str, Any], inputs: Collection[str], wrapping: TensorRefs
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inputs, and parameters and running statistics, as a step takes them.

    Tensors of the host that a call brings are looked at each time: pinned or not, they come and go.
    """
    device = get_device(current().device)
    parts: tuple[dict[str, Any], dict[str, Any]] = {}, {}
    for name, array in arrays.items():
        is_input, is_tensor = name in inputs, isinstance(array, torch.Tensor)
        lasts = is_tensor and (array.is_cuda or not is_input)
        parts[not is_input][name] = wrapping(name, array, device) if lasts else array
    return parts


def state_of(seed: int, device: torch.device) -> Any:
    """The state of a dropout, where the other tensors are."""
    if device.type != "cuda":
        return np.array([seed, 0])
    return torch.tensor([seed, 0], device="cpu").to(device, non_blocking=True)


@contextmanager
def as_in_forward(before: Settings) -> Iterator[None]:
    """The settings that were in force in forward, those of the process among them."""
    with ExitStack() as stack:
        if current() != before:
            stack.enter_context(settings(**{e.name: getattr(before, e.name) for e in SETTINGS}))
        yield


def tensor_of(array: Any) -> torch.Tensor:
    """A tensor on an array's memory; what it is already is handed on."""
    if isinstance(array, torch.Tensor):
        return array
    if isinstance(array, np.ndarray) and array.dtype.name != "bfloat16":
        return torch.from_numpy(array)
    tensor: torch.Tensor = to_tensor(array)
    return tensor
