"""Apply remat events: clone forward phases before any reader, as often as a plan says.

A rewrite of a step. What `remat_for_backward` makes again just before its first reader is there
until its last; here a map may be let go, made again, let go and be back from the host.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from ooc_cudnn.network.ir.step import Phase, RematEvent, Step
from ooc_cudnn.network.passes.remat_for_backward import Rematerialization


def insert_remat_events(step: Step, again: Iterable[RematEvent]) -> Step:
    """Rewrite a step so that maps are made again.

    Raises
    ------
    ValueError
        If one of them is no map of the step, or is made again before a phase that is none of
        backward: plans are data, and may be edited.
    """
    return _RematInsertion(step, tuple(again)).step()


def producers_of(step: Step, name: str) -> tuple[int, ...]:
    """The phases of forward that make a map, one after the other: all that write any of it."""
    used = step.uses.get(name)
    return tuple(at for at in used.written if not step.phases[at].is_backward) if used else ()


class _RematInsertion(Rematerialization):
    def __init__(self, before: Step, again: tuple[RematEvent, ...]) -> None:
        super().__init__(before, frozenset(), ())
        self._again_at = defaultdict[int, list[RematEvent]](list)
        for event in again:
            tensor = before.tensors.get(event.name)
            is_backward = 0 <= event.before < len(before.phases) and (
                before.phases[event.before].is_backward
            )
            if tensor is None or tensor.kind != "map" or tensor.of or not is_backward:
                raise ValueError(f"the plan cannot be followed: {event}")
            self._again_at[event.before].append(event)

    def step(self) -> Step:
        """The rewritten step."""
        for index, phase in enumerate(self.before.phases):
            for event in self._again_at[index]:
                if event.is_made:
                    self._make(event.name)
                else:
                    self.made.pop(event.name, None)
            self.phases.append(self._rebound(phase) if phase.is_backward else phase)
        return replace(self.before, tensors=self.tensors, phases=tuple(self.phases))

    def _make(self, map_name: str) -> None:
        makers = [self.before.phases[at] for at in producers_of(self.before, map_name)]
        results = (self.before.base(name) for maker in makers for name in maker.writes)
        as_it_was = dict(self.made)
        for result in dict.fromkeys(results):
            self._copy(result)
        for maker in makers:
            self._append_again(maker)
        for result in results_beside(self.before, makers, map_name):
            del self.made[result]  # what is beside it, an index, is read as it was
            if result in as_it_was:
                self.made[result] = as_it_was[result]


def results_beside(step: Step, makers: Iterable[Phase], name: str) -> list[str]:
    """Results that phases write beside a map."""
    bases = (step.base(each) for maker in makers for each in maker.writes)
    return [base for base in dict.fromkeys(bases) if base != name]
