"""The layouts of a chain's windows: where these should differ, and what one throughout would take.

Seconds are those of the machine model, by what was measured of each launch where that is known
(`devices.engines.Tables`); a re-layout is a pass over memory. Passes over single elements take any
layout, so each lies as the window before it does.
"""

from __future__ import annotations

import itertools

from ooc_cudnn.operations.chain import Chain
from ooc_cudnn.operations.chain_builder import SEPARATOR
from ooc_cudnn.operations.per_element import PerElement
from ooc_cudnn.operations.pointwise import Pointwise, Relayout
from ooc_cudnn.pricing.layouts import Step, cheapest, throughout
from ooc_cudnn.pricing.request import Request

#: Layouts differ within a chain where computing takes this share of what one throughout takes.
WORTH_DIFFERING = 0.98


def differ(request: Request) -> bool:
    """Whether a call has windows whose layouts may differ."""
    chain = request.chain
    return isinstance(chain, Chain) and len(chain.windows) > 1 and len(request.layouts) > 1


def steps_of(request: Request) -> list[Step]:
    """A chain's windows, uncut, in each of the request's layouts; and its result, where it lies.

    Passes that follow a window count with it: in some layouts they are part of its launch.
    """
    chain, compute, layouts = request.chain, request.machine.compute, request.layouts
    assert isinstance(chain, Chain)
    seconds = {layout: _by_window(request, layout) for layout in layouts}

    def step(name: str, shape: tuple[int, ...], taking: dict[str, float]) -> Step:
        moved = 0.0 if len(shape) < 3 else compute.seconds(Relayout(shape, chain.dtype).work())
        return Step(name, taking, dict.fromkeys(itertools.permutations(layouts, 2), moved))

    found = []
    for at, index in enumerate(chain.windows):
        operation = chain.operations[index]
        taking = {layout: seconds[layout][at] for layout in layouts}
        found.append(step(f"{operation.name} {index}", operation.input_shape, taking))
    shape = chain.operations[-1].output_shape
    return [*found, step("y", shape, {dict(request.orders)["y"]: 0.0})]


def _by_window(request: Request, layout: str) -> list[float]:
    """Seconds of each window in a layout, with the passes after it, and those before the first.

    Filters that are re-laid count with their window; what else is re-laid does not.
    """
    chain, compute = request.chain, request.machine.compute
    assert isinstance(chain, Chain)
    whole, orders = chain.whole_piece(0), dict(request.orders)
    launches, _ = chain.launches(whole, layout=layout, orders=orders)
    filters = set(itertools.chain.from_iterable(chain.parameter_names))
    found, before = list[float](), 0.0
    for launch in launches:
        seconds = compute.seconds(launch.operation.work())
        if isinstance(launch.operation, Relayout):
            before += seconds if launch.inputs[0] in filters else 0.0
        elif not isinstance(launch.operation, PerElement | Pointwise):
            found.append(before + seconds)
            before = 0.0
        elif found:
            found[-1] += seconds
        else:
            before += seconds
    return found


def with_differing(request: Request) -> tuple[str, ...]:
    """Return the layouts to plan in: those of the request, and a sequence where it takes less.

    That is the cheapest sequence of layouts over the windows, joined by `SEPARATOR`.
    """
    if not differ(request):
        return request.layouts
    if 0 in request.chain.operands["y"].shape:
        return request.layouts
    steps, arrives = steps_of(request), dict(request.orders)["x"]
    path = cheapest(steps, arrives)
    if path.seconds > WORTH_DIFFERING * min(throughout(steps, arrives).values()):
        return request.layouts
    return (*request.layouts, SEPARATOR.join(path.layouts[:-1]))
