"""Operations that engines compute, each in terms of a forward convolution."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.fused_forward import EPILOGUES, FusedConvolution
from ooc_cudnn.operations.convolution.gradients import (
    AddedBackwardData,
    AnyConvolution,
    ConvolutionBackwardData,
    ConvolutionBackwardFilter,
)


def _fused(mode: str, forward: Convolution, result: str) -> FusedConvolution:
    if result != forward.dtype:
        raise ValueError(f"the result of a convolution with its bias is {forward.dtype}")
    return FusedConvolution(forward, mode)


#: What makes an operation of its convolution, and the type of its result.
KINDS: Mapping[str, Callable[[Convolution, str], AnyConvolution]] = {
    Convolution.name: lambda forward, result: replace(forward, y_dtype=result),
    ConvolutionBackwardData.name: ConvolutionBackwardData,
    AddedBackwardData.name: AddedBackwardData,
    ConvolutionBackwardFilter.name: ConvolutionBackwardFilter,
    **{name: partial(_fused, mode) for mode, name in EPILOGUES.items()},
}
