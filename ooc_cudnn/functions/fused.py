"""The paper's fused functions: several operations on one residence of each piece."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ooc_cudnn.functions.arguments import (
    channel_vector,
    check_dtype,
    check_shape,
    check_vector,
    make_convolution,
    remember,
    scalar,
    shape_of,
)
from ooc_cudnn.functions.call import call
from ooc_cudnn.functions.description import Description
from ooc_cudnn.operations.activation import Activation, check_mode
from ooc_cudnn.operations.activation_backward import needs_x
from ooc_cudnn.operations.base import Operation
from ooc_cudnn.operations.bias import AddTensor
from ooc_cudnn.operations.chain import Chain
from ooc_cudnn.operations.fused_backward import FusedBackward
from ooc_cudnn.operations.pooling import Pooling
from ooc_cudnn.settings_table import Settings
from ooc_cudnn.tensor import TensorSpec
from ooc_cudnn.types import Array, ChannelVector, Filters, Padding, Sizes


def convolution_add_activation_pooling_forward(
    x: Array,
    w: Filters,
    b: ChannelVector,
    *,
    window: Sizes,
    activation: str = "relu",
    coef: float | None = None,
    padding: Padding = 0,
    stride: Sizes = 1,
    dilation: Sizes = 1,
    groups: int = 1,
    mode: str = "max",
    pooling_padding: Padding = 0,
    pooling_stride: Sizes | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Array | None = None,
) -> Any:
    """Convolution, bias, activation and pooling on one residence of each piece.

    ``out = alpha * pooling(activation(convolution(x, w) + b)) + beta * out``

    Parameters
    ----------
    x, w, b, activation, coef, padding, stride, dilation, groups
        As for `convolution_add_activation_forward`.
    window, mode, pooling_padding, pooling_stride
        As `window`, `mode`, `padding` and `stride` of `pooling_forward`.
    alpha, beta, out
        As for `convolution_forward`.

    Returns
    -------
    array
        As for `convolution_forward`, of the pooled shape.

    Raises
    ------
    TypeError, ValueError, PlanInfeasibleError, DeviceOutOfMemoryError
        As for `convolution_forward`.

    Notes
    -----
    Source: section 5 of the ooc_cuDNN paper. Where windows of pooling overlap, the rows that two
    pieces share stay on the device.

    Examples
    --------
    >>> import numpy as np, ooc_cudnn
    >>> x, w = np.ones((1, 1, 4, 4), "float32"), np.ones((2, 1, 3, 3), "float32")
    >>> with ooc_cudnn.settings(device="host", machine="host"):
    ...     y = ooc_cudnn.convolution_add_activation_pooling_forward(
    ...         x, w, np.float32([1, -10]), window=2)
    >>> y[:, :, 0, 0].tolist()
    [[10.0, 0.0]]
    """
    description = describe_pooling_forward(
        x, w, b, window, activation, coef, padding, stride, dilation, groups, mode,
        pooling_padding, pooling_stride, alpha, beta,
    )  # fmt: skip
    return call(description, out)


def describe_pooling_forward(
    x: Any,
    w: Any,
    b: Any,
    window: Any,
    activation: Any,
    coef: Any,
    padding: Any,
    stride: Any,
    dilation: Any,
    groups: Any,
    mode: Any,
    pooling_padding: Any,
    pooling_stride: Any,
    alpha: Any,
    beta: Any,
) -> Description:
    """Describe a `convolution_add_activation_pooling_forward`, to be run or planned."""
    geometry = (padding, stride, dilation, groups)
    pooled = {"window": window, "mode": mode, "padding": pooling_padding, "stride": pooling_stride}
    alpha, beta = scalar(alpha, "alpha"), scalar(beta, "beta")
    function, coef = check_mode(activation, coef, name="activation")
    b = channel_vector(b, "b", len(shape_of(x)))

    def build(specs: Mapping[str, TensorSpec], settings: Settings) -> Chain:
        convolution = make_convolution(specs["x"], specs["w"], geometry, settings)
        shape, dtype = convolution.output_shape, convolution.dtype
        check_vector(specs, "b", shape[1], dtype, "the result")
        operations: tuple[Operation, ...] = (
            convolution,
            AddTensor(shape, dtype),
            Activation(shape, function, coef, dtype),
            Pooling.of(shape, dtype=dtype, prefix="pooling_", **pooled),
        )
        return Chain(operations, dtype, alpha, beta)

    return Description(
        "convolution_add_activation_pooling_forward",
        build,
        {"x": x, "w": w, "b": b},
        remember(geometry, pooled, function, coef, alpha, beta),
        beta,
    )


def convolution_add_activation_backward(
    x: Array,
    w: Filters,
    y: Array,
    dy: Array,
    *,
    activation: str = "relu",
    coef: float | None = None,
    padding: Padding = 0,
    stride: Sizes = 1,
    dilation: Sizes = 1,
    groups: int = 1,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Array | Sequence[Array | None] | None = None,
) -> Any:
    """All three gradients of convolution, bias and activation; x, y and dy are read once.

    Parameters
    ----------
    x, w : array
        Data and filters of the forward function.
    y, dy : array, shape (n, cY, spatial...)
        Its result, and the gradient of that; same dtype, any placement and strides.
    activation, coef, padding, stride, dilation, groups
        Of the forward function, as for `convolution_add_activation_forward`. Not swish or gelu, nor
        elu or leaky_relu with a negative coef: y does not tell their slope.
    alpha, beta : float
        ``result = alpha * gradient + beta * result``, for all three; beta needs all of `out`.
    out : tuple (dx, dw, db), optional
        Where to write; None for what is to be new.

    Returns
    -------
    dx, dw, db : array
        Of the shapes of x and w, and (cY,); placed as dy is where `out` gives none.

    Raises
    ------
    TypeError, ValueError, PlanInfeasibleError, DeviceOutOfMemoryError
        As for `convolution_forward`.

    Notes
    -----
    Source: section 5 of the ooc_cuDNN paper; cudnnActivationBackward, cudnnConvolutionBackwardData,
    cudnnConvolutionBackwardFilter and cudnnConvolutionBackwardBias. Cut along n and hY; the filter
    and its gradient stay on the device, whole.

    Examples
    --------
    >>> import numpy as np, ooc_cudnn
    >>> x, w = np.ones((1, 1, 4, 4), "float32"), np.ones((2, 1, 3, 3), "float32")
    >>> y = dy = np.ones((1, 2, 2, 2), "float32")
    >>> with ooc_cudnn.settings(device="host", machine="host"):
    ...     dx, dw, db = ooc_cudnn.convolution_add_activation_backward(x, w, y, dy)
    >>> float(dx[0, 0, 1, 1]), float(dw[0, 0, 0, 0]), db.tolist()
    (8.0, 4.0, [4.0, 4.0])
    """
    description = describe_backward(
        x, w, y, dy, activation, coef, padding, stride, dilation, groups, alpha, beta
    )
    return call(description, out)


def describe_backward(
    x: Any,
    w: Any,
    y: Any,
    dy: Any,
    activation: Any,
    coef: Any,
    padding: Any,
    stride: Any,
    dilation: Any,
    groups: Any,
    alpha: Any,
    beta: Any,
) -> Description:
    """Describe a `convolution_add_activation_backward`, to be run or planned."""
    geometry = (padding, stride, dilation, groups)
    alpha, beta = scalar(alpha, "alpha"), scalar(beta, "beta")
    mode, coef = check_mode(activation, coef, name="activation")
    if needs_x(mode, coef):
        raise ValueError(
            f"activation={mode!r} with coef={coef} has a slope that y does not tell; use "
            "activation_backward, which takes x, and the gradients of the convolution"
        )

    def build(specs: Mapping[str, TensorSpec], settings: Settings) -> FusedBackward:
        forward = make_convolution(specs["x"], specs["w"], geometry, settings)
        for name in ("y", "dy"):
            check_shape(specs, name, forward.output_shape, "what x and w give with these arguments")
            check_dtype(specs, "x", name)
        return FusedBackward(forward, mode, coef, alpha, beta)

    return Description(
        "convolution_add_activation_backward",
        build,
        {"x": x, "w": w, "y": y, "dy": dy},
        remember(geometry, mode, coef, alpha, beta),
        beta,
        ("dx", "dw", "db"),
    )


DESCRIBED: dict[str, tuple[Callable[..., Any], Callable[..., Description]]] = {
    "convolution_add_activation_pooling_forward": (
        convolution_add_activation_pooling_forward,
        describe_pooling_forward,
    ),
    "convolution_add_activation_backward": (
        convolution_add_activation_backward,
        describe_backward,
    ),
}
