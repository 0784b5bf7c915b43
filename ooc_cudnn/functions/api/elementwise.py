"""Adding tensors, activations and their gradients."""

from __future__ import annotations

from ooc_cudnn.functions.call.arguments import (
    check_dtype,
    check_rank,
    check_shape,
    shape_of,
    wide_vector,
)
from ooc_cudnn.functions.call.decorator import public
from ooc_cudnn.functions.call.spec import Description, Specs
from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.operations.core.activation_modes import needs_x
from ooc_cudnn.operations.elementwise.activation import Activation, check_mode, coef_in
from ooc_cudnn.operations.elementwise.activation_gradient import ActivationGradientCall
from ooc_cudnn.operations.elementwise.binary import AdditionCall, check_broadcast
from ooc_cudnn.settings_table import Settings
from ooc_cudnn.types import Array


@public
def add_tensor(
    b: Array, y: Array, *, alpha: float = 1.0, beta: float = 1.0, out: Array | None = None
) -> Description:
    """Add b, broadcast, to y: ``y = alpha * b + beta * y``, in place or into `out`.

    Parameters
    ----------
    b : array
        As many axes as y, every extent y's or 1; or shape (c,). Any placement and strides.
    y : array, shape (n, c, up to 3 spatial axes)
        Same dtype; changed in place without `out`.
    alpha, beta : float
        With ``beta=0`` the content of y is not read.
    out : array, shape of y, optional
        Where to write instead; y is not changed then.

    Returns
    -------
    array
        y, or `out`.

    Notes
    -----
    Source: cudnnAddTensor.

    Examples
    --------
    >>> import numpy as np, ooc_cudnn
    >>> y = np.zeros((1, 2, 2, 2), "float32")
    >>> with ooc_cudnn.settings(device="host", machine="host"):
    ...     _ = ooc_cudnn.add_tensor(np.float32([1, 2]), y)
    >>> y[0, :, 0, 0].tolist()
    [1.0, 2.0]
    """
    apart = out is not None
    b = wide_vector(b, len(shape_of(y)))

    def build(specs: Specs, settings: Settings) -> AdditionCall:
        y, b = specs["y"], specs["b"]
        check_rank(specs, "y")
        check_broadcast(b.shape, y.shape, "y")
        check_dtype({"y": y, "b": b}, "y", "b")
        return AdditionCall(y.shape, b.shape, y.dtype, alpha, beta, apart=apart)

    return Description(
        build,
        {"b": b, "y": y} if apart else {"b": b},
        (alpha, beta, apart),
        out,
        results=("out",) if apart else ("y",),
        updated={} if apart else {"y": y},
    )


@public
def activation_forward(
    x: Array,
    *,
    mode: str = "relu",
    coef: float | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Array | None = None,
) -> Description:
    """Apply an activation to every element.

    Parameters
    ----------
    x : array, shape (n, c, up to 3 spatial axes)
        Any placement and strides.
    mode : str
        relu, clipped_relu, elu, sigmoid, tanh, swish, gelu, gelu_tanh, mish, leaky_relu,
        hardsigmoid, hardswish or identity.
    coef : float, optional
        Ceiling of clipped_relu (6), alpha of elu (1), beta of swish (1), negative slope of
        leaky_relu (0.01).
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
    Source: cudnnActivationForward. NaN propagates in every mode (CUDNN_PROPAGATE_NAN).

    Examples
    --------
    >>> import numpy as np, ooc_cudnn
    >>> with ooc_cudnn.settings(device="host", machine="host"):
    ...     ooc_cudnn.activation_forward(np.float32([[[-1, 2]]]), mode="relu").tolist()
    [[[0.0, 2.0]]]
    """
    mode, coef = check_mode(mode, coef)

    def build(specs: Specs, settings: Settings) -> Chain:
        x = specs["x"]
        check_rank(specs, "x")
        return Chain((Activation(x.shape, mode, coef, x.dtype),), x.dtype, alpha=alpha, beta=beta)

    return Description(build, {"x": x}, (mode, coef, alpha, beta), out, beta)


@public
def activation_backward(
    y: Array,
    dy: Array,
    x: Array | None = None,
    *,
    mode: str = "relu",
    coef: float | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Array | None = None,
) -> Description:
    """Gradient of an activation: ``dx = dy * f'(x)``.

    Parameters
    ----------
    y, dy : array, shape (n, c, up to 3 spatial axes)
        Result of the forward function and its gradient; any placement and strides, same dtype.
    x : array, same shape, optional
        Data of the forward function. Modes whose slope y does not tell need it, as swish, and
        elu and leaky_relu with a negative coef; they read it instead of y, others do not.
    mode, coef, alpha, beta
        As for `activation_forward`.
    out : array, shape of y, optional
        Where to write; any placement; may not overlap the operands.

    Returns
    -------
    array, shape of y
        `out` if given. Else placed and laid in memory as dy is.

    Notes
    -----
    Source: cudnnActivationBackward. At a kink the slope is the left one (relu: 0 at 0); where the
    slope is 0 by selection dx is 0 whatever dy is. Where y (or x) is NaN the slope is PyTorch's: 1
    of relu, clipped_relu, elu, hardswish and identity, coef of leaky_relu, 0 of hardsigmoid; else
    NaN.

    Examples
    --------
    >>> import numpy as np, ooc_cudnn
    >>> y, dy = np.float32([[[0, 2]]]), np.float32([[[5, 7]]])
    >>> with ooc_cudnn.settings(device="host", machine="host"):
    ...     ooc_cudnn.activation_backward(y, dy, mode="relu").tolist()
    [[[0.0, 7.0]]]
    """
    mode, coef = check_mode(mode, coef)
    if needs_x(mode, coef) and x is None:
        raise ValueError(f"x is required for mode={mode!r} with coef={coef}: y does not tell it")
    read = ("x", "dy") if needs_x(mode, coef) else ("y", "dy")
    arrays = {"y": y, "dy": dy} | ({} if x is None else {"x": x})

    def build(specs: Specs, settings: Settings) -> ActivationGradientCall:
        y = specs["y"]
        check_rank(specs, "y")
        for name in arrays:
            check_shape(specs, name, y.shape, "that of y")
            check_dtype(specs, "y", name)
        ceiling = coef_in(y.dtype, mode, coef)
        return ActivationGradientCall(y.shape, mode, ceiling, y.dtype, alpha=alpha, beta=beta)

    return Description(
        build,
        {name: arrays[name] for name in read},
        (mode, coef, alpha, beta),
        out,
        beta,
        ("dx",),
        beside={name: array for name, array in arrays.items() if name not in read},
    )
