"""Softmax and its gradient."""

from __future__ import annotations

from typing import Any

from ooc_cudnn.functions.call.arguments import check_dtype, check_rank, check_shape
from ooc_cudnn.functions.call.decorator import public
from ooc_cudnn.functions.call.spec import Description, Specs
from ooc_cudnn.operations.core.call import TiledCall
from ooc_cudnn.operations.softmax.channels import (
    ALGORITHMS,
    MODES,
    SoftmaxCall,
    SoftmaxGradientCall,
)
from ooc_cudnn.operations.softmax.images import ImageSoftmaxCall, ImageSoftmaxGradientCall
from ooc_cudnn.settings_table import Settings
from ooc_cudnn.types import Array


@public
def softmax_forward(
    x: Array,
    *,
    algorithm: str = "accurate",
    mode: str = "channel",
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Array | None = None,
) -> Description:
    """Softmax over the channels of each site, or over all elements of each image.

    Parameters
    ----------
    x : array, shape (n, c, up to 3 spatial axes)
        Any placement and strides; (n, c) for logits.
    algorithm : str
        "accurate" subtracts the maximum first, "log" gives the logarithm of that.
    mode : str
        "channel": over c, for every image and site; the channels of a site are not cut.
        "instance": over all elements of an image, however it is cut.
    alpha, beta : float
        ``out = alpha * result + beta * out``; beta needs `out`.
    out : array, shape of x, optional
        Where to write; any placement; may not overlap x.

    Returns
    -------
    array, shape of x
        `out` if given. Else on the host for a host x, by `empty`'s rule for a device x.

    Notes
    -----
    Source: cudnnSoftmaxForward. The sum of an instance is made in float64, in a first sweep over
    its pieces.

    Examples
    --------
    >>> import numpy as np, ooc_cudnn
    >>> with ooc_cudnn.settings(device="host", machine="host"):
    ...     ooc_cudnn.softmax_forward(np.zeros((1, 4), "float32")).tolist()
    [[0.25, 0.25, 0.25, 0.25]]
    """
    _check(algorithm, mode)
    kind = SoftmaxCall if mode == "channel" else ImageSoftmaxCall

    def build(specs: Specs, settings: Settings) -> TiledCall:
        x = specs["x"]
        check_rank(specs, "x")
        return kind(x.shape, algorithm, x.dtype, alpha=alpha, beta=beta)

    return Description(build, {"x": x}, (algorithm, mode, alpha, beta), out, beta)


@public
def softmax_backward(
    y: Array,
    dy: Array,
    *,
    algorithm: str = "accurate",
    mode: str = "channel",
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Array | None = None,
) -> Description:
    """Gradient of softmax.

    Parameters
    ----------
    y, dy : array, shape (n, c, up to 3 spatial axes)
        Result of the forward function and its gradient; any placement and strides, same dtype.
    algorithm, mode, alpha, beta
        As for `softmax_forward`.
    out : array, shape of y, optional
        Where to write; any placement; may not overlap the operands.

    Returns
    -------
    array, shape of y
        `out` if given. Else placed and laid in memory as dy is.

    Notes
    -----
    Source: cudnnSoftmaxBackward. ``dx = y * (dy - sum(y * dy))``; for "log"
    ``dx = dy - exp(y) * sum(dy)``.

    Examples
    --------
    >>> import numpy as np, ooc_cudnn
    >>> y, dy = np.float32([[0.5, 0.5]]), np.float32([[1, 0]])
    >>> with ooc_cudnn.settings(device="host", machine="host"):
    ...     ooc_cudnn.softmax_backward(y, dy).tolist()
    [[0.25, -0.25]]
    """
    _check(algorithm, mode)
    kind = SoftmaxGradientCall if mode == "channel" else ImageSoftmaxGradientCall

    def build(specs: Specs, settings: Settings) -> TiledCall:
        y = specs["y"]
        check_rank(specs, "y")
        check_shape(specs, "dy", y.shape, "that of y")
        check_dtype(specs, "y", "dy")
        return kind(y.shape, algorithm, y.dtype, alpha=alpha, beta=beta)

    parameters = (algorithm, mode, alpha, beta)
    return Description(build, {"y": y, "dy": dy}, parameters, out, beta, ("dx",))


def _check(algorithm: Any, mode: Any) -> None:
    for name, value, allowed in (("algorithm", algorithm, ALGORITHMS), ("mode", mode, MODES)):
        if not isinstance(value, str) or value not in allowed:
            raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
