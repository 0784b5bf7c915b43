"""Batch slices: the outer phases of a step, whose maps are large, take the batch in parts.

A rewrite of a step. The first phases of forward, and the last ones of backward, run slice by slice.
A phase is large if, whole, it touches more bytes than the largest phase does for one slice. Cut are
the phases of forward up to the last large one, and those of backward from the first large one on.
The phases between them run once, for all images.

A batch normalization needs the statistics of the whole batch, so all slices must have come to it
before any goes on: the phases from one such barrier to the next are a *region*. Each map is one
tensor for each slice, which is kept, made again or on the host by itself. What is summed adds up in
place; statistics are found for each slice and merged behind the last.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ooc_cudnn.network.ir.step import Phase, Step
from ooc_cudnn.network.passes.merge_states import merge_states
from ooc_cudnn.network.passes.microbatch import OfImages, WholeBatchError
from ooc_cudnn.operations.core.ranges import Range
from ooc_cudnn.operations.core.subcall import SubCall
from ooc_cudnn.operations.normalization.channel_reduction import STATES


def slice_batch(step: Step, slices: int) -> Step:
    """Rewrite a step so that its outer phases go through the batch in so many slices.

    Raises
    ------
    WholeBatchError
        If one of these phases needs all images for another reason than statistics, or has to sum
        them up in their order.
    """
    return step if slices == 1 else _Slices(step, slices).step_of()


class _SlicedRegion:
    """Phases that can go slice by slice, and those that follow once all slices have."""

    def __init__(self) -> None:
        self.each: list[int] = []
        self.tail: list[int] = []
        #: What is there whole no sooner than at the end of all slices.
        self.summed: set[str] = set()
        #: What the tail touches: no slice may change it before.
        self.late: set[str] = set()


class _Slices(OfImages):
    """A step cut into regions, those of outer phases into slices."""

    numbered = "batch_slice"

    def __init__(self, step: Step, slices: int) -> None:
        super().__init__(step)
        self._inner = self._inner_phases(slices)
        size = -(-self.images // slices)
        starts = range(0, self.images, size)
        self.parts: list[Range] = [(at, min(at + size, self.images)) for at in starts]
        self.sliced_regions = self._sliced_regions()
        self._whole = {
            self._base(name)
            for name in (*step.outputs, *step.gradients.values(), *step.seeds.values())
        }
        batched = set[str]()
        for sliced_region in self.sliced_regions:
            for index in (*sliced_region.each, *sliced_region.tail):
                phase, cut = (
                    step.phases[index],
                    self._is_cut(sliced_region) and index in sliced_region.each,
                )
                for operand, name in phase.binds.items():
                    if cut and operand in self.own[index]:
                        batched.add(self._base(name))
                    else:
                        self._whole.add(self._base(name))
        apart = batched - self._whole
        self.tensors = {
            name: tensor
            for name, tensor in step.tensors.items()
            if self._stays_whole(name) or self._base(name) not in apart
        }

    def _inner_phases(self, slices: int) -> range:
        """The phases that are not cut, between those that are."""
        tensors, names = self.step.tensors, self.own
        touched = [
            sum(tensors[base].nbytes for base in {self._base(phase.binds[n]) for n in names[at]})
            for at, phase in enumerate(self.step.phases)
        ]
        large = [at for at, nbytes in enumerate(touched) if slices * nbytes > max(touched)]
        turn = self.step.turn
        forward, backward = ([at for at in large if (at < turn) == before] for before in (1, 0))
        return range(max(forward, default=-1) + 1, min(backward, default=len(touched)))

    def _sliced_regions(self) -> list[_SlicedRegion]:
        regions = [_SlicedRegion()]
        turn = self.step.turn
        for index, phase in enumerate(self.step.phases):
            of, names = regions[-1], self.own[index]
            shared = {self._base(n) for operand, n in phase.binds.items() if operand not in names}
            results = {self._base(phase.binds[name]) for name in phase.call.results}
            loaded = {self._base(n) for n in phase.reads} - (results & shared)
            begins = index in (turn, self._inner.start, self._inner.stop)
            if begins or (names and (loaded & of.summed or (shared | loaded) & of.late)):
                regions.append(_SlicedRegion())
                of = regions[-1]
            if names:
                of.each.append(index)
                of.summed |= results & shared
            else:
                of.tail.append(index)
                of.summed |= results
                of.late |= shared
        return regions

    def _is_cut(self, sliced_region: _SlicedRegion) -> bool:
        """True if a region goes slice by slice."""
        return bool(sliced_region.each) and sliced_region.each[0] not in self._inner

    def step_of(self) -> Step:
        """The rewritten step."""
        phases: list[Phase] = []
        for sliced_region in self.sliced_regions:
            if not self._is_cut(sliced_region):
                order = sorted((*sliced_region.each, *sliced_region.tail))
                phases += [self.step.phases[at] for at in order]
                continue
            for index, images in enumerate(self.parts):
                phases += [self._part(at, index, images) for at in sliced_region.each]
            phases += self._merged(sliced_region.each)
            phases += [self.step.phases[at] for at in sliced_region.tail]
        count = sum(not phase.is_backward for phase in phases)
        return replace(self.step, tensors=self.tensors, phases=tuple(phases), forward_count=count)

    def _sums(self, at: int) -> list[str]:
        """Results of a phase that are of all images."""
        phase = self.step.phases[at]
        return [name for name in phase.call.results if name not in self.own[at]]

    def _part(self, phase_index: int, index: int, images: Range) -> Phase:
        """A phase for some images."""
        phase = self.step.phases[phase_index]
        call, sums = phase.call, self._sums(phase_index)
        if sums and getattr(call, "deterministic", False):
            raise WholeBatchError(f"{phase.name} sums images up in their order")
        states = [name for name in sums if name in STATES]
        added = {name for name in sums if name not in STATES}
        if index and added:
            adding = replace(call, beta=1.0)
            scaled = {name for name in call.results if adding.scaling(name)[1] == 1}
            if scaled != added:
                raise WholeBatchError(f"{phase.name} needs the whole batch")
            call = adding
        binds = {
            operand: self._of(name, index, images) if operand in self.own[phase_index] else name
            for operand, name in phase.binds.items()
        }
        binds |= {name: self._state(phase.binds[name], index) for name in states}
        part = SubCall.of_images(call, images)
        return replace(phase, name=f"{phase.name} [{index}]", call=part, binds=binds)

    def _state(self, name: str, index: int) -> str:
        made = f"{name} slab {index}"
        self.tensors[made] = self._numbered(name, made, index)
        return made

    def _merged(self, indices: Iterable[int]) -> Iterable[Phase]:
        """The phases that make statistics of all images from those of slices."""
        for index in indices:
            phase = self.step.phases[index]
            for kind in (name for name in self._sums(index) if name in STATES):
                state = self.step.tensors[phase.binds[kind]]
                parts = [f"{state.name} slab {i}" for i in range(len(self.parts))]
                yield merge_states(phase, kind, state, parts, "slabs")
