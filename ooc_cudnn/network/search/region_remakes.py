"""Choose which large tensors regions of bands make for themselves, and which are there whole.

What a region makes for itself costs the computing of all that it is made of, from the nearest
tensors that are whole; a whole one crosses the link to each region that reads it, and lies in host
memory. All large ones are made by regions first. Then those are kept whole, one by one, of which
that saves most: those between the levels of a U-Net, for what lies behind is made of them.

Costs are estimates (`_Priced`): of a step without bands, and with nothing of its large tensors on
the device. They were within a quarter of the plans of a U-Net of 8192 x 8192, and in their order.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from ooc_cudnn.network.cost.compute_seconds import phase_seconds
from ooc_cudnn.network.cost.copy_timeline import copy_of
from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.ir.step import Phase, Step
from ooc_cudnn.network.passes.row_tiling import regions_of, whole_maps
from ooc_cudnn.network.passes.row_tiling_regions import TilingRegions
from ooc_cudnn.network.search.search_budget import SearchBudget
from perfmodel import MachineModel

#: Memory holds no more than so many of a large tensor.
LARGE = 4
#: Whole tensors are on the device where it holds so many of them.
SMALL = 8
#: Of the shorter of computing and copying, so much is not hidden behind the longer.
BESIDE = 0.25
#: So many of the tensors that promise most are priced, before one is kept whole.
PROMISING = 4
#: It is to save such a share of the seconds.
WORTH_WHOLE = 0.01
#: To price a choice, as a share of lowering the phases of all its regions.
PRICED = 0.25


def large_tensors(step: Step, constraints: PlanConstraints) -> frozenset[str]:
    """Names, before any pass, of maps and gradients of which memory holds few."""
    least = constraints.target.room_bytes / LARGE
    return frozenset(
        tensor.source
        for tensor in step.tensors.values()
        if tensor.kind in ("map", "gradient") and tensor.nbytes >= least
    )


def choose_remakes(
    step: Step,
    constraints: PlanConstraints,
    budget: SearchBudget,
    most_seconds: float = math.inf,
) -> tuple[frozenset[str], float]:
    """Choose what regions of a step make for themselves; with the seconds that it is to take.

    Empty where memory holds several of each tensor. Where no choice comes to `most_seconds`, it is
    not looked for.
    """
    price = _pricing(step, constraints, budget)
    best = price(large_tensors(step, constraints))
    if best.seconds - sum(gain for gain in best.gains.values() if gain > 0) > most_seconds:
        return best.names, best.seconds
    while promising := sorted(best.gains, key=best.gains.__getitem__)[-PROMISING:]:
        found = min((price(best.names - {name}) for name in promising), key=_Priced.order)
        if found.order() >= (best.excess, (1 - WORTH_WHOLE) * best.seconds):
            break
        best = found
    return (best.names if best.gains else frozenset()), best.seconds


class _Priced(NamedTuple):
    """Tensors that regions make for themselves, and what that costs.

    Attributes
    ----------
    names : frozenset of str
    seconds : float
    excess : float
        Bytes of host memory more than there are.
    gains : mapping
        Of each of the names the seconds that would be saved at most, if it were whole.
    """

    names: frozenset[str]
    seconds: float
    excess: float
    gains: dict[str, float]

    def order(self) -> tuple[float, float]:
        """Return what is compared: what fits the host comes first, then what is faster."""
        return self.excess, self.seconds


def _pricing(
    step: Step, constraints: PlanConstraints, budget: SearchBudget
) -> Callable[[frozenset[str]], _Priced]:
    """Return what prices names."""
    machine, room_bytes = constraints.target.machine, constraints.target.room_bytes
    seconds_of, whole = phase_seconds(machine), whole_maps(step)
    available = None if constraints.host is None else constraints.host.available_bytes

    def price(names: frozenset[str]) -> _Priced:
        regions = regions_of(step, whole, names)
        budget.lower(PRICED * len(regions.step.phases))
        computing = sum(map(seconds_of, regions.step.phases))
        begins = [start for start, _ in regions.intervals]
        back = out = held = 0.0
        for name, used in regions.uses.items():
            tensor = regions.step.tensors[name]
            is_made = tensor.kind in ("map", "gradient") and name not in regions.banded_tensors
            if not is_made or SMALL * tensor.nbytes < room_bytes:
                continue
            writing = {bisect_right(begins, at) for at in used.written}
            reading = {bisect_right(begins, at) for at in used.phases} - writing
            copy = copy_of(tensor.nbytes, machine, leaves=True)
            back += len(reading) * copy.back
            out += len(writing) * copy.out
            held += tensor.nbytes
        longest = max(computing, back, out)
        seconds = longest + BESIDE * min(computing, max(back, out))
        excess = 0.0 if available is None else max(held - room_bytes - available, 0.0)
        return _Priced(names, seconds, excess, _gains(regions, names, machine, seconds_of))

    return price


def _gains(
    regions: TilingRegions,
    names: frozenset[str],
    machine: MachineModel,
    seconds_of: Callable[[Phase], float],
) -> dict[str, float]:
    """Seconds that names cost where they are made again, with what they are made of, at most."""
    step, gains = regions.step, defaultdict[str, float](float)
    for start, stop in regions.intervals:
        chains = dict[str, float]()
        for phase in step.phases[start:stop]:
            (*_, written) = map(step.base, phase.writes)
            if step.tensors[written].origin.copy != "rematerialized":
                continue
            before = sum(chains.get(step.base(name), 0.0) for name in phase.reads)
            chains[written] = before + seconds_of(phase)
        for base, seconds in chains.items():
            tensor = step.tensors[base]
            if tensor.source in names:
                gains[tensor.source] += seconds - copy_of(tensor.nbytes, machine, leaves=False).back
    return gains
