"""Tensors that each region of bands makes for itself, instead of one that is there whole.

A rewrite of a step that goes down the rows. What several regions touch must be whole, and where it
is larger than memory it crosses the link for each of them: 16 GiB take 0.3 s each way, the
convolution that makes them 0.02 s. So a region makes again, at its begin, what it reads of such
tensors, from the nearest that are whole: rows with their halo, one band at a time. A batch norm of
the whole image needs a region for its statistics and one for what is normalised, forward and
backward, and each of them makes again all that is between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import replace

from ooc_cudnn.network.ir.step import Phase, Step
from ooc_cudnn.network.ir.tensor import whole_region
from ooc_cudnn.network.passes.remat_for_backward import compared_maps
from ooc_cudnn.network.passes.row_tiling_regions import TilingRegions

#: Makes regions of a step, which these tensors cross.
CutAcross = Callable[[Step, Set[str]], TilingRegions]


def remake_in_regions(step: Step, names: Set[str], cut: CutAcross) -> TilingRegions:
    """Rewrite a step so that each region makes these tensors for itself, where that can be.

    Parameters
    ----------
    names : set of str
        Maps and gradients, as they are called before any pass.
    """
    named = {base for base in step.uses if step.tensors[base].source in names}
    remade = named - compared_maps(step)
    while True:
        regions = cut(step, remade)
        remakes = _Remakes(regions, remade)
        cannot = {base for base in remade if not remakes.is_repeatable(base)}
        if not cannot:
            return cut(remakes.step(), frozenset())
        remade -= cannot


class _Remakes:
    """A step being rewritten."""

    def __init__(self, regions: TilingRegions, remade: Set[str]) -> None:
        self.regions, self.remade, self.before = regions, remade, regions.step
        self.uses, self.banded = regions.uses, regions.banded_tensors
        self._repeatable: dict[str, bool] = {}
        self.tensors = dict(self.before.tensors)

    def is_repeatable(self, base: str) -> bool:
        """Return True if the phases that make a tensor can run again, with what they read.

        Of other tensors that regions are to make for themselves that is asked by itself.
        """
        known = self._repeatable.get(base)
        if known is None:
            self._repeatable[base] = False  # of what is made of itself
            known = self._repeatable[base] = self._can_be_made_again(base)
        return known

    def _can_be_made_again(self, base: str) -> bool:
        step, used = self.before, self.uses[base]
        if base not in self.banded:
            return False
        readers = (at for at in used.phases if at not in used.written)
        if next(readers, used.written[-1]) < used.written[-1]:
            return False  # it is read before all is added
        for at in used.written:
            phase = step.phases[at]
            if {step.base(name) for name in phase.writes} != {base}:
                return False
            for read in {step.base(name) for name in phase.reads} - {base}:
                if self.uses[read].written[-1:] > (at,):
                    return False  # it is another one by then
                if read in self.banded - self.remade and not self.is_repeatable(read):
                    return False
        return True

    def step(self) -> Step:
        """The rewritten step."""
        phases = list[Phase]()
        for interval in self.regions.intervals:
            region = range(*interval)
            kept = self._read_there(region)
            made = dict[str, str]()
            again = [self.before.phases[at] for at in sorted(self._to_repeat(region, kept))]
            for phase in again:
                self._copy(self.before.base(phase.writes[0]), region.start, made)
            phases += (
                replace(
                    self._rebound(phase, made),
                    name=f"{phase.name} again",
                    is_backward=kept[0].is_backward,
                )
                for phase in again
            )
            phases += (self._rebound(phase, made) for phase in kept)
        count = sum(not phase.is_backward for phase in phases)
        return replace(self.before, tensors=self.tensors, phases=tuple(phases), forward_count=count)

    def _read_there(self, region: range) -> list[Phase]:
        """The phases of a region but for those that make what only other regions read."""
        kept, read = list[Phase](), set[str]()
        for at in reversed(region):
            phase = self.before.phases[at]
            written = {self.before.base(name) for name in phase.writes}
            if written <= self.remade and not written & read:
                continue
            kept.insert(0, phase)
            read.update(map(self.before.base, phase.reads))
        return kept

    def _to_repeat(self, region: range, kept: Sequence[Phase]) -> set[int]:
        """The phases before a region that make what it reads of what is banded."""
        indices, looked_at = set[int](), [*kept]
        while looked_at:
            for name in looked_at.pop().reads:
                base = self.before.base(name)
                if base not in self.banded:
                    continue
                new = {at for at in self.uses[base].written if at < region.start} - indices
                indices |= new
                looked_at += (self.before.phases[at] for at in new)
        return indices

    def _copy(self, base: str, start: int, made: dict[str, str]) -> None:
        """Let what reads a tensor in this region read another one."""
        if base not in made:
            name = made[base] = f"{base} of {start} remade"
            tensor = self.before.tensors[base]
            self.tensors[name] = tensor.derived(name, {"copy": "rematerialized"})

    def _rebound(self, phase: Phase, made: dict[str, str]) -> Phase:
        """A phase that reads and writes what a region makes again in place of what was."""
        binds = dict[str, str]()
        for operand, name in phase.binds.items():
            base, place = self.before.place(name)
            if base not in made:
                binds[operand] = name
                continue
            new_name = made[base] if name == base else f"{name} in {made[base]}"
            binds[operand] = new_name
            if new_name not in self.tensors:  # a view of what is made again
                self.tensors[new_name] = self.before.tensors[name].derived(
                    new_name, {"copy": "rematerialized"}, of=made[base], region=place
                )
        return phase if binds == phase.binds else replace(phase, binds=binds)


def bind_bases(step: Step) -> Step:
    """Return a step whose phases bind a tensor itself in place of a view of all of it."""
    of_views = {
        view.name: base
        for view in step.tensors.values()
        if view.of and (base := step.base(view.name))
        and view.shape == step.tensors[base].shape
        and step.place(view.name).region == whole_region(view.shape)
    }  # fmt: skip
    phases = (
        replace(phase, binds={o: of_views.get(name, name) for o, name in phase.binds.items()})
        if of_views.keys() & set(phase.binds.values())
        else phase
        for phase in step.phases
    )
    return replace(step, phases=tuple(phases))
