"""Row tiling: regions of a step that go down the rows of an image, for images that do not fit.

A rewrite of a step. Some maps stay whole (on the host, where they do not fit the device); between
them phases run band by band, forward as well as backward, and what lies between exists for one band
at a time. Backward makes it again from the nearest whole map, halo included. What is summed over
rows adds up in place, each row once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import replace
from typing import Any

from ooc_cudnn.network.ir.step import Phase, Step
from ooc_cudnn.network.ir.tensor import Tensor, extents, whole_region
from ooc_cudnn.network.passes.merge_states import merge_states
from ooc_cudnn.network.passes.remat_for_backward import (
    forward_only_maps,
    rematerializable,
    rematerialize,
)
from ooc_cudnn.network.passes.row_tiling_cache import cache_rows
from ooc_cudnn.network.passes.row_tiling_regions import TilingRegions, takes_statistics
from ooc_cudnn.network.passes.row_tiling_remakes import remake_in_regions
from ooc_cudnn.network.passes.row_tiling_statistics import hand_on_rows
from ooc_cudnn.operations.core.call import Region
from ooc_cudnn.operations.core.ranges import Range
from ooc_cudnn.operations.core.row_axis import ROW_AXIS, height
from ooc_cudnn.operations.core.subcall import SubCall

#: Phases of forward after which a map that is read again is kept whole.
FAR = 12


def tile_rows(step: Step, whole: Iterable[str], bands: int, anew: Set[str] = frozenset()) -> Step:
    """Rewrite a step so that it goes down the rows in so many bands.

    Parameters
    ----------
    whole : iterable of str
        Maps that stay whole, of those `rematerializable`; what needs to be whole for other
        reasons (it is summed over before it is read again) is, too.
    anew : set of str
        Maps and gradients that each region makes for itself, where it can, in place of a whole one.
    """
    return step if bands == 1 else _tile_regions(regions_of(step, whole, anew), bands)


def regions_of(step: Step, whole: Iterable[str], anew: Set[str]) -> TilingRegions:
    """Return the regions of a step that goes down the rows, rewritten: `tile_rows`."""
    whole = frozenset(whole) - anew
    again = rematerializable(step) - whole
    while True:
        maps = again | (forward_only_maps(step) - whole)
        tiling_regions = TilingRegions(rematerialize(step, again), maps, whole)
        # What is made in one region and read in another must be whole. What is remade of that may
        # fit into a region once it is: it is looked at again.
        tensors, crossing = tiling_regions.step.tensors, tiling_regions.whole
        remade = {tensors[name].source for name in crossing}
        surely_whole = crossing & again or remade & again
        if not surely_whole:
            break
        again -= surely_whole

    def cut(step: Step, remade: Set[str] = frozenset()) -> TilingRegions:
        return TilingRegions(step, maps | anew, whole, remade)

    if anew:
        tiling_regions = remake_in_regions(tiling_regions.step, anew, cut)
    return cache_rows(hand_on_rows(tiling_regions, cut), cut)


def _tile_regions(tiling_regions: TilingRegions, bands: int) -> Step:
    """The step, each region that has banded tensors band by band."""
    step = tiling_regions.step
    tensors = {
        name: tensor
        for name, tensor in step.tensors.items()
        if tiling_regions.places[name].base not in tiling_regions.banded_tensors
    }
    phases: list[Phase] = []
    for start, stop in tiling_regions.intervals:
        part = step.phases[start:stop]
        touched = tiling_regions.bases(n for phase in part for n in phase.binds.values())
        if not touched & tiling_regions.banded_tensors:
            phases += part
            continue
        for band in range(bands):
            phases += _Band(tiling_regions, part, band, bands, tensors).phases()
        phases += _merged(part, step, tensors, bands)
    count = sum(not phase.is_backward for phase in phases)
    return replace(step, tensors=tensors, phases=tuple(phases), forward_count=count)


def _merged(
    part: Iterable[Phase], step: Step, tensors: Mapping[str, Tensor], bands: int
) -> Iterator[Phase]:
    """Merge statistics of all rows from those of the bands that have any."""
    for phase in filter(lambda phase: takes_statistics(phase.call), part):
        for kind in phase.call.results:
            state = step.tensors[phase.binds[kind]]
            names = (_in_band(state.name, band) for band in range(bands))
            yield merge_states(phase, kind, state, [n for n in names if n in tensors], "bands")


def _in_band(name: str, band: int) -> str:
    """Return the name of a band's part of a tensor."""
    return f"{name} band {band}"


