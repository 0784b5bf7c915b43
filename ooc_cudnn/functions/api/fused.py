"""The paper's fused functions: several operations while each piece is on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ooc_cudnn.functions.call.arguments import (
    channel_vector,
    check_dtype,
    check_shape,
    check_vector,
    make_convolution,
    shape_of,
)
from ooc_cudnn.functions.call.decorator import public
from ooc_cudnn.functions.call.spec import Description, Specs
from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.operations.convolution.fused_gradients import FusedGradientCall
from ooc_cudnn.operations.core.activation_modes import needs_x
from ooc_cudnn.operations.core.operation import Operation
from ooc_cudnn.operations.elementwise.activation import Activation, check_mode, coef_in
from ooc_cudnn.operations.elementwise.binary import AddTensor
from ooc_cudnn.operations.pooling.forward import Pooling
from ooc_cudnn.settings_table import Settings
from ooc_cudnn.types import Array, ChannelVector, Filters, Padding, Sizes


@public
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
) -> Description:
    """Convolution, bias and activation, piece by piece in one go: the paper's fused function.

    ``out = alpha * activation(convolution(x, w) + b) + beta * out``

    Parameters
    ----------
    x, w, padding, stride, dilation, groups, alpha, beta, out
        As for `convolution_forward`.
    b : array, shape (cY,) or (1, cY, 1...)
        Bias, one value per output channel, x's dtype.
    activation, coef
        As mode and coef of `activation_forward`.

    Returns
    -------
    array
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
    geometry = (padding, stride, dilation, groups)
    return _forward(x, w, b, geometry, (activation, coef), None, alpha, beta, out)


@public
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
) -> Description:
    """Convolution, bias, activation and pooling piece by piece in one go.

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
    geometry = (padding, stride, dilation, groups)
    pooled = {"window": window, "mode": mode, "padding": pooling_padding, "stride": pooling_stride}
    return _forward(x, w, b, geometry, (activation, coef), pooled, alpha, beta, out)


@public
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
) -> Description:
    """All three gradients of convolution, bias and activation; x, y and dy are read once.

    Parameters
    ----------
    x, w : array
        Data and filters of the forward function.
    y, dy : array, shape (n, cY, spatial...)
        Its result, and the gradient of that; same dtype, any placement and strides.
    activation, coef, padding, stride, dilation, groups
        Of the forward function, as for `convolution_add_activation_forward`. Not a mode
        whose slope y does not tell, as swish.
    alpha, beta : float
        ``result = alpha * gradient + beta * result``, for all three; beta needs all of `out`.
    out : tuple (dx, dw, db), optional
        Where to write; None for what is to be new.

    Returns
    -------
    dx, dw, db : array
        Of the shapes of x and w, and (cY,); placed as dy is where `out` gives none.

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
    geometry = (padding, stride, dilation, groups)
    mode, coef = check_mode(activation, coef, name="activation")
    if needs_x(mode, coef):
        raise ValueError(
            f"activation={mode!r} with coef={coef} has a slope that y does not tell; use "
            "activation_backward, which takes x, and the gradients of the convolution"
        )

    def build(specs: Specs, settings: Settings) -> FusedGradientCall:
        forward = make_convolution(specs["x"], specs["w"], geometry, settings)
        for name in ("y", "dy"):
            check_shape(specs, name, forward.output_shape, "what x and w give with these arguments")
            check_dtype(specs, "x", name)
        ceiling = coef_in(forward.dtype, mode, coef)
        return FusedGradientCall(forward, mode, ceiling, alpha=alpha, beta=beta)

    parameters = (geometry, mode, coef, alpha, beta)
    return Description(
        build, {"x": x, "w": w, "y": y, "dy": dy}, parameters, out, beta, ("dx", "dw", "db")
    )


def _forward(
    x: Array,
    w: Filters,
    b: ChannelVector,
    geometry: tuple[Any, ...],
    activation: tuple[str, float | None],
    pooled: dict[str, Any] | None,
    alpha: float,
    beta: float,
    out: Array | None,
) -> Description:
    """Convolution, bias and activation; pooling of what they give, if that is asked for."""
    mode, coef = check_mode(*activation, name="activation")

    def build(specs: Specs, settings: Settings) -> Chain:
        convolution = make_convolution(specs["x"], specs["w"], geometry, settings)
        shape, dtype = convolution.output_shape, convolution.dtype
        check_vector(specs, "b", shape[1], dtype, "the result")
        operations: list[Operation] = [convolution, AddTensor(shape, dtype)]
        operations.append(Activation(shape, mode, coef, dtype))
        if pooled is not None:
            operations.append(Pooling.of(shape, dtype=dtype, prefix="pooling_", **pooled))
        return Chain(tuple(operations), dtype, alpha=alpha, beta=beta)

    arrays = {"x": x, "w": w, "b": channel_vector(b, "b", len(shape_of(x)))}
    return Description(build, arrays, (geometry, mode, coef, pooled, alpha, beta), out, beta)
