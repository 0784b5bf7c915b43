"""The layouts of a chain's windows: where these should differ, and what one throughout would take.

Seconds are those of the machine model, by what was measured of each launch where that is known
(`devices.engines.Tables`); a re-layout is a pass over memory. Passes over single elements take any
layout, so each lies as the window before it does.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from ooc_cudnn.operations.chain import Chain
from ooc_cudnn.operations.chain_builder import SEPARATOR
from ooc_cudnn.operations.convolution import Convolution
from ooc_cudnn.operations.pointwise import Relayout
from ooc_cudnn.operations.transposed_convolution import TransposedConvolution
from ooc_cudnn.pricing.layouts import Step, cheapest, throughout
from ooc_cudnn.pricing.request import Request
from perfmodel import Work

#: Layouts differ within a chain where computing takes this share of what one throughout takes.
WORTH_DIFFERING = 0.98


def differ(request: Request) -> bool:
    """Whether a call has windows whose layouts may differ."""
    chain = request.chain
    return isinstance(chain, Chain) and len(chain.windows) > 1 and len(request.layouts) > 1


def steps_of(request: Request) -> list[Step]:
    """A chain's windows, uncut, in each of the request's layouts; and its result, where it lies."""
    chain, compute, layouts = request.chain, request.machine.compute, request.layouts
    assert isinstance(chain, Chain)

    def step(name: str, shape: tuple[int, ...], seconds: dict[str, float]) -> Step:
        moved = 0.0 if len(shape) < 3 else compute.seconds(Relayout(shape, chain.dtype).work())
        return Step(name, seconds, dict.fromkeys(itertools.permutations(layouts, 2), moved))

    found = []
    for at in chain.windows:
        operation = chain.operations[at]
        seconds = {layout: compute.seconds(_work(operation, layout)) for layout in layouts}
        found.append(step(f"{operation.name} {at}", operation.input_shape, seconds))
    shape = chain.operations[-1].output_shape
    return [*found, step("y", shape, {dict(request.orders)["y"]: 0.0})]


def _work(operation: Any, layout: str) -> Work:
    """What a window costs in a layout."""
    if isinstance(operation, Convolution):
        return replace(operation, layout=layout).work()
    if isinstance(operation, TransposedConvolution):
        return operation.launched(layout, operation.dtype).work()
    work: Work = operation.work()
    return work


def with_differing(request: Request) -> tuple[str, ...]:
    """Return the layouts to plan in: those of the request, and a sequence where it takes less.

    That is the cheapest sequence of layouts over the windows, joined by `SEPARATOR`.
    """
    if not differ(request):
        return request.layouts
    steps, arrives = steps_of(request), dict(request.orders)["x"]
    path = cheapest(steps, arrives)
    if path.seconds > WORTH_DIFFERING * min(throughout(steps, arrives).values()):
        return request.layouts
    return (*request.layouts, SEPARATOR.join(path.layouts[:-1]))
