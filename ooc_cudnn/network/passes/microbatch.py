"""Micro-batches: a step that goes through the network some images at a time.

A rewrite of a step: each part runs all phases, forward and backward, on its images alone, and what
is summed over images adds up in place. A sum that is larger than all that it is made of, as the
filter gradient of a large linear layer is, is made once, in the last part. Every call stays the
call of the whole batch, of which a part of the images is computed; so divisors and masks are those
of the whole batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from ooc_cudnn.network.ir.step import Phase, Step
from ooc_cudnn.network.ir.tensor import GIVEN, Tensor, whole_region
from ooc_cudnn.network.passes.microbatch_sums import run_before, sum_microbatches_last
from ooc_cudnn.operations.core.ranges import Range
from ooc_cudnn.operations.core.subcall import SubCall


class WholeBatchError(ValueError):
    """A phase needs what is summed over the whole batch, as batch normalization does."""


def images_of(step: Step) -> int:
    """Images of the batch that a step goes through."""
    return max(phase.call.extents.n for phase in step.phases)


def split_into_microbatches(step: Step, parts: int) -> Step:
    """Rewrite a step into so many parts that follow each other, each of some images.

    Of a step that pauses, forward of all parts comes first, then backward of each: with what is
    remade for it, that is forward of a part again, and backward of it.

    Raises
    ------
    WholeBatchError
        If a phase reads what another one sums over the images.
    """
    if parts == 1:
        return step
    batch = _Batch(step)
    size = -(-batch.images // parts)
    phases, last = [*batch.head], run_before(step, batch.last, parts)
    for index, start in enumerate(range(0, batch.images, size)):
        end = min(start + size, batch.images)
        phases += batch.part(index, (start, end), last if end == batch.images else {})
    phases += batch.tail
    if step.pauses:
        phases.sort(key=lambda phase: phase.is_backward)  # else in the same order
    return replace(step, tensors=batch.tensors, phases=tuple(phases), forward_count=0)


class Parts(NamedTuple):
    """Micro-batches: what runs once, and the second of `equal` parts of the same size.

    Attributes
    ----------
    once : tuple of Phase
    part : Step
        What it shares with other parts, and its images, are named as in the whole step.
    equal : int
    rest : tuple of Phase
        Of a last part that is smaller.
    of : tuple of int
        Of each phase of the part the number of the one that it is a part of.
    shared : frozenset of str
        Tensors that the part touches and others do, too.
    """

    once: tuple[Phase, ...]
    part: Step
    equal: int
    rest: tuple[Phase, ...]
    of: tuple[int, ...]
    shared: frozenset[str]


def parts_of(step: Step, parts: int) -> Parts:
    """Return what `split_into_microbatches` repeats, one of each kind.

    Raises
    ------
    WholeBatchError
        If a phase reads what another one sums over the images, or the step pauses: then no part is
        gone through from its first phase to its last.
    """
    if step.pauses:
        raise WholeBatchError(
            "gradients of the outputs are given when all of forward has run: no part of the batch "
            "can go through backward before"
        )
    batch = _Batch(step)
    size = -(-batch.images // parts)
    count, left = divmod(batch.images, size)
    part = batch.part(min(1, count - 1), (size, 2 * size) if count > 1 else (0, size))
    rest = batch.part(count, (batch.images - left, batch.images)) if left else []
    once = (*batch.head, *(step.phases[at] for at in sorted(batch.last)), *batch.tail)
    part_step = replace(step, tensors=batch.tensors, phases=tuple(part), forward_count=0)
    shared = part_step.touched & step.tensors.keys()
    return Parts(once, part_step, count, tuple(rest), tuple(batch.each), shared)


class OfImages:
    """A step whose phases, and tensors, are cut into those of some images each.

    Attributes
    ----------
    step : Step
    images : int
        Of the batch.
    own : list of set of str
        Of each phase the operands that have an axis of images.
    tensors : dict
        Of the rewritten step.
    """

    #: Which number of its origin a tensor of some images has.
    numbered = "micro_batch"

    def __init__(self, step: Step) -> None:
        self.step = step
        self.images = images_of(step)
        self.own = [self._own(phase) for phase in step.phases]
        self.tensors: dict[str, Tensor] = {}
        #: Tensors that are there whole: each part makes, or reads, a region of them.
        self._whole: set[str] = set()

    def _base(self, name: str) -> str:
        return self.step.base(name)

    def _own(self, phase: Phase) -> set[str]:
        """The operands that have an axis of images: a part reads or makes those of its images.

        Raises
        ------
        WholeBatchError
            If an image has several of an operand, as windows of attention: regions count these.
        """
        call = phase.call
        for operand in call.operands.values():
            if "n" in operand.axes and operand.shape[0] != call.extents.n:
                raise WholeBatchError(f"{phase.name} has several parts of each image")
        return {
            name
            for name, operand in phase.call.operands.items()
            if "n" in operand.axes and operand.shape[0] == self.images > 1
        }

    def _stays_whole(self, name: str) -> bool:
        """True if parts share a tensor, and each reads or makes a region of it."""
        base = self._base(name)
        return base in self._whole or self.step.tensors[base].kind in GIVEN

    def _of(self, name: str, index: int, images: Range) -> str:
        """The tensor that holds some images of another one."""
        tensor = self.step.tensors[name]
        part = f"{name} [{index}]"
        if part in self.tensors:
            return part
        shape = (images[1] - images[0], *tensor.shape[1:])
        of, region = "", tuple[Range, ...]()
        if self._stays_whole(name):
            of, region = name, (images, *whole_region(tensor.shape)[1:])
        elif tensor.of:
            of, region = self._of(tensor.of, index, images), ((0, shape[0]), *tensor.region[1:])
        self.tensors[part] = self._numbered(name, part, index, shape=shape, of=of, region=region)
        return part

    def _numbered(self, name: str, made: str, index: int, **changes: Any) -> Tensor:
        """A tensor of part `index`."""
        return self.step.tensors[name].derived(made, {self.numbered: index}, **changes)


class _Batch(OfImages):
    """The phases of a step by what they have to do with the images of a batch.

    Attributes
    ----------
    head, tail : list of Phase
        Those that run once: before all parts, of what is given alone, as the divisor of a mean is;
        and after them, of what they summed or made.
    each : list of int
        The numbers of those that run for each part.
    last : frozenset of int
        And of those that run once, in the last part.
    """

    def __init__(self, step: Step) -> None:
        super().__init__(step)
        self.head: list[Phase] = []
        self.tail: list[Phase] = []
        self.each: list[int] = []
        self.last = sum_microbatches_last(step, self.images)
        names = self.own
        #: Tensors that every part has some images of.
        self._batched = {
            phase.binds[operand]
            for phase, found in zip(step.phases, names, strict=True)
            for operand in found
        }
        #: Calls that add to what the parts before summed.
        self._adding = [replace(phase.call, beta=1.0) for phase in step.phases]
        self._sort(names)
        self._whole = {
            self._base(name)
            for name in (*step.outputs, *step.gradients.values(), *step.seeds.values())
        } | {self._base(name) for phase in self.tail for name in phase.binds.values()}
        once = (*self.head, *(step.phases[at] for at in self.last))
        self._whole |= {self._base(name) for phase in once for name in phase.binds.values()}
        # Of what each part has its own, views that no phase binds go, too.
        apart = self._batched | {self._base(name) for name in self._batched}
        self.tensors = {
            name: tensor
            for name, tensor in step.tensors.items()
            if self._stays_whole(name) or not {name, self._base(name)} & apart
        }

    def _sort(self, names: list[set[str]]) -> None:
        """Tell phases that run once, before or after, from those that run for each part."""
        phases = self.step.phases
        known, head = dict[str, bool](), set[int]()  # of a tensor, whether images made it
        for index, phase in enumerate(phases):
            reads = {self._base(phase.binds[name]) for name in phase.call.loaded}
            heavy = any(
                self.step.tensors[base].kind in ("map", "gradient") and base in self._batched
                for base in reads
            )
            is_batched = heavy or any(known.get(base, False) for base in reads)
            known |= {self._base(name): is_batched for name in phase.writes}
            if not is_batched:
                head.add(index)
        needed = self._needed_by_all(names, head)
        summed: set[str] = set()
        for index, phase in enumerate(phases):
            results = {phase.binds[result] for result in phase.call.results}
            reads = {
                self._base(name)
                for name in (phase.binds[operand] for operand in phase.call.loaded)
                if name not in results
            }
            if index in needed:
                self.head.append(phase)
            elif names[index]:
                if reads & summed:
                    raise WholeBatchError(
                        f"{phase.name} needs {min(reads & summed)}, a sum over the whole batch: a "
                        "network with such phases cannot go through it some images at a time"
                    )
                sums = {r for r in phase.call.results if r not in names[index]}
                adding = self._adding[index]
                scaled = {r for r in phase.call.results if adding.scaling(r)[1] == 1}
                if sums and scaled != sums:
                    raise WholeBatchError(
                        f"{phase.name} needs the whole batch, for it merges and does not add up: "
                        "a network with such phases cannot go through it some images at a time"
                    )
                summed |= {self._base(phase.binds[result]) for result in sums}
                self.each += [index] * (index not in self.last)
            else:
                self.tail.append(phase)
                summed |= {self._base(name) for name in results}

    def _needed_by_all(self, names: list[set[str]], head: set[int]) -> set[int]:
        """Phases that can run before the parts, and that no part runs for itself."""
        wanted: set[str] = set()
        needed = {index for index in head if not names[index]}
        for index in sorted(head, reverse=True):
            phase = self.step.phases[index]
            if index in needed or wanted & {self._base(name) for name in phase.writes}:
                needed.add(index)
                wanted |= {self._base(name) for name in phase.reads}
        return needed

    def part(
        self, index: int, images: Range, once: Mapping[int, Sequence[int]] = MappingProxyType({})
    ) -> list[Phase]:
        """The phases of part `index`, for a range of images; sums add to the parts before.

        And before some of them phases that run once.
        """
        found, phases, each = list[Phase](), self.step.phases, set(self.each)
        for at in sorted({*each, *once}):
            found += [phases[last] for last in once.get(at, ())]
            found += [self._part(at, index, images)] if at in each else []
        return found

    def _part(self, phase_index: int, index: int, images: Range) -> Phase:
        phase = self.step.phases[phase_index]
        call = phase.call
        if index and any(phase.binds[r] not in self._batched for r in call.results):
            call = self._adding[phase_index]
        binds = {
            operand: self._of(name, index, images) if name in self._batched else name
            for operand, name in phase.binds.items()
        }
        part = SubCall.of_images(call, images)
        return Phase(f"{phase.name} [{index}]", part, binds, phase.node, phase.is_backward)
