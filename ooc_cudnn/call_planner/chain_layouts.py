"""The layouts of a chain's windows: where these should differ, and what one throughout would take.

Seconds are those of the machine model, by what was measured of each launch where that is known
(`devices.engines.Tables`); a re-layout is a pass over memory. Passes over single elements take any
layout, so each lies as the window before it does.
"""

from __future__ import annotations

import itertools

from ooc_cudnn.call_planner.layouts import LayoutNode, cheapest, uniform_seconds
from ooc_cudnn.call_planner.request import Request
from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.operations.chain.lowering import SEPARATOR
from ooc_cudnn.operations.core.elementwise import PerElement
from ooc_cudnn.operations.core.launch import Launch
from ooc_cudnn.operations.core.pointwise import Pointwise, Relayout

#: Layouts differ within a chain where computing takes this share of what one throughout takes: by
#: what was measured of its convolutions, or by lines, which may be wrong by as much.
WORTH_DIFFERING, WORTH_BY_LINES = 0.98, 0.67

#: Layouts of a chain's windows, and the seconds of computing it uncut, the fastest first.
ByLayout = tuple[tuple[str, float], ...]


def seconds_by_layout(request: Request) -> ByLayout:
    """Seconds of a chain of several windows in each layout throughout, and in the best sequence.

    Nothing of what has one window, or one layout to be computed in.
    """
    chain = request.chain
    if not isinstance(chain, Chain) or len(chain.windows) < 2 or len(request.layouts) < 2:
        return ()
    if 0 in chain.operands["y"].shape:
        return ()
    steps, arrives = steps_of(request), dict(request.orders)["x"]
    seconds, path = uniform_seconds(steps, arrives), cheapest(steps, arrives)
    layouts = path.layouts[:-1]
    if len(set(layouts)) > 1:
        seconds[SEPARATOR.join(layouts)] = path.seconds
    return tuple(sorted(seconds.items(), key=lambda each: each[1]))


def layouts_to_plan(request: Request, found: ByLayout) -> tuple[str, ...]:
    """Return a request's layouts, and the sequence where that computes enough faster."""
    if not found or SEPARATOR not in found[0][0]:
        return request.layouts
    (sequence, least), (_, second) = found[:2]
    worth = WORTH_DIFFERING if _is_measured(request) else WORTH_BY_LINES
    return (*request.layouts, sequence) if least < worth * second else request.layouts


def _is_measured(request: Request) -> bool:
    """True if all convolutions of a chain were measured, in each layout."""
    works = (
        launch.operation.work()
        for layout in request.layouts
        for launch in _launches(request, layout)
    )
    convolutions = (work for work in works if work.key.startswith("convolution"))
    return all(map(request.machine.compute.knows, convolutions))


def steps_of(request: Request) -> list[LayoutNode]:
    """A chain's windows, uncut, in each of the request's layouts; and its result, where it lies.

    Passes that follow a window count with it: in some layouts they are part of its launch.
    """
    chain, compute, layouts = request.chain, request.machine.compute, request.layouts
    assert isinstance(chain, Chain)
    seconds = {layout: _by_window(request, layout) for layout in layouts}

    def step(name: str, shape: tuple[int, ...], taking: dict[str, float]) -> LayoutNode:
        moved = 0.0 if len(shape) < 3 else compute.seconds(Relayout(shape, chain.dtype).work())
        return LayoutNode(name, taking, dict.fromkeys(itertools.permutations(layouts, 2), moved))

    steps = []
    for number, index in enumerate(chain.windows):
        operation = chain.operations[index]
        taking = {layout: seconds[layout][number] for layout in layouts}
        steps.append(step(f"{operation.name} {index}", operation.input_shape, taking))
    shape = chain.operations[-1].output_shape
    return [*steps, step("y", shape, {dict(request.orders)["y"]: 0.0})]


def _launches(request: Request, layout: str) -> tuple[Launch, ...]:
    """Launches of a chain that is not cut."""
    chain, orders = request.chain, dict(request.orders)
    return chain.launches(chain.whole_piece(0), layout=layout, orders=orders)[0]


def _by_window(request: Request, layout: str) -> list[float]:
    """Seconds of each window in a layout, with the passes after it, and those before the first.

    Filters that are re-laid count with their window; what else is re-laid does not. Where a window
    reads padding alone, nothing before it is launched, and takes no time.
    """
    chain, compute = request.chain, request.machine.compute
    assert isinstance(chain, Chain)
    filters = set(itertools.chain.from_iterable(chain.parameter_names))
    totals, before = list[float](), 0.0
    for launch in _launches(request, layout):
        seconds = compute.seconds(launch.operation.work())
        if isinstance(launch.operation, Relayout):
            before += seconds if launch.inputs[0] in filters else 0.0
        elif not isinstance(launch.operation, PerElement | Pointwise):
            totals.append(before + seconds)
            before = 0.0
        elif totals:
            totals[-1] += seconds
        else:
            before += seconds
    return [0.0] * (len(chain.windows) - len(totals)) + totals
