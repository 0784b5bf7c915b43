"""The gradients of a convolution: with respect to its data, its filter and its bias."""

from __future__ import annotations

from typing import Any

from ooc_cudnn.functions.call.arguments import (
    check_dtype,
    check_shape,
    make_convolution,
    shape_of,
)
from ooc_cudnn.functions.call.decorator import public
from ooc_cudnn.functions.call.spec import Description, Specs
from ooc_cudnn.operations.convolution.data_gradient import DataGradientCall
from ooc_cudnn.operations.convolution.filter_gradient import FilterGradientCall
from ooc_cudnn.operations.core.window_arguments import convolution_geometry, is_int
from ooc_cudnn.operations.elementwise.broadcast_reduction import BroadcastGradientCall
from ooc_cudnn.settings_table import Settings
from ooc_cudnn.tensor import TensorSpec
from ooc_cudnn.types import Array, Filters, Padding, Sizes


@public
def convolution_backward_data(
    w: Filters,
    dy: Array,
    *,
    input_shape: tuple[int, ...] | None = None,
    padding: Padding = 0,
    stride: Sizes = 1,
    dilation: Sizes = 1,
    groups: int = 1,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Array | None = None,
) -> Description:
    """Gradient of a convolution with respect to its data.

    Parameters
    ----------
    w : array, shape (cY, cX / groups, window...)
        The filters of the forward convolution.
    dy : array, shape (n, cY, spatial...)
        Gradient of its result; any placement and strides, same dtype.
    input_shape : tuple of int, optional
        Shape of x, (n, cX, spatial...). When left out: that of `out`, else the smallest x whose
        convolution gives dy.
    padding, stride, dilation, groups
        Of the forward convolution, as for `convolution_forward`.
    alpha, beta : float
        ``out = alpha * result + beta * out``; beta needs `out`.
    out : array, shape of x, optional
        Where to write; any placement; may not overlap w or dy.

    Returns
    -------
    array, shape of x
        `out` if given. Else placed and laid in memory as dy is.

    Notes
    -----
    Source: cudnnConvolutionBackwardData. Sums over pieces of cY are float32 for half types.

    Examples
    --------
    >>> import numpy as np, ooc_cudnn
    >>> w, dy = np.ones((4, 3, 3, 3), "float32"), np.ones((2, 4, 6, 6), "float32")
    >>> with ooc_cudnn.settings(device="host", machine="host"):
    ...     dx = ooc_cudnn.convolution_backward_data(w, dy)
    >>> dx.shape, float(dx[0, 0, 0, 0]), float(dx[0, 0, 4, 4])
    ((2, 3, 8, 8), 4.0, 36.0)
    """
    geometry = (padding, stride, dilation, groups)
    if input_shape is None and out is not None:
        input_shape = shape_of(out)

    def build(specs: Specs, settings: Settings) -> DataGradientCall:
        _same_rank(specs["w"], specs["dy"], "w")
        shape = _shape_argument(input_shape, "input_shape", len(specs["dy"].shape))
        if shape is None:
            shape = _smallest_x(specs["w"], specs["dy"], geometry)
        x = TensorSpec(shape, specs["dy"].dtype)
        check_dtype(specs, "dy", "w")
        forward = make_convolution(x, specs["w"], geometry, settings)
        check_shape(
            specs, "dy", forward.output_shape, f"what x of {shape} gives with these arguments"
        )
        return DataGradientCall(forward, alpha=alpha, beta=beta)

    parameters = (geometry, input_shape, alpha, beta)
    return Description(build, {"w": w, "dy": dy}, parameters, out, beta, ("dx",))


@public
def convolution_backward_filter(
    x: Array,
    dy: Array,
    *,
    filter_shape: tuple[int, ...] | None = None,
    padding: Padding = 0,
    stride: Sizes = 1,
    dilation: Sizes = 1,
    groups: int = 1,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Array | None = None,
) -> Description:
    """Gradient of a convolution with respect to its filter, summed over n and hY on the device.

    Parameters
    ----------
    x : array, shape (n, cX, spatial...)
        The data of the forward convolution; any placement and strides.
    dy : array, shape (n, cY, spatial...)
        Gradient of its result; same dtype.
    filter_shape : tuple of int, optional
        Shape of w, (cY, cX / groups, window...). When left out: that of `out`, else with the
        largest window that gives dy; with a stride of 1 there is only one.
    padding, stride, dilation, groups
        Of the forward convolution, as for `convolution_forward`.
    alpha, beta : float
        ``out = alpha * result + beta * out``; beta needs `out`.
    out : array, shape of w, optional
        Where to write; any placement; may not overlap x or dy.

    Returns
    -------
    array, shape of w
        `out` if given. Else on the host for a host x, by `empty`'s rule for a device x.

    Notes
    -----
    Source: cudnnConvolutionBackwardFilter. Sums over pieces are float32 for half types.

    Examples
    --------
    >>> import numpy as np, ooc_cudnn
    >>> x, dy = np.ones((2, 3, 8, 8), "float32"), np.ones((2, 4, 6, 6), "float32")
    >>> with ooc_cudnn.settings(device="host", machine="host"):
    ...     dw = ooc_cudnn.convolution_backward_filter(x, dy)
    >>> dw.shape, float(dw[0, 0, 0, 0])
    ((4, 3, 3, 3), 72.0)
    """
    geometry = (padding, stride, dilation, groups)
    if filter_shape is None and out is not None:
        filter_shape = shape_of(out)

    def build(specs: Specs, settings: Settings) -> FilterGradientCall:
        _same_rank(specs["x"], specs["dy"], "x")
        shape = _shape_argument(filter_shape, "filter_shape", len(specs["x"].shape))
        if shape is None:
            shape = _largest_w(specs["x"], specs["dy"], geometry)
        check_dtype(specs, "x", "dy")
        w = TensorSpec(shape, specs["x"].dtype)
        forward = make_convolution(specs["x"], w, geometry, settings)
        check_shape(
            specs, "dy", forward.output_shape, f"what w of {shape} gives with these arguments"
        )
        return FilterGradientCall(forward, alpha=alpha, beta=beta)

    parameters = (geometry, filter_shape, alpha, beta)
    return Description(build, {"x": x, "dy": dy}, parameters, out, beta, ("dw",))


