"""A convolution with its bias and activation, or a gradient added to another one, on the host.

One after the other: in place, or by way of the workspace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ooc_cudnn.devices.host import convolution_backward, elementwise
from ooc_cudnn.devices.host.chunks import Array, Inputs, Runner
from ooc_cudnn.memory.alignment import align
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.fused_forward import FusedConvolution
from ooc_cudnn.operations.convolution.gradients import AddedBackwardData, ConvolutionBackwardData
from ooc_cudnn.tensor import DTYPES, packed_strides


def fused_convolution(
    operation: FusedConvolution, inputs: Inputs, output: Array, workspace: Array
) -> None:
    """Write y, and go over it once more."""
    x, w, b = inputs
    convolution_backward.RUNNERS[Convolution](operation.forward, (x, w), output, workspace)
    elementwise.pointwise(operation.after, (output, None, b, None), output, workspace)


def added_backward_data(
    operation: AddedBackwardData, inputs: Inputs, output: Array, workspace: Array
) -> None:
    """Write dx to the workspace, and add it to the other gradient."""
    w, dy, addend = inputs
    alone, nbytes = operation.alone, operation.alone_bytes
    dtype = alone.result_dtype
    steps = packed_strides(output.shape, operation.forward.layout)
    strides = [step * DTYPES[dtype] for step in steps]
    dx: Array = np.ndarray(output.shape, dtype, workspace[:nbytes], strides=strides)
    run = convolution_backward.RUNNERS[ConvolutionBackwardData]
    run(alone, (w, dy), dx, workspace[align(nbytes) :])
    elementwise.pointwise(operation.after, (dx, None, None, addend), output, workspace)


def _added_workspace_bytes(operation: AddedBackwardData) -> int:
    ask = convolution_backward.WORKSPACE[ConvolutionBackwardData]
    return align(operation.alone_bytes) + ask(operation.alone)


RUNNERS: dict[type, Runner] = {
    FusedConvolution: fused_convolution,
    AddedBackwardData: added_backward_data,
}
WORKSPACE: dict[type, Callable[[Any], int]] = {
    FusedConvolution: lambda made: convolution_backward.WORKSPACE[Convolution](made.forward),
    AddedBackwardData: _added_workspace_bytes,
}
