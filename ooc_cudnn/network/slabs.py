"""Slabs: stretches of a step between barriers that go through the batch some images at a time.

A rewrite of a step. A batch normalization needs the statistics of the whole batch: it is a barrier,
and micro-batches cannot pass it. Between two barriers phases run slab by slab, and each map is one
tensor for each slab, which is on the device, or on the host, by itself: of a map that does not fit,
some images are fetched, gone through all phases of the stretch, and leave. What is summed adds up
in place; statistics are found for each slab and merged behind the last. Stretches whose tensors are
small go through all images at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ooc_cudnn.network.micro_batches import OfImages, WholeBatchError
from ooc_cudnn.network.phases import Phase, Step
from ooc_cudnn.network.tensors import Tensor
from ooc_cudnn.operations.batch_phases import StatesOfParts
from ooc_cudnn.operations.channel_statistics import STATES
from ooc_cudnn.operations.part_of import PartOf
from ooc_cudnn.operations.window import Range

#: What stands in the name of a statistic of one slab, before the number.
OF_SLAB = " slab "


def in_slabs(step: Step, slabs: int, large_bytes: int) -> Step:
    """Rewrite a step so that stretches with a phase of more than so many bytes go slab by slab.

    Raises
    ------
    WholeBatchError
        If a phase of such a stretch needs all images for another reason than statistics, or has
        to sum them up in their order.
    """
    if slabs == 1:
        return step
    return _Slabs(step, slabs, large_bytes).step_of()


class _Stretch:
    """Phases that can go slab by slab, and those that follow once all slabs have."""

    def __init__(self) -> None:
        self.each: list[int] = []
        self.tail: list[int] = []
        #: What is there whole no sooner than at the end of all slabs.
        self.summed: set[str] = set()
        #: What the tail touches: no slab may change it before.
        self.late: set[str] = set()


class _Slabs(OfImages):
    """A step cut into stretches, those with large tensors into slabs."""

    def __init__(self, step: Step, slabs: int, large_bytes: int) -> None:
        super().__init__(step)
        size = -(-self.images // slabs)
        starts = range(0, self.images, size)
        self.parts: list[Range] = [(at, min(at + size, self.images)) for at in starts]
        self.stretches = self._stretches()
        self.large = [self._is_large(stretch, large_bytes) for stretch in self.stretches]
        self._whole = {
            self._base(name)
            for name in (*step.outputs, *step.gradients.values(), *step.seeds.values())
        }
        batched = set[str]()
        for stretch, large in zip(self.stretches, self.large, strict=True):
            for at in (*stretch.each, *stretch.tail):
                phase, cut = step.phases[at], large and at in stretch.each
                for operand, name in phase.binds.items():
                    if cut and operand in self.own[at]:
                        batched.add(self._base(name))
                    else:
                        self._whole.add(self._base(name))
        apart = batched - self._whole
        self.tensors = {
            name: tensor
            for name, tensor in step.tensors.items()
            if self._stays_whole(name) or self._base(name) not in apart
        }

    def _stretches(self) -> list[_Stretch]:
        found = [_Stretch()]
        turn = self.step.turn
        for at, phase in enumerate(self.step.phases):
            of, own = found[-1], self.own[at]
            shared = {self._base(n) for operand, n in phase.binds.items() if operand not in own}
            results = {self._base(phase.binds[name]) for name in phase.call.results}
            loaded = {self._base(n) for n in phase.reads} - (results & shared)
            if (own and (loaded & of.summed or (shared | loaded) & of.late)) or at == turn:
                found.append(_Stretch())
                of = found[-1]
            if own:
                of.each.append(at)
                of.summed |= results & shared
            else:
                of.tail.append(at)
                of.summed |= results
                of.late |= shared
        return found

    def _is_large(self, stretch: _Stretch, large_bytes: int) -> bool:
        """Whether a phase touches more bytes than are large, and each can run on some images."""
        most = max((self._touched(self.step.phases[at]) for at in stretch.each), default=0)
        return most > large_bytes

    def _touched(self, phase: Phase) -> int:
        tensors = self.step.tensors
        return sum(tensors[name].nbytes for name in set(phase.binds.values()))

    def step_of(self) -> Step:
        """The rewritten step."""
        phases: list[Phase] = []
        for stretch, large in zip(self.stretches, self.large, strict=True):
            if not large:
                order = sorted((*stretch.each, *stretch.tail))
                phases += [self.step.phases[at] for at in order]
                continue
            for index, images in enumerate(self.parts):
                phases += [self._part(at, index, images) for at in stretch.each]
            phases += self._merged(stretch.each)
            phases += [self.step.phases[at] for at in stretch.tail]
        count = sum(not phase.is_backward for phase in phases)
        return replace(self.step, tensors=self.tensors, phases=tuple(phases), forward_count=count)

    def _sums(self, at: int) -> list[str]:
        """Results of a phase that are of all images."""
        phase = self.step.phases[at]
        return [name for name in phase.call.results if name not in self.own[at]]

    def _part(self, at: int, index: int, images: Range) -> Phase:
        """A phase for some images."""
        phase = self.step.phases[at]
        call, sums = phase.call, self._sums(at)
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
            operand: self._of(name, index, images) if operand in self.own[at] else name
            for operand, name in phase.binds.items()
        }
        binds |= {name: self._state(phase.binds[name], index) for name in states}
        made = PartOf.of_images(call, images)
        return replace(phase, name=f"{phase.name} [{index}]", call=made, binds=binds)

    def _state(self, name: str, index: int) -> str:
        tensor = self.step.tensors[name]
        made = f"{name}{OF_SLAB}{index}"
        shape = tensor.shape
        self.tensors[made] = Tensor(made, shape, tensor.dtype, tensor.kind)
        return made

    def _merged(self, each: Iterable[int]) -> Iterable[Phase]:
        """The phases that make statistics of all images from those of slabs."""
        for at in each:
            phase = self.step.phases[at]
            for kind in (name for name in self._sums(at) if name in STATES):
                name = phase.binds[kind]
                channels = self.step.tensors[name].shape[1]
                call = StatesOfParts(channels, kind, len(self.parts))
                binds = {f"x{i}": f"{name}{OF_SLAB}{i}" for i in range(len(self.parts))}
                yield replace(
                    phase, name=f"{phase.name}, of slabs", call=call, binds={**binds, "y": name}
                )