@public
def convolution_backward_bias(
    dy: Array, *, alpha: float = 1.0, beta: float = 0.0, out: Array | None = None
) -> Description:
    """Gradient of a convolution with respect to its bias: dy summed over all but its channels.

    Parameters
    ----------
    dy : array, shape (n, cY, spatial...)
        Any placement and strides.
    alpha, beta : float
        ``out = alpha * result + beta * out``; beta needs `out`.
    out : array, shape (cY,), optional
        Where to write; any placement.

    Returns
    -------
    array, shape (cY,)
        `out` if given. Else on the host for a host dy, by `empty`'s rule for a device dy.

    Notes
    -----
    Source: cudnnConvolutionBackwardBias. Each piece is summed in float64.

    Examples
    --------
    >>> import numpy as np, ooc_cudnn
    >>> with ooc_cudnn.settings(device="host", machine="host"):
    ...     ooc_cudnn.convolution_backward_bias(np.ones((2, 3, 4, 4), "float32")).tolist()
    [32.0, 32.0, 32.0]
    """

    def build(specs: Specs, settings: Settings) -> BroadcastGradientCall:
        dy = specs["dy"]
        if len(dy.shape) not in (2, 3, 4, 5):
            raise ValueError(f"dy must have shape (n, cY, up to 3 spatial axes), not {dy.shape}")
        return BroadcastGradientCall(dy.shape, dy.dtype, alpha=alpha, beta=beta)

    return Description(build, {"dy": dy}, (alpha, beta), out, beta, ("db",))


def _same_rank(first: TensorSpec, dy: TensorSpec, name: str) -> None:
    if len(dy.shape) not in (3, 4, 5):
        raise ValueError(f"dy must have shape (n, cY, 1 to 3 spatial axes), not {dy.shape}")
    if len(first.shape) != len(dy.shape):
        raise ValueError(
            f"{name} must have as many axes as dy ({len(dy.shape)}), not shape {first.shape}"
        )


def _shape_argument(shape: Any, name: str, axes: int) -> tuple[int, ...] | None:
    if shape is None:
        return None
    if not isinstance(shape, tuple | list) or not all(is_int(extent) for extent in shape):
        raise TypeError(f"{name} must be a tuple of ints, not {shape!r}")
    if len(shape) != axes or min(shape) < 1:
        raise ValueError(f"{name} must hold {axes} positive sizes, not {tuple(shape)}")
    return tuple(int(extent) for extent in shape)


def _smallest_x(w: TensorSpec, dy: TensorSpec, geometry: tuple[Any, ...]) -> tuple[int, ...]:
    padding, stride, dilation, groups = convolution_geometry(len(dy.shape) - 2, *geometry)
    spatial = tuple(
        (o - 1) * s + (k - 1) * d + 1 - sum(p)
        for o, s, k, d, p in zip(dy.shape[2:], stride, w.shape[2:], dilation, padding, strict=True)
    )
    if min(spatial) < 1:
        raise ValueError(f"input_shape must be given: no x of {spatial} gives dy of {dy.shape}")
    return (dy.shape[0], w.shape[1] * groups, *spatial)


def _largest_w(x: TensorSpec, dy: TensorSpec, geometry: tuple[Any, ...]) -> tuple[int, ...]:
    padding, stride, dilation, groups = convolution_geometry(len(dy.shape) - 2, *geometry)
    window = tuple(
        (e + sum(p) - 1 - (o - 1) * s) // d + 1
        for e, p, o, s, d in zip(x.shape[2:], padding, dy.shape[2:], stride, dilation, strict=True)
    )
    if min(window) < 1:
        raise ValueError(f"dy of {dy.shape} is larger than any window on x of {x.shape} gives")
    if x.shape[1] % groups:
        raise ValueError(f"groups must divide cX={x.shape[1]}, not {groups}")
    return (dy.shape[1], x.shape[1] // groups, *window)
