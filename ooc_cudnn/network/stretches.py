"""Stretches: which phases of a step may go down the rows together, and which tensors in bands.

A tensor exists for one band at a time where every phase that touches it takes rows of it, and all
of them lie in one stretch. A stretch ends where a phase reads what must be there whole first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ooc_cudnn.network.phases import Phase, Step
from ooc_cudnn.network.remaking import REMADE
from ooc_cudnn.network.residency import GIVEN, uses_of
from ooc_cudnn.operations.masks import Bitwise
from ooc_cudnn.operations.rows import ROW_AXIS, height
from ooc_cudnn.operations.splittable import Splittable


class Stretches:
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


def _is_packed(call: Splittable) -> bool:
    """Whether some of a call's tensors hold several rows in a byte."""
    rows = {
        operand.shape[ROW_AXIS]
        for operand in call.operands.values()
        if isinstance(call, Bitwise) and len(operand.shape) == ROW_AXIS + 1
    }
    return len(rows) > 1
