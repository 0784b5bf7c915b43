"""MO-SOS's Tesla P40 with the algorithms that cuDNN 8 has for a convolution, as classes.

The paper names three of them for node v18 of VGG-19, with their workspace: implicit products of
matrices without any, the slowest; Winograd with about 6 MB; Winograd non-fused, the fastest, with
about 2 GB. It states no seconds. What is assumed of windows of 3 x 3, stride 1:

- **Implicit products**: the shipped profile's line. No workspace.
- **Winograd**, fused, in forward and of data: `WINOGRAD_FASTER` times as fast. Its workspace is the
  filters, transformed: of each of v18's 256 x 256 pairs of channels 24 numbers are 6.3 MB.
- **Winograd non-fused** F(4 x 4, 3 x 3), all three directions: a quarter of the multiplications at
  the line's rate; and what is transformed goes through memory, at the rate of a pass. 36 numbers
  for each 16 of x, and of y: they are written and read, and are its workspace, 2.2 GB of v18.

Other convolutions have implicit products alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache

from ooc_cudnn.devices.engines import MEASURED, Option, front
from ooc_cudnn.network.ir.step import Step
from ooc_cudnn.operations.convolution.gradients import (
    AnyConvolution,
    ConvolutionBackwardFilter,
    forward_of,
)
from ooc_cudnn.operations.core.launch import Buffer, Launch
from ooc_cudnn.tensor import ITEM_BYTES
from perfmodel import MachineModel, Work, shipped

MACHINE = "p40"
CARD_BYTES = 24 * 2**30
#: Of F(2 x 2, 3 x 3), which multiplies 2.25 times less, after its transforms. Assumed.
WINOGRAD_FASTER = 1.5
#: Numbers of a transformed filter, of the mixed tiles that 6 MB tell.
FILTER_NUMBERS = 24
#: Of F(4 x 4, 3 x 3): multiplications that are left, and numbers for each of x and y.
MULTIPLIED, TRANSFORMED = 1 / 4, 36 / 16

PRODUCTS, WINOGRAD, NON_FUSED = "implicit products", "Winograd", "Winograd non-fused"


@cache
def options(operation: AnyConvolution) -> tuple[Option, ...]:
    """The algorithms of a convolution that are worth having, the fastest first."""
    forward, work = forward_of(operation), operation.work()
    compute = shipped(MACHINE).compute
    seconds = compute.seconds(work)
    algorithms = [Option(seconds, 0, name=PRODUCTS)]
    windows, strides = forward.w_shape[2:], forward.stride
    if windows == (3, 3) and set(strides) == {1} and forward.groups == 1:
        item = ITEM_BYTES[forward.dtype]
        pairs = forward.w_shape[0] * forward.w_shape[1]
        if not isinstance(operation, ConvolutionBackwardFilter):
            fused = Option(seconds / WINOGRAD_FASTER, pairs * FILTER_NUMBERS * item, name=WINOGRAD)
            algorithms.append(fused)
        maps = (math.prod(forward.x_shape) + math.prod(forward.output_shape)) * item
        transformed = TRANSFORMED * maps
        line = compute.lines[compute.nearest_key(work.key)]
        passes = Work(f"pointwise/{forward.dtype}", 0.0, device_bytes=maps + 2 * transformed)
        took = MULTIPLIED * line.alpha * work.flops + compute.seconds(passes)
        algorithms.append(Option(took, int(transformed), name=NON_FUSED))
    return front(algorithms)


def machine(steps: Iterable[Step]) -> MachineModel:
    """The card with the fastest algorithm of every convolution of some steps, whatever its size."""
    model = shipped(MACHINE)
    factors = dict[str, float]()
    for step in steps:
        for phase in step.phases:
            call = phase.call
            orders = dict.fromkeys(call.operands, "channels_first")
            for sweep in range(call.sweeps):
                launches, _ = call.launches(
                    call.whole_piece(sweep), layout="channels_first", orders=orders
                )
                for launch in launches:
                    operation = launch.operation
                    if isinstance(operation, AnyConvolution):
                        work = operation.work()
                        fastest = options(operation)[0].seconds
                        factors[work.kind] = fastest / model.compute.seconds(work)
    return replace(model, compute=model.compute.corrected(factors))


def ask(
    launches: Sequence[tuple[Launch, Mapping[str, Buffer]]], budget_bytes: int | None
) -> tuple[int, tuple[str, ...]] | None:
    """`Device.workspace`: of each convolution the fastest algorithm that fits, as measured."""
    needed, names = 0, dict[str, None]()
    for launch, _ in launches:
        if isinstance(launch.operation, AnyConvolution):
            fitting = (
                each
                for each in options(launch.operation)
                if budget_bytes is None or each.workspace_bytes <= budget_bytes
            )
            taken = next(fitting)
            needed = max(needed, taken.workspace_bytes)
            names[taken.name + MEASURED] = None
    return needed, tuple(names)
