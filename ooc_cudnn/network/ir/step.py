"""Phases, and a step: the ordered phases that policies, the planner and the engine know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ooc_cudnn.network.ir.tensor import GIVEN, Place, Tensor, extents, place_of
from ooc_cudnn.operations.core.call import TiledCall
from perfmodel.cached import cached_property


@dataclass(frozen=True)
class Phase:
    """One call whose operands are bound to tensors of a network.

    Parameters
    ----------
    name : str
        The node's name and what is done: "convolution_1 filter gradient".
    call : TiledCall
    binds : mapping
        Operand to the name of a tensor; of the operand's shape and dtype.
    node : str
        The node it belongs to.
    is_backward : bool
    """

    name: str
    call: TiledCall
    binds: Mapping[str, str] = field(hash=False)
    node: str = ""
    is_backward: bool = False

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """Tensors that it reads, those it adds to among them."""
        return tuple(dict.fromkeys(self.binds[name] for name in self.call.loaded))

    @cached_property
    def writes(self) -> tuple[str, ...]:
        """Tensors that it writes."""
        return tuple(self.binds[name] for name in self.call.results)


@dataclass(frozen=True)
class Uses:
    """Phases of a step that touch a tensor.

    Attributes
    ----------
    phases : tuple of int
        All that read or write it, in order.
    written : tuple of int
        Those that write it.
    """

    phases: tuple[int, ...]
    written: tuple[int, ...]

    def last_before(self, phase: int) -> int:
        """The last use before a phase."""
        return max(at for at in self.phases if at < phase)


@dataclass(frozen=True)
class Step:
    """Forward phases and, in training, backward ones, in an order in which they can run.

    Attributes
    ----------
    tensors : mapping
        Every tensor that a phase binds, and every one that such a tensor is a view of, by name.
    phases : tuple of Phase
        The first `forward_count` of them are forward ones.
    outputs : tuple of str
        What was asked for: the loss, or other results.
    gradients : mapping
        Parameter or input to the tensor that holds its gradient in the end; it may be a view.
    seeds : mapping
        Output to the tensor that must hold its gradient from the start: ones for a loss.
    pauses : bool
        Whether seeds are given when the outputs are there, and no earlier: then all of forward runs
        before any of backward, and the two may be far apart.
    passed_on : frozenset of str
        What has a gradient that nobody holds once something else is made of it, as autograd makes
        the gradient of a parameter of that of its cast.
    """

    tensors: Mapping[str, Tensor] = field(hash=False)
    phases: tuple[Phase, ...]
    outputs: tuple[str, ...]
    forward_count: int
    gradients: Mapping[str, str] = field(hash=False)
    seeds: Mapping[str, str] = field(hash=False)
    pauses: bool = False
    passed_on: frozenset[str] = frozenset()

    @property
    def turn(self) -> int:
        """The number of the first backward phase; that of all phases if there is none."""
        backward = (at for at, phase in enumerate(self.phases) if phase.is_backward)
        return next(backward, len(self.phases))

    def part_of(self, phase: Phase) -> str:
        """Return "forward", "backward", or "recomputing" for what makes a map again."""
        if any(self.tensors[name].origin.copy for name in phase.writes):
            return "recomputing"
        return "backward" if phase.is_backward else "forward"

    def place(self, name: str) -> Place:
        """Return where a tensor lies: in which one that is no view, and in which region of it."""
        found = self._places.get(name)
        if found is None:
            found = self._places[name] = place_of(name, self.tensors)
        return found

    def base(self, name: str) -> str:
        """The tensor that is no view, in which a tensor lies."""
        found = self._bases.get(name)
        if found is None:
            of = self.tensors[name].of
            found = self._bases[name] = self.base(of) if of else name
        return found

    @cached_property
    def _places(self) -> dict[str, Place]:
        return {}

    @cached_property
    def _bases(self) -> dict[str, str]:
        return {}

    @cached_property
    def shared_gradients(self) -> frozenset[str]:
        """Tensors whose gradients lie in one tensor with others.

        Those of outputs, which are given, are among these others.
        """
        bases = Counter(map(self.base, (*self.gradients.values(), *self.seeds.values())))
        return frozenset(
            n for n, gradient in self.gradients.items() if bases[self.base(gradient)] > 1
        )

    @cached_property
    def host_inputs(self) -> frozenset[str]:
        """Names of what is on the host from the start: handed in, or gradients of outputs."""
        named = (name for name, tensor in self.tensors.items() if tensor.kind in GIVEN)
        return frozenset((*named, *self.seeds.values()))

    @cached_property
    def changed(self) -> tuple[str, ...]:
        """Names of what is handed in and changed: running statistics."""
        written = (self.base(name) for phase in self.phases for name in phase.writes)
        return tuple(n for n in dict.fromkeys(written) if self.tensors[n].kind in GIVEN)

    @cached_property
    def results(self) -> frozenset[str]:
        """Names of what must be on the host in the end: outputs, gradients, running statistics."""
        names = (*self.outputs, *self.gradients.values())
        return frozenset((*map(self.base, names), *self.changed))

    @cached_property
    def bases_of_phases(self) -> tuple[frozenset[str], ...]:
        """Tensors, no views, that each phase binds, itself or a view of them."""
        return tuple(frozenset(map(self.base, phase.binds.values())) for phase in self.phases)

    @cached_property
    def touched(self) -> frozenset[str]:
        """Tensors, no views, that some phase binds, itself or a view of them."""
        return frozenset().union(*self.bases_of_phases)

    @cached_property
    def uses(self) -> Mapping[str, Uses]:
        """The uses of each tensor that is no view, those of its views among them."""
        touched: dict[str, list[int]] = {}
        written: dict[str, list[int]] = {}
        bases = {name: self.base(name) for name in self.tensors}
        for index, phase in enumerate(self.phases):
            writes = dict.fromkeys([bases[name] for name in phase.writes])
            for base in dict.fromkeys([*(bases[name] for name in phase.reads), *writes]):
                touched.setdefault(base, []).append(index)
            for base in writes:
                written.setdefault(base, []).append(index)
        return {
            base: Uses(tuple(found), tuple(written.get(base, ())))
            for base, found in touched.items()
        }


class RematEvent(NamedTuple):
    """Event from which on readers find a tensor again that was let go.

    Attributes
    ----------
    before : int
        The number of a phase of backward, in the step that is rewritten.
    name : str
        The map.
    is_made : bool
        Whether it is made again there; else it is back from the host, and what was made goes.
    """

    before: int
    name: str
    is_made: bool = True


def orders_of(step: Step, order: str) -> Callable[[Tensor], str]:
    """The memory order of each tensor that is no view, where a step makes it.

    Parameters have channels first, and so have their gradients, which users add to them; and what
    is seen with other channels somewhere, as a bias of heads is with an axis of images before them.
    """
    first = {
        step.base(gradient)
        for name, gradient in step.gradients.items()
        if step.tensors[name].kind == "parameter"
    }
    first |= {
        step.base(view.name)
        for view in step.tensors.values()
        if view.of and view.shape[:2] != extents(view.region)[:2]
    }

    def order_of(tensor: Tensor) -> str:
        is_map = tensor.kind in ("map", "gradient") and tensor.name not in first
        return order if is_map else "channels_first"

    return order_of