class _Band:
    """One band of a region: the rows that each phase makes, and those that each tensor holds."""

    def __init__(
        self,
        tiling_regions: TilingRegions,
        part: tuple[Phase, ...],
        band: int,
        bands: int,
        tensors: dict[str, Tensor],
    ) -> None:
        self.tiling_regions, self.part, self.band, self.bands = tiling_regions, part, band, bands
        self.tensors = tensors
        self.needed: dict[str, Range] = {}

    def phases(self) -> list[Phase]:
        """The phases of the band that have something to do."""
        rows = self._rows()
        return [
            self._of(phase, band_rows)
            for at, phase in enumerate(self.part)
            if (band_rows := rows[at]) is not None
        ]

    def _rows(self) -> Mapping[int, Range | None]:
        """Rows that each phase makes for those who read them, from the last phase back."""
        by_phase: dict[int, Range | None] = {}
        for index in reversed(range(len(self.part))):
            phase = self.part[index]
            rows = self._wanted(phase)
            by_phase[index] = rows
            if rows is None:
                continue
            for operand in phase.call.operands:
                base = self.tiling_regions.step.base(phase.binds[operand])
                if base in self.tiling_regions.banded_tensors and operand in phase.call.loaded:
                    region = self._region(phase, operand, rows)
                    if region is not None:
                        self._need(base, region[ROW_AXIS])
        return by_phase

    def _wanted(self, phase: Phase) -> Range | None:
        """The rows that a phase makes: those of banded results that are needed, else its share."""
        results = [
            self.tiling_regions.step.base(phase.binds[result]) for result in phase.call.results
        ]
        banded = [name for name in results if name in self.tiling_regions.banded_tensors]
        wanted = [self.needed[name] for name in banded if name in self.needed]
        if len(banded) < len(results):
            if banded and phase.call.beta:
                raise ValueError(f"{phase.name} adds to whole tensors and to bands at once")
            wanted.append(self._share(phase.call.extents.h_y))
        wanted = [rows for rows in wanted if rows[0] < rows[1]]
        if not wanted:
            return None
        rows = min(low for low, _ in wanted), max(high for _, high in wanted)
        for name in banded:
            self._need(name, rows)
        return rows

    def _share(self, count: int) -> Range:
        """The band's rows of so many: the first band has some, so that each sum begins in it.

        Phases that add to one sum then do so in the order of the step: the first of them writes it.
        """
        return -(-count * self.band // self.bands), -(-count * (self.band + 1) // self.bands)

    def _need(self, name: str, rows: Range) -> None:
        first, last = rows
        if first == last:  # padding alone is read; but no tensor is without rows
            first = min(first, height(self.tiling_regions.step.tensors[name].shape) - 1)
            last = first + 1
        low, high = self.needed.get(name, (first, last))
        self.needed[name] = (min(low, first), max(high, last))

    @staticmethod
    def _held(region: Region, rows: Range) -> Region:
        """A region, but for its rows."""
        return (*region[:ROW_AXIS], rows, *region[ROW_AXIS + 1 :])

    def _part(self, name: str) -> str:
        """The name of the band's part of a tensor; of a view, a view of the band's part."""
        part = _in_band(name, self.band)
        if part not in self.tensors:
            base, region = self.tiling_regions.places[name]
            first, last = self.needed[base]
            region = self._held(region, (0, last - first))
            tensor, changes = self.tiling_regions.step.tensors[name], dict[str, Any]()
            if base != name:
                changes = {"of": self._part(base), "region": region}
            self.tensors[part] = tensor.derived(
                part, {"row_tile": self.band}, shape=extents(region), **changes
            )
        return part

    @staticmethod
    def _region(phase: Phase, operand: str, rows: Range) -> Region | None:
        call, first = phase.call, None
        for sweep in range(call.sweeps):
            piece = call.whole_piece(sweep)._replace(h_y=rows)
            first = call.region(operand, piece)
            if first is not None:
                return first
        return None

    def _of(self, phase: Phase, rows: Range) -> Phase:
        call, held, binds = phase.call, list[tuple[str, Region]](), dict[str, str]()
        for operand, name in phase.binds.items():
            binds[operand] = name
            base = self.tiling_regions.step.base(name)
            if base in self.tiling_regions.banded_tensors:
                tensor = self.tiling_regions.step.tensors[name]
                held.append((operand, self._held(whole_region(tensor.shape), self.needed[base])))
                binds[operand] = self._part(name)
        if takes_statistics(call):
            for kind in call.results:
                binds[kind] = state = _in_band(phase.binds[kind], self.band)
                of = self.tiling_regions.step.tensors[phase.binds[kind]]
                self.tensors[state] = of.derived(state, {"row_tile": self.band})
        elif rows[0] and any("h_y" not in call.operands[y].axes for y in call.results):
            call = replace(call, beta=1.0)
        made_call = SubCall.of_rows(call, rows, tuple(held))
        name = f"{phase.name} (band {self.band})"
        return replace(phase, name=name, call=made_call, binds=binds)


def whole_maps(step: Step) -> frozenset[str]:
    """Maps worth keeping whole: where rows get fewer, and what is read again much later.

    They are small beside what they are made of, and others can be made again of them.
    """
    uses, maps = step.uses, set[str]()
    beside = forward_only_maps(step)

    def rows_before(name: str) -> int:
        """Rows of the nearest map before that backward reads, too."""
        maker = step.phases[uses[name].written[0]]
        lead = step.base(maker.binds[maker.call.lead])
        if lead in beside and lead != name:
            return rows_before(lead)
        return height(step.tensors[lead].shape)

    for name in rematerializable(step):
        forward = [at for at in uses[name].phases if not step.phases[at].is_backward]
        if height(step.tensors[name].shape) < rows_before(name) or forward[-1] - forward[0] > FAR:
            maps.add(name)
    return frozenset(maps)
