"""Micro-batches: a step that goes through the network some images at a time.

A rewrite of a step: each part runs all phases, forward and backward, on its images alone, and what
is summed over images adds up in place. Every call stays the call of the whole batch, of which a
part of the images is computed; so divisors and masks are those of the whole batch.
"""

from __future__ import annotations

from dataclasses import replace

from ooc_cudnn.network.phases import Phase, Step
from ooc_cudnn.network.residency import GIVEN
from ooc_cudnn.network.tensors import Tensor, whole
from ooc_cudnn.operations.of_images import OfImages
from ooc_cudnn.operations.window import Range


class WholeBatchError(ValueError):
    """A phase needs what is summed over the whole batch, as batch normalization does."""


def micro_batched(step: Step, parts: int) -> Step:
    """Rewrite a step into so many parts that follow each other, each of some images.

    Raises
    ------
    WholeBatchError
        If a phase reads what another one sums over the images.
    """
    if parts == 1:
        return step
    batch = _Batch(step)
    size = -(-batch.images // parts)
    rewritten = [
        batch.part(index, (start, min(start + size, batch.images)))
        for index, start in enumerate(range(0, batch.images, size))
    ]
    return replace(
        step,
        tensors=batch.tensors,
        phases=(*batch.head, *(phase for part in rewritten for phase in part), *batch.tail),
        forward_count=0,
    )


class _Batch:
    """The phases of a step by what they have to do with the images of a batch.

    Attributes
    ----------
    images : int
    head, tail : list of Phase
        Those that no image has to do with; before any, or on what is summed over all of them.
    tensors : dict
        Of the rewritten step.
    """

    def __init__(self, step: Step) -> None:
        self.step = step
        self.images = max(phase.call.extents.n for phase in step.phases)
        self.tensors = dict(step.tensors)
        self.head: list[Phase] = []
        self.tail: list[Phase] = []
        self._each: list[Phase] = []
        self._batched: set[str] = set()
        summed: set[str] = set()
        for phase in step.phases:
            self._sort(phase, summed)
        for name in self._batched:
            if step.tensors[name].kind not in GIVEN:
                self.tensors.pop(name, None)

    def _sort(self, phase: Phase, summed: set[str]) -> None:
        place, operands = self.step.place, phase.call.operands
        own = {
            operand
            for operand, made in operands.items()
            if "n" in made.axes and made.shape[0] == self.images
        }
        added = {phase.binds[result] for result in phase.call.results}
        reads = {place(phase.binds[name]).base for name in phase.call.loaded
                 if phase.binds[name] not in added}  # fmt: skip
        writes = {place(phase.binds[name]).base for name in phase.call.results if name not in own}
        if not own:
            (self.tail if reads & summed else self.head).append(phase)
            summed |= writes if reads & summed else set()
            return
        if reads & summed:
            raise WholeBatchError(
                f"{phase.name} needs {min(reads & summed)}, a sum over the whole batch: a network "
                "with such phases cannot go through it some images at a time"
            )
        scaled = {
            result for result in phase.call.results
            if replace(phase.call, beta=1.0).scaling(result)[1] == 1
        }  # fmt: skip
        sums = set(phase.call.results) - own
        if sums and scaled != sums:
            raise WholeBatchError(f"{phase.name} cannot add up what it sums over the images")
        summed |= writes
        self._each.append(phase)
        self._batched |= {phase.binds[operand] for operand in own}

    def part(self, index: int, images: Range) -> list[Phase]:
        """The phases of some images."""
        found = []
        for phase in self._each:
            call = phase.call
            sums = any(phase.binds[result] not in self._batched for result in call.results)
            if index and sums:
                call = replace(call, beta=1.0)
            binds = {
                operand: self._of(name, index, images) if name in self._batched else name
                for operand, name in phase.binds.items()
            }
            made = OfImages.of(call, images)
            found.append(replace(phase, name=f"{phase.name} [{index}]", call=made, binds=binds))
        return found

    def _of(self, name: str, index: int, images: Range) -> str:
        """The tensor that holds some images of another one."""
        tensor = self.step.tensors[name]
        made = f"{name} [{index}]"
        if made in self.tensors:
            return made
        shape = (images[1] - images[0], *tensor.shape[1:])
        if tensor.kind in GIVEN and not tensor.of:
            region = (images, *whole(tensor.shape)[1:])
            self.tensors[made] = Tensor(made, shape, tensor.dtype, tensor.kind, name, region)
        elif tensor.of:
            base = self._of(tensor.of, index, images)
            region = ((0, shape[0]), *tensor.region[1:])
            self.tensors[made] = replace(tensor, name=made, shape=shape, of=base, region=region)
        else:
            self.tensors[made] = replace(tensor, name=made, shape=shape)
        return made
