"""The gradient of a convolution's filter on the host: products ``dy . columns^T``, summed.

The columns are the forward's (im2col), gathered block by block of output sites. Each worker sums
its blocks in scratch memory of its own; the workers' sums are added at the end.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import numpy as np

from ooc_cudnn import interrupts
from ooc_cudnn.devices.helpers import helpers
from ooc_cudnn.devices.host import convolution as host_convolution
from ooc_cudnn.devices.host.chunks import Array, Inputs, arithmetic_dtype
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.gradients import ConvolutionBackwardFilter

#: Sites that one product sums over, at least: adding it to the sums must not outweigh making it.
LEAST_SITES = 256
#: Rows of a product that are made at a time are kept in the second-level cache until added.
TILE_BYTES = 2**19


class Scratch(NamedTuple):
    """Parts of the workspace of a filter's gradient; sizes in elements, per worker."""

    workers: int
    sites: int  #: output sites of one block
    rows: int  #: output channels of one product
    total: int  #: sums of the whole filter
    columns: int
    gradient: int  #: of y, for one block
    product: int

    @property
    def elements(self) -> int:
        return self.total + self.columns + self.gradient + self.product


def _scratch(forward: Convolution) -> Scratch | None:
    """Share out the workspace; None where nothing is summed."""
    outputs = forward.output_shape
    if min(outputs) < 1:
        return None
    item = arithmetic_dtype(forward.dtype).itemsize
    depth, per_group = math.prod(forward.w_shape[1:]), forward.w_shape[0] // forward.groups
    filters = math.prod(forward.w_shape)
    # Each worker sums a filter of its own: no more of them than the piece itself is large.
    piece = math.prod(forward.x_shape) + math.prod(outputs)
    workers = min(host_convolution._workers(forward), max(1, piece // filters))
    block = min(host_convolution.BLOCK_BYTES, item * piece // workers)
    sites = max(LEAST_SITES, block // (item * (depth + per_group)))
    sites = min(sites, math.prod(outputs[2:]))
    rows = max(1, min(per_group, TILE_BYTES // (item * depth)))
    return Scratch(
        workers, sites, rows, filters, depth * sites, per_group * sites, rows * depth
    )  # fmt: skip


def backward_filter_workspace_bytes(operation: ConvolutionBackwardFilter) -> int:
    """Scratch bytes: for each worker its sums, columns, block of dy and product."""
    scratch = _scratch(operation.forward)
    if scratch is None:
        return 0
    item = arithmetic_dtype(operation.forward.dtype).itemsize
    return item * scratch.workers * scratch.elements


def convolution_backward_filter(
    operation: ConvolutionBackwardFilter, inputs: Inputs, output: Array, workspace: Array
) -> None:
    """Write dw: blocks are dealt to workers in a fixed order, and their sums added in one too."""
    x, dy = inputs
    forward = operation.forward
    scratch = _scratch(forward)
    if scratch is None:
        output[...] = 0
        return
    dtype = arithmetic_dtype(forward.dtype)
    memory = workspace[: backward_filter_workspace_bytes(operation)].view(dtype)
    shares = memory.reshape(scratch.workers, scratch.elements)
    blocks = list(
        host_convolution._blocks(forward.output_shape[2:], scratch.sites, scratch.workers)
    )
    boxes = list(itertools.product(range(x.shape[0]), blocks))

    def work(at: int) -> None:
        _sum_boxes(forward, scratch, x, dy, boxes[at :: scratch.workers], shares[at])

    helpers.share(work, scratch.workers)
    total = shares[0, : scratch.total]
    for share in shares[1:]:
        total += share[: scratch.total]
    np.copyto(output, total.reshape(forward.w_shape), casting="unsafe")


@np.errstate(all="ignore")  # not inherited by other threads
def _sum_boxes(
    forward: Convolution,
    scratch: Scratch,
    x: Array,
    dy: Array,
    boxes: list[tuple[int, tuple[tuple[int, int], ...]]],
    memory: Array,
) -> None:
    """Add up ``dy . columns^T`` over some boxes of output sites, in scratch memory of its own."""
    groups, c_x = forward.groups, forward.w_shape[1]
    per_group, depth = forward.w_shape[0] // groups, math.prod(forward.w_shape[1:])
    borders = np.cumsum([scratch.total, scratch.columns, scratch.gradient])
    total, columns, gradient, product = np.split(memory, borders)
    total[...] = 0
    sums = total.reshape(groups, per_group, depth)
    for image, box in boxes:
        interrupts.hear()
        shape = tuple(stop - start for start, stop in box)
        count = math.prod(shape)
        gathered = columns[: depth * count].reshape(depth, count)
        seen = gradient[: per_group * count].reshape(per_group, count)
        window = tuple(slice(start, stop) for start, stop in box)
        for group in range(groups):
            host_convolution._gather(
                forward,
                x[image, group * c_x : (group + 1) * c_x],
                box,
                gathered.reshape(c_x, -1, *shape),
            )
            channels = slice(group * per_group, (group + 1) * per_group)
            inside: tuple[Any, ...] = (image, channels, *window)
            np.copyto(seen.reshape(per_group, *shape), dy[inside], casting="unsafe")
            for start in range(0, per_group, scratch.rows):
                part = seen[start : start + scratch.rows]
                result = product[: len(part) * depth].reshape(len(part), depth)
                np.matmul(part, gathered.T, out=result)
                sums[group, start : start + scratch.rows] += result
