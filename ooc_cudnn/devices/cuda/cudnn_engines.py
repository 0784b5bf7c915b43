"""Selection of cuDNN's engines for an operation: the settings' demands, and known faults.

The faults were found with cuDNN 9.19 on an H200, by running every engine of 133 small convolutions
and their gradients in every dtype and layout against float64, results and workspace filled with
NaN, and by drawn calls (`tests/fuzz`). Some of these engines were ranked first. Engine numbers mean
something per direction only.
"""

from __future__ import annotations

import math
from typing import Any

from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.gradients import (
    AnyConvolution,
    ConvolutionBackwardData,
    ConvolutionBackwardFilter,
    forward_of,
    without_epilogue,
)
from ooc_cudnn.tensor import DTYPES

#: Take what lies before an axis for what lies after it, too: wrong where the two differ, and some
#: write outside the result.
_SYMMETRIC_ONLY: dict[type, tuple[str, ...]] = {
    Convolution: (),
    ConvolutionBackwardData: ("eng50",),
    ConvolutionBackwardFilter: ("eng1", "eng18", "eng20"),
}
#: One channel a group; the same along the last axis alone, for every image but the first. That of
#: the filter gradient is wrong on one spatial axis of 29 elements and more, by a third of the sums.
_SYMMETRIC_LAST_AXIS_ONLY: dict[type, tuple[str, ...]] = {
    Convolution: ("eng5",),
    ConvolutionBackwardData: ("eng6",),
    ConvolutionBackwardFilter: ("eng16",),
}
#: Compiled at run time. In channels-first order it turns its tensors round in the workspace and
#: reads what it did not write there where a channel is no multiple of 16 bytes.
_WHOLE_ACCESSES_ONLY: dict[type, str] = {
    Convolution: "eng71",
    ConvolutionBackwardData: "eng78",
    ConvolutionBackwardFilter: "eng70",
}
_ACCESS_BYTES = 16
#: Coarser sums than the notes say. Winograd's transforms of the filter gradient: in strict float32
#: errors of 4e-4 for windows of 5, as in TF32, 50 times those of other engines for windows of 3.
#: A data gradient of half types whose errors are a fifth of a rounding of all its products.
_COARSE_STRICT: dict[type, str] = {ConvolutionBackwardFilter: "eng17"}
_COARSE_HALF: dict[type, str] = {ConvolutionBackwardData: "eng2"}


def is_faulty(engine: str, operation: AnyConvolution) -> bool:
    """True if an engine, by the name of one of its plans, is known to compute an operation wrongly.

    >>> depthwise = Convolution.of((2, 1, 5), (1, 1, 3), padding=((1, 0),))
    >>> is_faulty("eng5_k1=2", depthwise), is_faulty("eng50", depthwise)
    (True, False)
    >>> is_faulty("eng20_k2=6", ConvolutionBackwardFilter(depthwise, "float32"))
    True
    >>> is_faulty("eng16", ConvolutionBackwardFilter(depthwise, "float32"))
    True
    >>> half = Convolution.of((2, 8, 5, 5), (8, 8, 3, 3), dtype="float16")
    >>> is_faulty("eng2_k2=1_k3=0", ConvolutionBackwardData(half, "float16"))
    True
    """
    number, direction = engine.split("_")[0], type(without_epilogue(operation))
    forward = forward_of(operation)
    before, after = forward.padding[-1]
    if before != after and number in _SYMMETRIC_LAST_AXIS_ONLY[direction]:
        return True
    if number in _SYMMETRIC_ONLY[direction] and any(a != b for a, b in forward.padding):
        return True
    if number == _WHOLE_ACCESSES_ONLY[direction] and forward.layout == "channels_first":
        return any(
            math.prod(shape[2:]) * DTYPES[forward.dtype] % _ACCESS_BYTES
            for shape in (forward.x_shape, forward.output_shape)
        )
    if number == _COARSE_HALF.get(direction) and DTYPES[forward.dtype] == 2:
        return True
    return number == _COARSE_STRICT.get(direction) and is_strict(operation)


def is_strict(operation: AnyConvolution) -> bool:
    """True if the sums must be true float32."""
    forward = forward_of(operation)
    return forward.dtype == "float32" and not forward.allow_tf32


def forbidden_notes(cudnn: Any, operation: AnyConvolution, *, measured: bool = False) -> list[Any]:
    """Numerical notes whose engines must not be used.

    Those of FFT are the most exact for strict float32 (cuDNN 9.19: errors of 3e-7 to 6e-7 where the
    direct ones have 1e-6 to 2e-6), and take workspace: they are used where they were `measured`.
    """
    notes = cudnn.numerical_note
    forbidden = []
    if is_strict(operation):
        forbidden += [
            notes.TENSOR_CORE,
            notes.DOWN_CONVERT_INPUTS,
            notes.REDUCED_PRECISION_REDUCTION,
        ]
        if not measured:
            forbidden.append(notes.FFT)
    elif not isinstance(without_epilogue(operation), Convolution):
        # Sums by atomics in half types: several times the error of rounding once, never fastest.
        forbidden.append(notes.REDUCED_PRECISION_REDUCTION)
    if forward_of(operation).deterministic:
        forbidden.append(notes.NONDETERMINISTIC)
    return forbidden
