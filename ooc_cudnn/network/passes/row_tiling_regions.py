"""Tiling regions: which phases of a step may go down the rows together, and which tensors in bands.

A tensor exists for one band at a time where every phase that touches it takes rows of it, and all
of them lie in one region. A region ends where a phase reads what must be there whole first, or
writes over rows that a band of an earlier phase is still to read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Set
from dataclasses import replace

from ooc_cudnn.network.ir.step import Phase, Step
from ooc_cudnn.network.ir.tensor import GIVEN, channels_of, extents
from ooc_cudnn.operations.core.call import TiledCall
from ooc_cudnn.operations.core.row_axis import ROW_AXIS, height
from ooc_cudnn.operations.elementwise.activation_bitmask import Bitwise
from ooc_cudnn.operations.normalization.channel_reduction import STATES


class TilingRegions:
    """The phases of a step as regions: each banded tensor begins and ends within one.

    Parameters
    ----------
    again : iterable of str
        Maps that are made again, by their names before any pass.
    whole : iterable of str
        Those that stay whole.
    remade : set of str
        Tensors that cross regions all the same: each region is to make them for itself.

    Attributes
    ----------
    banded_tensors : set of str
        Tensors that exist for one band at a time.
    intervals : list of (int, int)
        Ranges of phases, each of which goes down the rows by itself.
    whole : set of str
        Tensors that could have been banded, but are needed whole: several regions touch them.
    """

    def __init__(
        self,
        step: Step,
        again: Iterable[str],
        whole: Iterable[str],
        remade: Set[str] = frozenset(),
    ) -> None:
        self.step = step
        self.uses = step.uses
        self.places = {name: step.place(name) for name in step.tensors}
        results = self.bases((*step.outputs, *step.gradients.values()))
        self._again = frozenset(again)
        self.banded_tensors = {
            name
            for name, used in self.uses.items()
            if used.written
            and name not in results
            and (self._is_made_again(name) or self._is_gradient(name, set(whole)))
            and self._has_rows(name)
        }
        self.whole: set[str] = set()
        while True:
            self.intervals = list(self._cut())
            crossing = self._crossing() - remade
            if not crossing:
                break
            self.banded_tensors -= crossing
            self.whole |= crossing

    def _is_made_again(self, name: str) -> bool:
        """True if a tensor is a map to be made again, a copy of it, or a copy of rows."""
        tensor = self.step.tensors[name]
        return tensor.source in self._again or tensor.origin.copy == "rows"

    def _is_gradient(self, name: str, whole: set[str]) -> bool:
        """True if a tensor is the gradient of something that need not be whole."""
        of = self.step.tensors[name].origin.gradient_of
        given = of in self.step.tensors and self.step.tensors[of].kind in GIVEN
        return self.step.tensors[name].kind == "gradient" and of not in whole and not given

    def _has_rows(self, name: str) -> bool:
        """True if every phase takes rows of a tensor as its pieces go down the rows."""
        for index in self.uses[name].phases:
            phase = self.step.phases[index]
            for operand, bound in phase.binds.items():
                if self.places[bound].base == name and (
                    not self._has_all_rows(bound)
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

    def _has_all_rows(self, name: str) -> bool:
        """True if a tensor is no view, or one of some channels: a part of a concatenation."""
        base, region = self.places[name]
        shape = self.step.tensors[base].shape
        return name == base or (
            region == channels_of(shape, region[1])
            and self.step.tensors[name].shape == extents(region)
        )

    def bases(self, names: Iterable[str]) -> set[str]:
        """The tensors in which others lie."""
        return set(map(self.step.base, names))

    def _cut(self) -> Iterator[tuple[int, int]]:
        """Cut before each phase that cannot follow those of its region band by band."""
        start, held, phases = 0, _WholeTensorUses(self), self.step.phases
        turn = self.step.turn if self.step.pauses else None
        for index, phase in enumerate(phases):
            alone = self._is_alone(phase)
            if turn == index > start or held.must_end_before(phase) or (index > start and alone):
                cut = index
                while not alone and cut - 1 > start and self._makes_again(phases[cut - 1]):
                    cut -= 1  # what is made again for this phase belongs to it
                yield start, cut
                start, held = cut, _WholeTensorUses(self, phases[cut:index])
                if held.must_end_before(phase):
                    yield start, index
                    start, held = index, _WholeTensorUses(self)
            held.add(phase)
            if alone:
                yield start, index + 1
                start, held = index + 1, _WholeTensorUses(self)
        if start < len(phases):
            yield start, len(phases)

    @staticmethod
    def _is_alone(phase: Phase) -> bool:
        """True if a phase is a region by itself, and runs on all rows at once.

        It sums over rows in a way that cannot be added to, or would add to what else it makes, too;
        or it has no rows, or bits of several rows in a byte. Statistics are merged.
        """
        if _is_packed(phase.call):
            return True
        if takes_statistics(phase.call):
            return False
        call = replace(phase.call, beta=1.0)
        sums = [name for name in call.results if "h_y" not in call.operands[name].axes]
        if sums and any(call.scaling(name)[1] != (name in sums) for name in call.results):
            return True
        return not any("h_y" in operand.axes for operand in call.operands.values())

    def _makes_again(self, phase: Phase) -> bool:
        """True if a phase makes again what is banded, and nothing that must end first."""
        return all(
            self.step.tensors[n].origin.copy and n in self.banded_tensors
            for n in self.bases(phase.writes)
        )

    def _crossing(self) -> set[str]:
        """Banded tensors that several regions touch."""
        ends = [end for _, end in self.intervals]
        return {
            name
            for name in self.banded_tensors
            if (phases := self.uses[name].phases)[-1] >= ends[bisect_right(ends, phases[0])]
        }


def takes_statistics(call: TiledCall) -> bool:
    """Return True if a call makes states alone that are merged: moments or sums, in any order."""
    return set(call.results) <= STATES.keys() and not getattr(call, "deterministic", False)


class _WholeTensorUses:
    """Uses of whole tensors by the phases of a region so far."""

    def __init__(self, of: TilingRegions, phases: Iterable[Phase] = ()) -> None:
        self.of = of
        self.written, self.touched = set[str](), set[str]()
        #: Of which some phase touches rows that are another band's.
        self.strayed = set[str]()
        for phase in phases:
            self.add(phase)

    def add(self, phase: Phase) -> None:
        """Let a phase be the last."""
        self.written |= self.of.bases(phase.writes) - self.of.banded_tensors
        for operand, base in self._whole(phase):
            self.touched.add(base)
            if self._strays(phase, operand):
                self.strayed.add(base)

    def must_end_before(self, phase: Phase) -> bool:
        """True if a phase reads what is not there whole, or changes rows that are read later.

        A band may write over its own rows of what all phases before it touched by these alone.
        """
        results = {phase.binds[result] for result in phase.call.results}
        if any(self.of.places[n].base in self.written for n in phase.reads if n not in results):
            return True
        return any(
            base in self.strayed or (base in self.touched and self._strays(phase, operand))
            for operand, base in self._whole(phase)
            if operand in phase.call.results
        )

    def _whole(self, phase: Phase) -> Iterator[tuple[str, str]]:
        for operand, name in phase.binds.items():
            base = self.of.places[name].base
            if base not in self.of.banded_tensors:
                yield operand, base

    def _strays(self, phase: Phase, operand: str) -> bool:
        """True if a band of a phase touches rows of an operand that are another band's."""
        call, name = phase.call, phase.binds[operand]
        shape = self.of.step.tensors[name].shape
        if "h_y" not in call.operands[operand].axes:
            return operand not in call.results  # sums: whoever adds to them, in whichever order
        if (
            self.of.banded_tensors & self.of.bases(phase.writes)
            or self.of.places[name].base != name
        ):
            return True
        last = call.extents.h_y - 1
        if len(shape) <= ROW_AXIS or height(shape) != last + 1:
            return True
        rows = [(at, at + 1) for at in (0, last // 2, last)]
        pieces = [call.whole_piece()._replace(h_y=each) for each in rows]
        regions = [call.region(operand, piece) for piece in pieces]
        return [each and each[ROW_AXIS] for each in regions] != rows


def _is_packed(call: TiledCall) -> bool:
    """True if some of a call's tensors hold several rows in a byte."""
    rows = {
        operand.shape[ROW_AXIS]
        for operand in call.operands.values()
        if isinstance(call, Bitwise) and len(operand.shape) == ROW_AXIS + 1
    }
    return len(rows) > 1
