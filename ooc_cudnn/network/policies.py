"""Policies: who decides what is kept, offloaded and remade.

vDNN's (Rhu et al., MICRO 2016) are as the paper has them; see `prefetched` for its search window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ooc_cudnn.network.phases import Step
from ooc_cudnn.network.residency import Residency, Stay, Uses, kept, uses_of

#: What a policy makes of a step: the step, with what is remade, and where its tensors are.
Decided = tuple[Step, Residency]
Policy = Callable[[Step], Decided]


def keep(step: Step) -> Decided:
    """Everything stays on the device from its first use to its last."""
    return step, kept(step, uses_of(step))


def idle(step: Step, uses: Mapping[str, Uses]) -> dict[str, tuple[int, int]]:
    """Of each map that backward reads, its last use in forward and the first one after it."""
    found, backward = {}, step.forward_count
    for name, used in uses.items():
        if step.tensors[name].kind not in ("map", "input"):
            continue
        if used.phases[0] < backward <= used.phases[-1]:
            found[name] = (used.last_before(backward), used.first_from(backward))
    return found


def offloaded(
    step: Step, names: Iterable[str], prefetch: Mapping[str, int] | None = None
) -> Residency:
    """Everything kept but these maps, which leave after their last use in forward.

    Parameters
    ----------
    names : iterable of str
    prefetch : mapping, optional
        The phase before which the copy back starts; the one before its first reader when left out.
    """
    uses = uses_of(step)
    stays, gaps = kept(step, uses), idle(step, uses)
    for name in names:
        if name not in gaps:
            continue
        (stay,) = stays[name]
        last, first = gaps[name]
        back = (prefetch or {}).get(name, max(first - 1, last + 1))
        given = step.tensors[name].kind == "input"
        leaves = None if given else last
        stays[name] = (
            Stay(stay.first, last, stay.fetched, leaves),
            Stay(back, stay.last, True, stay.leaves),
        )
    return stays


def offload(step: Step) -> Decided:
    """Every map that backward reads leaves, and is fetched during the phase before its reader."""
    return step, offloaded(step, idle(step, uses_of(step)))
