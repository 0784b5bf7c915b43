"""Bands: stretches of a step that go down the rows of an image, for images that do not fit.

A rewrite of a step. Some maps stay whole (on the host, where they do not fit the device); between
them phases run band by band, forward as well as backward, and what lies between exists for one band
at a time. Backward makes it again from the nearest whole map, halo included. What is summed over
rows adds up in place, each row once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from ooc_cudnn.network.phases import Phase, Step
from ooc_cudnn.network.remaking import REMADE, can_be_remade, forward_only, remade
from ooc_cudnn.network.residency import GIVEN, uses_of
from ooc_cudnn.network.tensors import Tensor
from ooc_cudnn.operations.masks import Bitwise
from ooc_cudnn.operations.part_of import PartOf
from ooc_cudnn.operations.rows import ROW_AXIS, height
from ooc_cudnn.operations.splittable import Region, Splittable
from ooc_cudnn.operations.window import Range

#: What stands in the names of tensors of bands, before the number.
OF_BAND = " band "
#: Phases of forward after which a map that is read again is kept whole.
FAR = 12


def banded(step: Step, whole: Iterable[str], bands: int) -> Step:
    """Rewrite a step so that it goes down the rows in so many bands.

    Parameters
    ----------
    whole : iterable of str
        Maps that stay whole, of those that `can_be_remade`; what needs to be whole for other
        reasons (it is summed over before it is read again) is, too.
    """
    if bands == 1:
        return step
    whole = frozenset(whole)
    again = can_be_remade(step) - whole
    while True:
        maps = again | (forward_only(step) - whole)
        stretches = _Stretches(remade(step, again), maps, whole)
        # what is remade in one stretch and read in another must be whole
        surely_whole = {name.removesuffix(REMADE) for name in stretches.whole} & again
        if not surely_whole:
            return stretches.banded(bands)
        again -= surely_whole


class _Stretches:
    """The phases of a step as stretches: each banded tensor begins and ends within one.

    Attributes
    ----------
    banded_tensors : set of str
        Tensors that exist for one band at a time.
    stretches : list of (int, int)
        Ranges of phases, each of which goes down the rows by itself.
    whole : set of str
        Tensors that could have been banded, but are needed whole: several stretches touch them.
    """

    def __init__(self, step: Step, again: Iterable[str], whole: Iterable[str]) -> None:
        self.step = step
        self.uses = uses_of(step)
        self.places = {name: step.place(name) for name in step.tensors}
        results = {self.places[n].base for n in (*step.outputs, *step.gradients.values())}
        maps = {*again, *(name + REMADE for name in again)}
        self.banded_tensors = {
            name
            for name, used in self.uses.items()
            if used.written
            and name not in results
            and (name in maps or self._is_gradient(name, set(whole)))
            and self._has_rows(name)
        }
        self.whole: set[str] = set()
        while True:
            self.stretches = list(self._cut())
            crossing = self._crossing()
            if not crossing:
                break
            self.banded_tensors -= crossing
            self.whole |= crossing

    def _is_gradient(self, name: str, whole: set[str]) -> bool:
        """Whether a tensor is the gradient of something that need not be whole."""
        of = name.split(".gradient")[0]
        given = of in self.step.tensors and self.step.tensors[of].kind in GIVEN
        return self.step.tensors[name].kind == "gradient" and of not in whole and not given

    def _has_rows(self, name: str) -> bool:
        """Whether every phase takes rows of a tensor as its pieces go down the rows."""
        for at in self.uses[name].phases:
            phase = self.step.phases[at]
            for operand, bound in phase.binds.items():
                if self.places[bound].base == name and (
                    bound != name
                    or "h_y" not in phase.call.operands[operand].axes
                    or phase.call.row_axis != ROW_AXIS
                    or _is_packed(phase.call)
                    or any(
                        "h_y" not in phase.call.operands[result].axes
                        for result in phase.call.results
                        if operand in phase.call.results
                    )
                ):
                    return False
        return height(self.step.tensors[name].shape) > 1

    def _cut(self) -> Iterator[tuple[int, int]]:
        """Cut before each phase that reads what an earlier one of its stretch must end first."""
        start, ends = 0, set[str]()
        for at, phase in enumerate(self.step.phases):
            results = {phase.binds[result] for result in phase.call.results}
            reads = {self.places[n].base for n in phase.reads if n not in results}
            if reads & ends or (at > start and self._is_alone(phase)):
                cut = at
                while cut - 1 > start and self._makes_again(self.step.phases[cut - 1]):
                    cut -= 1  # what is made again for this phase belongs to it
                yield start, cut
                start, ends = cut, set()
            ends |= {self.places[n].base for n in phase.writes} - self.banded_tensors
            if self._is_alone(phase):
                yield start, at + 1
                start, ends = at + 1, set()
        if start < len(self.step.phases):
            yield start, len(self.step.phases)

    @staticmethod
    def _is_alone(phase: Phase) -> bool:
        """Whether a phase is a stretch by itself, and runs on all rows at once.

        It sums over rows in a way that cannot be added to (moments are merged), or has no rows, or
        has bits of several rows in a byte.
        """
        if _is_packed(phase.call):
            return True
        call = replace(phase.call, beta=1.0)
        sums = [name for name in call.results if "h_y" not in call.operands[name].axes]
        return any(call.scaling(name)[1] != 1 for name in sums) or not any(
            "h_y" in operand.axes for operand in call.operands.values()
        )

    def _makes_again(self, phase: Phase) -> bool:
        """Whether a phase makes again what is banded, and nothing that must end first."""
        return all(n.endswith(REMADE) and n in self.banded_tensors for n in phase.writes)

    def _crossing(self) -> set[str]:
        """Banded tensors that several stretches touch."""
        found = set[str]()
        for name in self.banded_tensors:
            phases = self.uses[name].phases
            if not any(a <= phases[0] and phases[-1] < b for a, b in self.stretches):
                found.add(name)
        return found

    # Rewriting ----------------------------------------------------------------------------------

    def banded(self, bands: int) -> Step:
        """The step, each stretch that has banded tensors band by band."""
        tensors = {
            name: tensor
            for name, tensor in self.step.tensors.items()
            if self.places[name].base not in self.banded_tensors
        }
        phases: list[Phase] = []
        for start, stop in self.stretches:
            part = self.step.phases[start:stop]
            touched = {self.places[n].base for phase in part for n in phase.binds.values()}
            if not touched & self.banded_tensors:
                phases += part
                continue
            for band in range(bands):
                phases += _Band(self, part, band, bands, tensors).phases()
        return replace(self.step, tensors=tensors, phases=tuple(phases))


class _Band:
    """One band of a stretch: the rows that each phase makes, and those that each tensor holds."""

    def __init__(
        self,
        stretches: _Stretches,
        part: tuple[Phase, ...],
        band: int,
        bands: int,
        tensors: dict[str, Tensor],
    ) -> None:
        self.stretches, self.part, self.band, self.bands = stretches, part, band, bands
        self.tensors = tensors
        self.needed: dict[str, Range] = {}

    def phases(self) -> list[Phase]:
        """The phases of the band that have something to do."""
        rows = self._rows()
        return [
            self._of(phase, made)
            for at, phase in enumerate(self.part)
            if (made := rows[at]) is not None
        ]

    def _rows(self) -> Mapping[int, Range | None]:
        """From the last phase back: the rows that each makes, for those who read them."""
        found: dict[int, Range | None] = {}
        for at in reversed(range(len(self.part))):
            phase = self.part[at]
            rows = self._wanted(phase)
            found[at] = rows
            if rows is None:
                continue
            for operand in phase.call.operands:
                name = phase.binds[operand]
                if name in self.stretches.banded_tensors and operand in phase.call.loaded:
                    region = self._region(phase, operand, rows)
                    if region is not None:
                        self._need(name, region[ROW_AXIS])
        return found

    def _wanted(self, phase: Phase) -> Range | None:
        """The rows that a phase makes: those of banded results that are needed, else its share."""
        results = [phase.binds[result] for result in phase.call.results]
        banded = [name for name in results if name in self.stretches.banded_tensors]
        wanted = [self.needed[name] for name in banded if name in self.needed]
        if len(banded) < len(results):
            if banded and phase.call.beta:
                raise ValueError(f"{phase.name} adds to whole tensors and to bands at once")
            count = phase.call.extents.h_y
            wanted.append((count * self.band // self.bands, count * (self.band + 1) // self.bands))
        wanted = [rows for rows in wanted if rows[0] < rows[1]]
        if not wanted:
            return None
        rows = min(low for low, _ in wanted), max(high for _, high in wanted)
        for name in banded:
            self._need(name, rows)
        return rows

    def _need(self, name: str, rows: Range) -> None:
        first, last = rows
        if first == last:  # padding alone is read; but no tensor is without rows
            first = min(first, height(self.stretches.step.tensors[name].shape) - 1)
            last = first + 1
        low, high = self.needed.get(name, (first, last))
        self.needed[name] = (min(low, first), max(high, last))

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
            if name in self.stretches.banded_tensors:
                tensor = self.stretches.step.tensors[name]
                region = [(0, extent) for extent in tensor.shape]
                region[ROW_AXIS] = self.needed[name]
                held.append((operand, tuple(region)))
                binds[operand] = made = f"{name}{OF_BAND}{self.band}"
                if made not in self.tensors:
                    shape = tuple(stop - start for start, stop in region)
                    self.tensors[made] = replace(tensor, name=made, shape=shape)
        sums = any("h_y" not in call.operands[result].axes for result in call.results)
        if rows[0] and sums:
            call = replace(call, beta=1.0)
        made_call = PartOf.of_rows(call, rows, tuple(held))
        name = f"{phase.name} (band {self.band})"
        return replace(phase, name=name, call=made_call, binds=binds)


def is_of_band(name: str) -> bool:
    """Whether a tensor exists for one band at a time."""
    return OF_BAND in name


def _is_packed(call: Splittable) -> bool:
    """Whether some of a call's tensors hold several rows in a byte."""
    rows = {
        operand.shape[ROW_AXIS]
        for operand in call.operands.values()
        if isinstance(call, Bitwise) and len(operand.shape) == ROW_AXIS + 1
    }
    return len(rows) > 1


def whole_maps(step: Step) -> frozenset[str]:
    """Maps worth keeping whole: where rows get fewer, and what is read again much later.

    They are small beside what they are made of, and others can be made again of them.
    """
    uses, found = uses_of(step), set[str]()
    beside = forward_only(step)

    def rows_before(name: str) -> int:
        """Rows of the nearest map before that backward reads, too."""
        maker = step.phases[uses[name].written[0]]
        lead = step.place(maker.binds[maker.call.lead]).base
        if lead in beside and lead != name:
            return rows_before(lead)
        return height(step.tensors[lead].shape)

    for name in can_be_remade(step):
        forward = [at for at in uses[name].phases if not step.phases[at].is_backward]
        if height(step.tensors[name].shape) < rows_before(name) or forward[-1] - forward[0] > FAR:
            found.add(name)
    return frozenset(found)
