"""Where tensors of a step are, phase by phase: on the device for some stays, else on the host.

A stay is the phases during which a tensor holds memory of the device. A tensor without any lives on
the host, and whoever reads or writes it streams it. Between two stays it is on the host: it left in
the first, and is fetched for the second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ooc_cudnn.network.phases import Step

#: Kinds of tensors that are handed in, and those of them that a step changes.
GIVEN = ("input", "parameter", "running")


class Stay(NamedTuple):
    """Phases in which a tensor is on the device, the first and the last included.

    Attributes
    ----------
    first, last : int
        Numbers of phases in their step.
    fetched : bool
        Whether it comes from the host: the copy starts before the first phase.
    leaves : int, optional
        The phase after which a copy to the host starts.
    """

    first: int
    last: int
    fetched: bool = False
    leaves: int | None = None


#: The stays of each tensor that is no view.
Residency = Mapping[str, tuple[Stay, ...]]


@dataclass(frozen=True)
class Uses:
    """When the phases of a step touch a tensor.

    Attributes
    ----------
    phases : tuple of int
        All that read or write it, in order.
    written : tuple of int
        Those that write it.
    """

    phases: tuple[int, ...]
    written: tuple[int, ...]

    def last_before(self, phase: int) -> int:
        """The last use before a phase."""
        return max(at for at in self.phases if at < phase)


def uses_of(step: Step) -> dict[str, Uses]:
    """The uses of each tensor that is no view, those of its views among them."""
    touched: dict[str, list[int]] = {}
    written: dict[str, list[int]] = {}
    bases = {name: step.place(name).base for name in step.tensors}
    for at, phase in enumerate(step.phases):
        for base in dict.fromkeys(bases[name] for name in (*phase.reads, *phase.writes)):
            touched.setdefault(base, []).append(at)
        for base in dict.fromkeys(bases[name] for name in phase.writes):
            written.setdefault(base, []).append(at)
    return {
        base: Uses(tuple(found), tuple(written.get(base, ()))) for base, found in touched.items()
    }


def results_of(step: Step) -> set[str]:
    """Names of what must be on the host in the end: outputs, gradients, running statistics."""
    names = {*step.outputs, *step.gradients.values()}
    changed = {
        step.place(name).base
        for phase in step.phases
        for name in phase.writes
        if step.tensors[step.place(name).base].kind in GIVEN
    }
    return {step.place(name).base for name in names} | changed


def kept(step: Step, uses: Mapping[str, Uses]) -> dict[str, tuple[Stay, ...]]:
    """Everything on the device from its first use to its last."""
    results, found = results_of(step), dict[str, tuple[Stay, ...]]()
    seeds = set(step.seeds.values())
    for name, used in uses.items():
        fetched = step.tensors[name].kind in GIVEN or name in seeds
        leaves = used.written[-1] if name in results and used.written else None
        found[name] = (Stay(used.phases[0], used.phases[-1], fetched, leaves),)
    return found
