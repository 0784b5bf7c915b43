"""Gradients of a convolution on the host: tables of both, and that of the data as convolutions.

The gradient of the data is a convolution itself. Of dx, the sites ``i = r + j * stride`` (one
residue r per axis) see dy at whole steps through every so-manieth tap:

    dx[i] = sum over taps t with (r + padding - t * dilation) divisible by stride of
            w[t] * dy[j + (r + padding - t * dilation) / stride]

These taps lie ``stride / gcd(stride, dilation)`` apart in w and ``dilation / gcd`` apart in dy: for
each residue an ordinary convolution of dy with some of w's taps, reversed, its channels exchanged.
What it takes for padding is no part of the sum: an infinite weight is not multiplied by its zeros.

Such a convolution gathers columns of cY channels. Where cX is much smaller, columns of cX channels
are scattered instead (`convolution_scatter`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ooc_cudnn.devices.host import convolution as host_convolution
from ooc_cudnn.devices.host import convolution_scatter as host_convolution_scatter
from ooc_cudnn.devices.host.chunks import Array, Inputs, Runner
from ooc_cudnn.devices.host.convolution_backward_filter import (
    backward_filter_workspace_bytes,
    convolution_backward_filter,
)
from ooc_cudnn.devices.host.linear import run_joined, sizing
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.gradients import (
    ConvolutionBackwardData,
    ConvolutionBackwardFilter,
)

#: Residues of dx from which on scattering is faster, as each gathers columns of its own.
MANY_RESIDUES = 16


class Residue(NamedTuple):
    """The sites of dx of one residue per axis, as a convolution of dy with some taps of w."""

    sites: tuple[slice, ...]
    taps: tuple[slice, ...]
    convolution: Convolution | None  #: none where no tap reaches these sites: dx is 0 there


def residues(forward: Convolution) -> Iterator[Residue]:
    """Cut the gradient of the data into convolutions of stride 1.

    Examples
    --------
    A window of 3 at stride 2: even sites see two taps, odd ones one.

    >>> forward = Convolution.of((1, 1, 6), (1, 1, 3), padding=1, stride=2)
    >>> [(each.sites[0].start, each.convolution.w_shape[2]) for each in residues(forward)]
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
                deterministic=forward.deterministic,
            )
        yield Residue(sites, taps, convolution)


def _axis(
    residue: int, extent: int, output: int, k: int, stride: int, before: int, dilation: int
) -> tuple[slice, slice, tuple[int, int], int]:
    """One axis of a residue: its sites of dx, its taps of w reversed, its padding and dilation."""
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
    """Scratch of the residue that needs most; they run one after the other."""
    if _scatters(operation.forward):
        return host_convolution_scatter.workspace_bytes(operation.forward)
    return max(
        (
            host_convolution.workspace_bytes(residue.convolution)
            for residue in residues(operation.forward)
            if residue.convolution is not None and 0 not in residue.convolution.output_shape
        ),
        default=0,
    )


def convolution_backward_data(
    operation: ConvolutionBackwardData, inputs: Inputs, output: Array, workspace: Array
) -> None:
    """Write dx."""
    w, dy = inputs
    if _scatters(operation.forward):
        host_convolution_scatter.scatter(operation.forward, w, dy, output, workspace)
    else:
        _by_residues(operation.forward, w, dy, output, workspace)


def _scatters(forward: Convolution) -> bool:
    """True if columns of cX channels are the cheaper ones."""
    c_x, c_y = forward.w_shape[1], forward.w_shape[0] // forward.groups
    return 4 * c_x <= c_y or math.prod(forward.stride) >= MANY_RESIDUES


def _by_residues(forward: Convolution, w: Array, dy: Array, dx: Array, workspace: Array) -> None:
    """Write dx, one convolution for each residue."""
    # (groups, cX, cY, taps) of each group: a view, which `convolve` copies to its workspace.
    exchanged = w.reshape(forward.groups, -1, *w.shape[1:]).swapaxes(1, 2)
    for residue in residues(forward):
        sites: tuple[Any, ...] = (..., *residue.sites)
        taps: tuple[Any, ...] = (..., *residue.taps)
        if residue.convolution is None:
            dx[sites] = 0
        else:
            host_convolution.convolve(
                residue.convolution,
                dy,
                exchanged[taps],
                dx[sites],
                workspace,
                padding_is_zeros=False,
            )


def _convolution(operation: Convolution, inputs: Inputs, output: Array, workspace: Array) -> None:
    """Write y."""
    x, w = inputs
    host_convolution.convolve(operation, x, w, output, workspace)


#: All three directions.
RUNNERS: dict[type, Runner] = {
    Convolution: run_joined(_convolution, filters=1),
    ConvolutionBackwardData: run_joined(convolution_backward_data, filters=0),
    ConvolutionBackwardFilter: run_joined(convolution_backward_filter, filters=2),
}
WORKSPACE: dict[type, Callable[[Any], int]] = {
    Convolution: sizing(host_convolution.workspace_bytes),
    ConvolutionBackwardData: sizing(backward_data_workspace_bytes),
    ConvolutionBackwardFilter: sizing(backward_filter_workspace_bytes),
}
