"""Gradients of a convolution on the host, both as matrix products of the forward's columns.

The gradient of the data is a convolution itself. Of dx, the sites ``i = r + j * stride`` (one
residue r per axis) see dy at whole steps through every so-manieth tap:

    dx[i] = sum over taps t with (r + padding - t * dilation) divisible by stride of
            w[t] * dy[j + (r + padding - t * dilation) / stride]

These taps lie ``stride / gcd(stride, dilation)`` apart in w and ``dilation / gcd`` apart in dy: for
each residue an ordinary convolution of dy with some of w's taps, reversed, its channels exchanged.

The gradient of the filter sums products ``dy . columns^T`` over blocks of output sites.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from typing import Any, NamedTuple

import numpy as np

from ooc_cudnn.devices import host_convolution
from ooc_cudnn.devices.blas import one_thread
from ooc_cudnn.devices.host_chunks import Array, Runner, arithmetic_dtype
from ooc_cudnn.operations.convolution import Convolution
from ooc_cudnn.operations.convolution_backward import (
    ConvolutionBackwardData,
    ConvolutionBackwardFilter,
)

Inputs = tuple[Array | None, ...]

# The gradient of the data ------------------------------------------------------------------------


class Part(NamedTuple):
    """The sites of dx of one residue per axis, as a convolution of dy with some taps of w."""

    sites: tuple[slice, ...]
    taps: tuple[slice, ...]
    convolution: Convolution | None  #: none where no tap reaches these sites: dx is 0 there


def parts(forward: Convolution) -> Iterator[Part]:
    """Cut the gradient of the data into convolutions of stride 1.

    Examples
    --------
    A window of 3 at stride 2: even sites see two taps, odd ones one.

    >>> forward = Convolution.of((1, 1, 6), (1, 1, 3), padding=1, stride=2)
    >>> [(part.sites[0].start, part.convolution.w_shape[2]) for part in parts(forward)]
    [(0, 1), (1, 2)]
    """
    extents, outputs = forward.x_shape[2:], forward.output_shape[2:]
    per_axis = [
        [
            axis
            for residue in range(min(stride, extent))
            for axis in [_axis(residue, extent, output, k, stride, before, dilation)]
        ]
        for extent, output, k, stride, (before, _), dilation in zip(
            extents,
            outputs,
            forward.w_shape[2:],
            forward.stride,
            forward.padding,
            forward.dilation,
            strict=True,
        )
    ]
    n, c_y = forward.x_shape[0], forward.w_shape[0]
    for axes in itertools.product(*per_axis):
        sites, taps = tuple(axis[0] for axis in axes), tuple(axis[1] for axis in axes)
        window = tuple(
            len(range(*tap.indices(k))) if tap.step else 0
            for tap, k in zip(taps, forward.w_shape[2:], strict=True)
        )
        convolution = None
        if min(outputs) > 0 and 0 not in window:
            convolution = Convolution(
                (n, c_y, *outputs),
                (forward.x_shape[1], c_y // forward.groups, *window),
                tuple(axis[2] for axis in axes),
                (1,) * len(axes),
                tuple(axis[3] for axis in axes),
                forward.groups,
                forward.dtype,
            )
        yield Part(sites, taps, convolution)


def _axis(
    residue: int, extent: int, output: int, k: int, stride: int, before: int, dilation: int
) -> tuple[slice, slice, tuple[int, int], int]:
    """One axis of a part: its sites of dx, its taps of w reversed, its padding and dilation."""
    sites = slice(residue, extent, stride)
    common = math.gcd(stride, dilation)
    step, spacing = stride // common, dilation // common
    reach = residue + before
    first = next((t for t in range(min(k, step)) if (reach - t * dilation) % stride == 0), None)
    if first is None:
        return sites, slice(0, 0), (0, 0), 1
    count = (k - 1 - first) // step + 1
    last = first + (count - 1) * step
    ahead = -((reach - last * dilation) // stride)
    behind = len(range(residue, extent, stride)) - output - ahead + (count - 1) * spacing
    return sites, slice(last, first - 1 if first else None, -step), (ahead, behind), spacing


def backward_data_workspace_bytes(operation: ConvolutionBackwardData) -> int:
    """Scratch of the part that needs most; they run one after the other."""
    return max(
        (
            host_convolution.workspace_bytes(part.convolution)
            for part in parts(operation.forward)
            if part.convolution is not None and 0 not in part.convolution.output_shape
        ),
        default=0,
    )


def convolution_backward_data(
    operation: ConvolutionBackwardData, inputs: Inputs, output: Array, workspace: Array
) -> None:
    """Write dx, residue by residue."""
    w, dy = inputs
    assert w is not None
    assert dy is not None
    forward = operation.forward
    # (groups, cX, cY, taps) of each group: a view, which `convolve` copies to its workspace.
    exchanged = w.reshape(forward.groups, -1, *w.shape[1:]).swapaxes(1, 2)
    for part in parts(forward):
        sites: tuple[Any, ...] = (..., *part.sites)
        taps: tuple[Any, ...] = (..., *part.taps)
        if part.convolution is None:
            output[sites] = 0
            continue
        with one_thread():
            host_convolution.convolve(
                part.convolution, dy, exchanged[taps], output[sites], workspace
            )


# The gradient of the filter ----------------------------------------------------------------------

#: Sites that one product sums over, at least: adding it to the sums must not outweigh making it.
LEAST_SITES = 256
#: Rows of a product that are made at a time are kept in the second-level cache until added.
TILE_BYTES = 2**19


class Scratch(NamedTuple):
    """How the workspace of a filter's gradient is shared out; sizes in elements, per worker."""

    workers: int
    sites: int  #: output sites of one block
    rows: int  #: output channels of one product
    total: int  #: sums of the whole filter
    columns: int
    gradient: int  #: of y, for one block
    product: int

    @property
    def elements(self) -> int:
        """Elements of one worker."""
        return self.total + self.columns + self.gradient + self.product


def _scratch(forward: Convolution) -> Scratch | None:
    """Share out the workspace; None where nothing is summed."""
    outputs = forward.output_shape
    if min(outputs) < 1 or 0 in forward.x_shape:
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
    assert x is not None
    assert dy is not None
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

    with one_thread():
        others = [host_convolution._pool().submit(work, at) for at in range(1, scratch.workers)]
        try:
            work(0)
        finally:
            wait(others)  # no thread may touch the arena once this returns, even after an error
        for future in others:
            future.result()
    total = shares[0, : scratch.total]
    for share in shares[1:]:
        total += share[: scratch.total]
    np.copyto(output, total.reshape(forward.w_shape), casting="unsafe")


@np.errstate(all="ignore")  # not inherited by the pool's threads
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


RUNNERS: dict[type, Runner] = {
    ConvolutionBackwardData: convolution_backward_data,
    ConvolutionBackwardFilter: convolution_backward_filter,
}
WORKSPACE: dict[type, Callable[[Any], int]] = {
    ConvolutionBackwardData: backward_data_workspace_bytes,
    ConvolutionBackwardFilter: backward_filter_workspace_bytes,
}
