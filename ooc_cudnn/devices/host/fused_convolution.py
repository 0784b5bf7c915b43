"""A convolution with its bias and activation on the host: one after the other, in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ooc_cudnn.devices.host import convolution_backward, elementwise
from ooc_cudnn.devices.host.chunks import Array, Inputs, Runner
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.fused_forward import FusedConvolution


def fused_convolution(
    operation: FusedConvolution, inputs: Inputs, output: Array, workspace: Array
) -> None:
    """Write y, and go over it once more."""
    x, w, b = inputs
    convolution_backward.RUNNERS[Convolution](operation.forward, (x, w), output, workspace)
    elementwise.pointwise(operation.after, (output, None, b, None), output, workspace)


RUNNERS: dict[type, Runner] = {FusedConvolution: fused_convolution}
WORKSPACE: dict[type, Callable[[Any], int]] = {
    FusedConvolution: lambda made: convolution_backward.WORKSPACE[Convolution](made.forward)
}
