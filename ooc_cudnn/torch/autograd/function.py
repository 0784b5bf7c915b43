"""One call of a model under autograd: forward when it is called, backward when its turn comes."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from typing import Any
from weakref import WeakSet

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
from ooc_cudnn.torch.autograd.reach import Reach
from ooc_cudnn.torch.autograd.tensor_refs import TensorRefs
from ooc_cudnn.torch.cards import at, making_there
from ooc_cudnn.torch.errors import HiddenGradientError
from ooc_cudnn.torch.places import users_frame


class Request:
    """Request that a call hands to autograd's functions beside tensors: its step, and arguments.

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
    reached : Reach
        What gradients of outputs reach.
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
        reached: Reach,
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
        #: The backward that was the last to know it.
        self._let_go_in: int | None = None

    def switch_to(self, gradients: Sequence[torch.Tensor | None]) -> bool:
        """Take the step in which these outputs have gradients; return whether it is another one.

        PyTorch does not multiply with a gradient that is not there. Zeros in its place would be NaN
        behind what has an infinite derivative, and take time.
        """
        pairs = enumerate(zip(gradients, self.reached.of_outputs, strict=True))
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

    def kept(self, node: int, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Tensors that a node of outputs saves, in the order of the names.

        PyTorch raises an error where one was changed that backward of the node computes with. Of
        the others forward has need alone, should it run again: what changes there is not counted.
        """
        read = self.reached.read[node]
        pairs = zip(self.names, tensors, strict=True)
        return tuple(each if name in read else each.data for name, each in pairs)

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
        RuntimeError
            If it was let go of in another backward, through other outputs.
        """
        this = torch._C._current_graph_task_id()
        if self._let_go_in not in (None, this):
            raise RuntimeError(
                "a second backward goes through outputs of one call of a model under a limit, and "
                "what hooks, functions or checkpoints read then is known no more: specify "
                "retain_graph=True in the first, or call backward once, for the sum"
            )
        late = [each for each in (self.late_state, self.late_tensors) if each is not None]
        for each in late:
            each.check()
        if late and not torch._C._autograd._get_current_graph_task_keep_graph():
            self.late_state = self.late_tensors = None  # what it holds may hold an output
            self._let_go_in = this

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


class Seeds:
    """The gradients of a node of outputs in one backward: its tokens hold them.

    Parameters
    ----------
    gradients : dict
        By the places of its outputs.
    tensors : sequence of Tensor
        What forward was given, in the order of the request's names.
    asked : collection of str
        The names behind the node to which this backward goes.
    """

    def __init__(
        self,
        gradients: dict[int, torch.Tensor | None],
        tensors: Sequence[torch.Tensor],
        asked: Collection[str],
    ) -> None:
        self.gradients, self.tensors, self.asked = gradients, tensors, set(asked)
        #: Which backward.
        self.of: int = torch._C._current_graph_task_id()
        self._versions = [each._version for each in tensors]

    @property
    def read(self) -> tuple[torch.Tensor, ...]:
        """Tensors that these gradients depend on."""
        return (*self.tensors, *(each for each in self.gradients.values() if each is not None))

    def check_unchanged(self) -> None:
        """Raise RuntimeError, as PyTorch does, if a tensor was changed since this was noted."""
        if any(each._version != v for each, v in zip(self.tensors, self._versions, strict=True)):
            raise RuntimeError(
                "a parameter or an argument of a model under a limit has been modified by an "
                "inplace operation while backward runs (by a hook, say), and another output of the "
                "model had its gradient after that: change it after backward"
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
        #: Where outputs are several nodes: what these hand on, and what backward has begun with.
        self._alive, self._begun = WeakSet[Seeds](), WeakSet[Seeds]()
        #: The names whose gradients this backward is still to hand out there.
        self._expected = set[str]()
        self._lock = threading.RLock()

    def hand_out(self, places: Iterable[int]) -> tuple[torch.Tensor, ...]:
        """Outputs as the user gets them.

        They are tensors of their own: what has a graph must not be held by what the graph holds.
        Noted are those whose memory backward reads. That of a copy it does not.
        """
        outputs = []
        for place in places:
            made = tensor_of(self.outputs[place])
            output = self.request.lent.apart(made)
            is_read = self.request.step.outputs[place].name in self._read_again
            if is_read and output.data_ptr() == made.data_ptr():
                self._own.append((output.detach(), output._version))
            outputs.append(output)
        return tuple(outputs)

    def seeds(
        self,
        node: int,
        gradients: Sequence[torch.Tensor | None],
        tensors: Sequence[torch.Tensor],
        asked: Collection[str],
    ) -> Seeds:
        """Note the gradients of a node of outputs: a token leads on with them."""
        places = self.request.reached.nodes[node]
        found = Seeds(dict(zip(places, gradients, strict=True)), tensors, asked)
        with self._lock:
            self._alive.add(found)
        return found

    def gradients_of(
        self, names: Sequence[str], devices: Sequence[torch.device], seeds: Sequence[Seeds]
    ) -> list[torch.Tensor | None]:
        """Gradients of tensors that depend on these outputs alone.

        For the first of them backward begins, with all that outputs have by then. It begins again
        where it did not have what these depend on. Two threads may go back through two outputs.
        """
        with self._lock:
            self._begin_with(seeds, names)
            for each in seeds:
                each.asked.difference_update(names)
            return self.gradients(names, devices)

    def _begin_with(self, seeds: Sequence[Seeds], names: Sequence[str]) -> None:
        if not (self._begun.issuperset(seeds) and self._expected.issuperset(names)):
            self._begun.clear()
            # those of another backward (in a hook, in a thread) are none of this one's
            found = [each for each in self._alive if each.of == seeds[0].of]
            for each in found:
                each.check_unchanged()
            given = {place: y for each in found for place, y in each.gradients.items()}
            places = range(len(self.outputs))
            self._expected = {name for each in found for name in each.asked}.union(names)
            self.begin(seeds[0].tensors, [given.get(place) for place in places])
            self._begun.update(found)

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
        pairs = zip(self.request.reached.of_outputs, gradients, strict=True)
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
                    request.step.outputs, gradients, request.reached.of_outputs, strict=True
                )
                if each is not None and names
            ]
            self._made = self._wanted(paused.begin_backward(seeds))
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
        self._expected.difference_update(names)
        results = [
            _apart(name, computed[name] if name in self._reached else None, device, self._shared)
            for name, device in zip(names, devices, strict=True)
        ]
        if self._paused is not None and self._paused.is_over:
            self._paused = None
        if self._paused is None and not self._expected:  # what is made may lie there
            self.request.lent.give_back()
        return results

    def _go_on(self, names: set[str]) -> None:
        with as_in_forward(self._settings), at(self.request.device):
            while self._paused is not None and not names <= self._made.keys():
                self._made |= self._wanted(self._paused.go_on())

    def _wanted(self, made: dict[str, Any]) -> dict[str, Any]:
        """Select nodes: of several, not all may be asked for their gradients (`inputs=`)."""
        if len(self.request.reached.nodes) == 1:
            return made
        return {name: made[name] for name in made if name in self._expected}


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
