"""Pooling and its gradient."""

from __future__ import annotations

from ooc_cudnn.functions.call.arguments import check_dtype, check_shape
from ooc_cudnn.functions.call.decorator import public
from ooc_cudnn.functions.call.spec import Description, Specs
from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.operations.chain_forms.windows_and_norms import Incoming, Pooling
from ooc_cudnn.operations.core.call import TiledCall
from ooc_cudnn.operations.resampling.arguments import pooling_gradient
from ooc_cudnn.settings_table import Settings
from ooc_cudnn.types import Array, Padding, Sizes


@public
def pooling_forward(
    x: Array,
    *,
    window: Sizes,
    mode: str = "max",
    padding: Padding = 0,
    stride: Sizes | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Array | None = None,
) -> Description:
    """Take the largest or the mean value of each window.

    Parameters
    ----------
    x : array, shape (n, c, spatial...)
        One to three spatial axes; any placement and strides.
    window : int or one per spatial axis
    mode : str
        max, max_deterministic (both are deterministic here), average_include_padding (divides by
        the whole window) or average_exclude_padding (by the elements of x in it).
    padding : int, one per spatial axis, or a (before, after) pair per axis
        Smaller than the window. Padding is never a maximum, and counts as zeros in a mean.
    stride : int or one per spatial axis, optional
        The window when left out.
    alpha, beta : float
        ``out = alpha * result + beta * out``; beta needs `out`.
    out : array, optional
        Where to write; any placement; may not overlap x.

    Returns
    -------
    array, shape (n, c, spatial...)
        `out` if given. Else on the host for a host x, by `empty`'s rule for a device x.

    Notes
    -----
    Source: cudnnPoolingForward. NaN in a window gives NaN (CUDNN_PROPAGATE_NAN).

    Examples
    --------
    >>> import numpy as np, ooc_cudnn
    >>> x = np.arange(16, dtype="float32").reshape(1, 1, 4, 4)
    >>> with ooc_cudnn.settings(device="host", machine="host"):
    ...     ooc_cudnn.pooling_forward(x, window=2).tolist()
    [[[[5.0, 7.0], [13.0, 15.0]]]]
    """
    pooling = Pooling(window, mode=mode, padding=padding, stride=stride)

    def build(specs: Specs, settings: Settings) -> Chain:
        x = specs["x"]
        operation = pooling.bind(Incoming(x.shape, x.dtype, settings), ())
        return Chain((operation,), x.dtype, alpha=alpha, beta=beta)

    return Description(build, {"x": x}, (pooling.arguments, alpha, beta), out, beta)


@public
def pooling_backward(
    y: Array,
    dy: Array,
    x: Array,
    *,
    window: Sizes,
    mode: str = "max",
    padding: Padding = 0,
    stride: Sizes | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Array | None = None,
) -> Description:
    """Gradient of pooling.

    Parameters
    ----------
    y, dy : array, shape (n, c, spatial...)
        Result of the forward function and its gradient; any placement and strides.
    x : array
        Data of the forward function, same dtype.
    window, mode, padding, stride, alpha, beta
        As for `pooling_forward`.
    out : array, shape of x, optional
        Where to write; any placement; may not overlap the operands.

    Returns
    -------
    array, shape of x
        `out` if given. Else placed and laid in memory as dy is.

    Notes
    -----
    Source: cudnnPoolingBackward. The gradient of a maximum goes to the first element of the window
    that equals y, in row-major order, in every mode. For averages y and x are not read: only
    their shapes count.

    Examples
    --------
    >>> import numpy as np, ooc_cudnn
    >>> x = np.arange(4, dtype="float32").reshape(1, 1, 2, 2)
    >>> y, dy = np.full((1, 1, 1, 1), 3, "float32"), np.full((1, 1, 1, 1), 8, "float32")
    >>> with ooc_cudnn.settings(device="host", machine="host"):
    ...     ooc_cudnn.pooling_backward(y, dy, x, window=2).tolist()
    [[[[0.0, 0.0], [0.0, 8.0]]]]
    """
    pooling = Pooling(window, mode=mode, padding=padding, stride=stride)
    average = isinstance(mode, str) and mode.startswith("average")
    arrays = {"y": y, "dy": dy, "x": x}

    def build(specs: Specs, settings: Settings) -> TiledCall:
        x_shape = specs["x"].shape
        forward = pooling.bind(Incoming(x_shape, specs["dy"].dtype, settings), ())
        for name in ("y", "dy"):
            why = f"what x of {x_shape} gives with these arguments"
            check_shape(specs, name, forward.output_shape, why)
        for name in arrays:
            check_dtype(specs, "dy", name)
        return pooling_gradient(forward, alpha=alpha, beta=beta)

    return Description(
        build,
        {"dy": dy} if average else arrays,
        (pooling.arguments, alpha, beta),
        out,
        beta,
        ("dx",),
        beside={"y": y, "x": x} if average else {},
    )
