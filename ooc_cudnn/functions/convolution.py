"""The convolution functions: thin. Each checks nothing but what its chain cannot know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ooc_cudnn.functions.arguments import (
    channel_vector,
    check_vector,
    make_convolution,
    remember,
    scalar,
    shape_of,
)
from ooc_cudnn.functions.call import call
from ooc_cudnn.functions.description import Description
from ooc_cudnn.operations.activation import Activation, check_mode
from ooc_cudnn.operations.base import Operation
from ooc_cudnn.operations.bias import AddTensor
from ooc_cudnn.operations.chain import Chain
from ooc_cudnn.settings_table import Settings
from ooc_cudnn.tensor import TensorSpec
from ooc_cudnn.types import Array, ChannelVector, Filters, Padding, Sizes


def convolution_forward(
    x: Array,
    w: Filters,
    *,
    padding: Padding = 0,
    stride: Sizes = 1,
    dilation: Sizes = 1,
    groups: int = 1,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Array | None = None,
) -> Any:
    """Cross-correlate x with the filters w, in pieces if they do not fit the device.

    Parameters
    ----------
    x : array, shape (n, cX, spatial...)
        One to three spatial axes; float16, bfloat16, float32 or float64; any placement and strides.
    w : array, shape (cY, cX / groups, window...)
        Same dtype.
    padding : int, one per spatial axis, or a (before, after) pair per axis
        Zeros around x.
    stride, dilation : int or one per spatial axis
    groups : int
        Divides cX and cY.
    alpha, beta : float
        ``out = alpha * result + beta * out``; beta needs `out`.
    out : array, shape (n, cY, spatial...), optional
        Where to write: any placement, a `numpy.memmap` too; may not overlap x or w.

    Returns
    -------
    array
        `out` if given. Else on the host for a host x, by `empty`'s rule for a device x; in the
        memory order of x; a PyTorch tensor for a PyTorch x.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, its value and the rule.
    PlanInfeasibleError
        If the memory limit admits no plan, with the smallest that would.
    DeviceOutOfMemoryError
        If the driver has less memory than the limit promised.

    Notes
    -----
    Source: cudnnConvolutionForward (CUDNN_CROSS_CORRELATION); the splitting is section 3 of the
    ooc_cuDNN paper.

    Examples
    --------
    >>> import numpy as np, ooc_cudnn
    >>> x, w = np.ones((2, 3, 8, 8), "float32"), np.ones((4, 3, 3, 3), "float32")
    >>> with ooc_cudnn.settings(device="host", machine="host"):
    ...     y = ooc_cudnn.convolution_forward(x, w, padding=1)
    >>> y.shape, float(y[0, 0, 4, 4]), float(y[0, 0, 0, 0])
    ((2, 4, 8, 8), 27.0, 12.0)
    """
    return call(describe_forward(x, w, padding, stride, dilation, groups, alpha, beta), out)


def describe_forward(
    x: Any, w: Any, padding: Any, stride: Any, dilation: Any, groups: Any, alpha: Any, beta: Any
) -> Description:
    """Describe a `convolution_forward`, to be run or planned."""
    geometry = (padding, stride, dilation, groups)
    alpha, beta = scalar(alpha, "alpha"), scalar(beta, "beta")

    def build(specs: Mapping[str, TensorSpec], settings: Settings) -> Chain:
        convolution = make_convolution(specs["x"], specs["w"], geometry, settings)
        return Chain((convolution,), convolution.dtype, alpha, beta)

    arrays = {"x": x, "w": w}
    return Description("convolution_forward", build, arrays, remember(geometry, alpha, beta), beta)


def convolution_add_activation_forward(
    x: Array,
    w: Filters,
    b: ChannelVector,
    *,
    activation: str = "relu",
    coef: float | None = None,
    padding: Padding = 0,
    stride: Sizes = 1,
    dilation: Sizes = 1,
    groups: int = 1,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Array | None = None,
) -> Any:
    """Convolution, bias and activation on one residence of each piece: the paper's fused function.

    ``out = alpha * activation(convolution(x, w) + b) + beta * out``

    Parameters
    ----------
    x, w, padding, stride, dilation, groups, alpha, beta, out
        As for `convolution_forward`.
    b : array, shape (cY,) or (1, cY, 1...)
        Bias, one value per output channel, x's dtype.
    activation : str
        relu, clipped_relu, elu, sigmoid, tanh, swish, gelu, leaky_relu or identity.
    coef : float, optional
        Ceiling of clipped_relu (6), alpha of elu (1), beta of swish (1), negative slope of
        leaky_relu (0.01).

    Returns
    -------
    array
        As for `convolution_forward`.

    Raises
    ------
    TypeError, ValueError, PlanInfeasibleError, DeviceOutOfMemoryError
        As for `convolution_forward`.

    Notes
    -----
    Source: cudnnConvolutionBiasActivationForward; section 5 of the ooc_cuDNN paper. NaN propagates
    through every activation (CUDNN_PROPAGATE_NAN).

    Examples
    --------
    >>> import numpy as np, ooc_cudnn
    >>> x, w = np.ones((1, 1, 4, 4), "float32"), np.ones((2, 1, 3, 3), "float32")
    >>> with ooc_cudnn.settings(device="host", machine="host"):
    ...     y = ooc_cudnn.convolution_add_activation_forward(x, w, np.float32([1, -10]))
    >>> y[0, :, 0, 0].tolist()
    [10.0, 0.0]
    """
    return call(
        describe_add_activation_forward(
            x, w, b, activation, coef, padding, stride, dilation, groups, alpha, beta
        ),
        out,
    )


def describe_add_activation_forward(
    x: Any,
    w: Any,
    b: Any,
    activation: Any,
    coef: Any,
    padding: Any,
    stride: Any,
    dilation: Any,
    groups: Any,
    alpha: Any,
    beta: Any,
) -> Description:
    """Describe a `convolution_add_activation_forward`, to be run or planned."""
    geometry = (padding, stride, dilation, groups)
    alpha, beta = scalar(alpha, "alpha"), scalar(beta, "beta")
    mode, coef = check_mode(activation, coef, name="activation")
    b = channel_vector(b, "b", len(shape_of(x)))

    def build(specs: Mapping[str, TensorSpec], settings: Settings) -> Chain:
        convolution = make_convolution(specs["x"], specs["w"], geometry, settings)
        shape, dtype = convolution.output_shape, convolution.dtype
        check_vector(specs, "b", shape[1], dtype, "the result")
        operations: tuple[Operation, ...] = (
            convolution,
            AddTensor(shape, dtype),
            Activation(shape, mode, coef, dtype),
        )
        return Chain(operations, dtype, alpha, beta)

    return Description(
        "convolution_add_activation_forward",
        build,
        {"x": x, "w": w, "b": b},
        remember(geometry, mode, coef, alpha, beta),
        beta,
    )


#: Each public function, and what describes its call: with the same parameters, less `out`.
DESCRIBED: dict[str, tuple[Callable[..., Any], Callable[..., Description]]] = {
    "convolution_forward": (convolution_forward, describe_forward),
    "convolution_add_activation_forward": (
        convolution_add_activation_forward,
        describe_add_activation_forward,
    ),
}
