"""Skip connections as tensors of their own, copied into a concatenation when it is read.

A rewrite of a step. A concatenation is one buffer, into which its parts are written: nothing is
copied, but the whole is there from the first part on, and its gradient until the last part of it
was read. Where memory is short, and a part is read long before, that costs more than a copy.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ooc_cudnn.network.graph.autodiff_emit import identity
from ooc_cudnn.network.ir.step import Phase, Step
from ooc_cudnn.network.ir.tensor import Tensor, channels_of, extents, whole_region
from ooc_cudnn.operations.core.ranges import Range


def skipped_over(step: Step) -> tuple[str, ...]:
    """Concatenations with a part that is read before them."""
    return tuple(name for name in step.uses if _skips(step, name))


def copy_skip_connections(step: Step, joined: Iterable[str]) -> Step:
    """Rewrite a step with a copy for each part of some concatenations that is read before them.

    Parameters
    ----------
    step : Step
        Before what shares memory in it: gradients are not summed in place yet.
    joined : iterable of str
        Names of the concatenations.
    """
    copies = _Copies(step)
    for name in joined:
        parts = _skips(step, name)
        for gradient, tensor in step.tensors.items():
            if tensor.origin.gradient_of == name and gradient in step.uses:
                for channels in parts:
                    copies.out_of(gradient, channels)
        for channels in parts:
            copies.into(name, channels)
    return copies.rewritten()


@dataclass
class _Accesses:
    """Phases that touch all of a tensor, and those that touch some channels of it."""

    whole: list[int] = field(default_factory=list)
    parts: dict[Range, list[int]] = field(default_factory=lambda: defaultdict(list))
    is_simple: bool = True


def _accesses(step: Step, joined: str) -> _Accesses:
    found = _Accesses()
    shape = step.tensors[joined].shape
    whole = whole_region(shape)
    for at in step.uses[joined].phases:
        for name in step.phases[at].binds.values():
            base, region = step.place(name)
            if base != joined:
                continue
            if region == whole:
                found.whole.append(at)
            elif len(shape) > 1 and region == channels_of(shape, region[1]):
                found.parts[region[1]].append(at)
            else:
                found.is_simple = False
    ranges = sorted(found.parts)
    if any(one[1] > other[0] for one, other in itertools.pairwise(ranges)):
        found.is_simple = False
    return found


def _skips(step: Step, joined: str) -> list[Range]:
    """Channels of a concatenation that are read before it is."""
    tensor = step.tensors[joined]
    if tensor.of or tensor.kind != "map" or joined in step.results or joined not in step.uses:
        return []
    found, writers = _accesses(step, joined), set(step.uses[joined].written)
    if not found.is_simple or not found.whole or writers & set(found.whole):
        return []
    first = min(found.whole)
    return [
        channels
        for channels, at in found.parts.items()
        if any(index < first and index not in writers for index in at)
        and all(index < first for index in at if index in writers)
        and _view(step.tensors, joined, channels)
    ]


def _view(tensors: Mapping[str, Tensor], joined: str, channels: Range) -> str:
    """The name of the tensor that is these channels, in their shape; empty if there is none."""
    region = channels_of(tensors[joined].shape, channels)
    shape = extents(region)
    found = (n for n, t in tensors.items() if (t.of, t.region, t.shape) == (joined, region, shape))
    return next(found, "")


class _Copies:
    """Copies that are put in, and tensors that are views no more."""

    def __init__(self, step: Step) -> None:
        self.step, self.tensors = step, dict(step.tensors)
        self.put_in: dict[int, list[Phase]] = defaultdict(list)

    def into(self, joined: str, channels: Range) -> None:
        """A part of a map becomes a tensor, copied before the first phase that reads the map."""
        first = min(_accesses(self.step, joined).whole)
        self._copy(first, *self._taken_out(joined, channels), is_backward=False)

    def out_of(self, joined: str, channels: Range) -> None:
        """A part of a gradient becomes a tensor, copied once the gradient is made."""
        found = _accesses(self.step, joined)
        touched = found.parts.get(channels, [])
        given = {self.step.base(name) for name in self.step.seeds.values()}
        if (
            not found.is_simple
            or not found.whole
            or not touched
            or min(touched) <= max(found.whole)
            or joined in self.step.results | given
            or not _view(self.tensors, joined, channels)
        ):
            return
        part, place = self._taken_out(joined, channels)
        self._copy(max(found.whole) + 1, place, part, is_backward=True)

    def _taken_out(self, joined: str, channels: Range) -> tuple[str, str]:
        """Make a part a tensor; return its name, and that of a view of where it was."""
        part = _view(self.tensors, joined, channels)
        region = channels_of(self.tensors[joined].shape, channels)
        place, within = f"{part} in {joined}", whole_region(extents(region))
        self.tensors[place] = replace(self.tensors[part], name=place)
        for name, tensor in self.tensors.items():
            if name not in (part, place) and (tensor.of, tensor.region) == (joined, region):
                self.tensors[name] = replace(tensor, of=part, region=within)
        self.tensors[part] = replace(self.tensors[part], of="", region=())
        return part, place

    def _copy(self, before: int, source: str, target: str, *, is_backward: bool) -> None:
        phase = Phase(
            f"copy of {source}",
            identity(self.tensors[source]),
            {"x": source, "y": target},
            node=self.step.phases[before - is_backward].node,
            is_backward=is_backward,
        )
        self.put_in[before].append(phase)

    def rewritten(self) -> Step:
        phases = list[Phase]()
        for at, phase in enumerate(self.step.phases):
            phases += [*self.put_in.get(at, ()), phase]
        phases += self.put_in.get(len(self.step.phases), ())
        forward = sum(not phase.is_backward for phase in phases)
        return replace(self.step, tensors=self.tensors, phases=tuple(phases), forward_count=forward)
