"""Batch normalisation: training, inference, and the gradient; exact over the whole batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ooc_cudnn.functions.call.arguments import (
    channel_vector,
    check_dtype,
    check_rank,
    check_shape,
    check_vector,
    scalar,
    shape_of,
)
from ooc_cudnn.functions.call.decorator import public
from ooc_cudnn.functions.call.spec import Description, Specs
from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.operations.normalization.batch_calls import (
    BatchNormalizationCall,
    BatchNormalizationGradientCall,
)
from ooc_cudnn.operations.normalization.batch_launches import Normalise
from ooc_cudnn.settings_table import Settings
from ooc_cudnn.tensor import ACCUMULATOR, TensorSpec
from ooc_cudnn.types import Array, ChannelStatistics


@public
def batch_normalization_forward_training(
    x: Array,
    scale: ChannelStatistics,
    bias: ChannelStatistics,
    *,
    running_mean: ChannelStatistics | None = None,
    running_variance: ChannelStatistics | None = None,
    exponential_average_factor: float = 0.1,
    epsilon: float = 1e-5,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Array | Sequence[Array | None] | None = None,
) -> Description:
    """Normalise each channel by the statistics of the whole batch, however that is cut.

    Parameters
    ----------
    x : array, shape (n, c, up to 3 spatial axes)
        Any placement and strides.
    scale, bias : array, shape (c,) or (1, c, 1...)
        float32; float64 for float64 x.
    running_mean, running_variance : array, shape (c,), optional
        Updated in place, ``(1 - factor) * old + factor * new``; the variance is the unbiased one.
        Both or neither.
    exponential_average_factor : float
        From 0 to 1.
    epsilon : float
        Added to the variance; not negative.
    alpha, beta : float
        ``y = alpha * result + beta * y``; beta needs `out`.
    out : array, shape of x, or tuple (y, saved_mean, saved_inverse_variance), optional
        Where to write; None for what is to be new.

    Returns
    -------
    y, saved_mean, saved_inverse_variance : array
        The last two, of shape (c,), are what the backward pass takes: mean and
        1 / sqrt(variance + epsilon).

    Notes
    -----
    Source: cudnnBatchNormalizationForwardTraining with CUDNN_BATCHNORM_SPATIAL. The pieces are gone
    through twice; their statistics are merged by Chan's formula in float64.

    Examples
    --------
    >>> import numpy as np, ooc_cudnn
    >>> x = np.float32([[[1, 3]], [[5, 7]]])
    >>> with ooc_cudnn.settings(device="host", machine="host"):
    ...     y, mean, _ = ooc_cudnn.batch_normalization_forward_training(
    ...         x, np.ones(1, "float32"), np.zeros(1, "float32"))
    >>> mean.tolist(), y.round(2).ravel().tolist()
    ([4.0], [-1.340000033378601, -0.44999998807907104, 0.44999998807907104, 1.340000033378601])
    """
    epsilon = _epsilon(epsilon)
    factor = scalar(exponential_average_factor, "exponential_average_factor")
    if not 0 <= factor <= 1:
        raise ValueError(f"exponential_average_factor must be from 0 to 1, not {factor}")
    running = {"running_mean": running_mean, "running_variance": running_variance}
    if (running_mean is None) != (running_variance is None):
        raise ValueError("running_mean and running_variance must be given both, or neither")
    updated = {} if running_mean is None else running
    axes = len(shape_of(x))
    arrays = {
        "x": x,
        "scale": channel_vector(scale, "scale", axes),
        "bias": channel_vector(bias, "bias", axes),
    }

    def build(specs: Specs, settings: Settings) -> BatchNormalizationCall:
        _check(specs, "scale", "bias")
        x = specs["x"]
        return BatchNormalizationCall(
            x.shape,
            x.dtype,
            epsilon,
            factor,
            bool(updated),
            settings.deterministic,
            alpha=alpha,
            beta=beta,
        )

    return Description(
        build,
        arrays,
        (factor, epsilon, bool(updated), alpha, beta),
        out,
        beta,
        ("y", "saved_mean", "saved_inverse_variance"),
        scaled=("y",),
        updated=updated,
    )


@public
def batch_normalization_forward_inference(
    x: Array,
    scale: ChannelStatistics,
    bias: ChannelStatistics,
    mean: ChannelStatistics,
    variance: ChannelStatistics,
    *,
    epsilon: float = 1e-5,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Array | None = None,
) -> Description:
    """Normalise each channel by given statistics.

    ``y = scale * (x - mean) / sqrt(variance + epsilon) + bias``

    Parameters
    ----------
    x : array, shape (n, c, up to 3 spatial axes)
        Any placement and strides.
    scale, bias, mean, variance : array, shape (c,) or (1, c, 1...)
        float32; float64 for float64 x.
    epsilon : float
        Not negative.
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
    Source: cudnnBatchNormalizationForwardInference with CUDNN_BATCHNORM_SPATIAL.

    Examples
    --------
    >>> import numpy as np, ooc_cudnn
    >>> x, vector = np.float32([[[1, 3]]]), lambda value: np.float32([value])
    >>> with ooc_cudnn.settings(device="host", machine="host"):
    ...     ooc_cudnn.batch_normalization_forward_inference(
    ...         x, vector(2), vector(1), vector(1), vector(4), epsilon=0.0).tolist()
    [[[1.0, 3.0]]]
    """
    epsilon = _epsilon(epsilon)
    vectors = {"scale": scale, "bias": bias, "mean": mean, "variance": variance}
    axes = len(shape_of(x))
    arrays = {"x": x} | {
        name: channel_vector(vector, name, axes) for name, vector in vectors.items()
    }

    def build(specs: Specs, settings: Settings) -> Chain:
        _check(specs, *vectors)
        x = specs["x"]
        return Chain((Normalise(x.shape, x.dtype, epsilon),), x.dtype, alpha=alpha, beta=beta)

    return Description(build, arrays, (epsilon, alpha, beta), out, beta)


@public
def batch_normalization_backward(
    x: Array,
    dy: Array,
    scale: ChannelStatistics,
    *,
    saved_mean: ChannelStatistics | None = None,
    saved_inverse_variance: ChannelStatistics | None = None,
    epsilon: float = 1e-5,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Array | Sequence[Array | None] | None = None,
) -> Description:
    """Gradient of batch normalisation in training, through the statistics of the whole batch.

    Parameters
    ----------
    x, dy : array, shape (n, c, up to 3 spatial axes)
        Data of the forward function and gradient of its result; any placement and strides.
    scale : array, shape (c,) or (1, c, 1...)
        float32; float64 for float64 x.
    saved_mean, saved_inverse_variance : array, shape (c,), optional
        As the forward function returned them; computed anew when left out.
    epsilon : float
        Of the forward function; only used where the statistics are computed anew.
    alpha, beta : float
        ``dx = alpha * result + beta * dx``; beta needs `out`.
    out : array, shape of x, or tuple (dx, dscale, dbias), optional
        Where to write; None for what is to be new.

    Returns
    -------
    dx, dscale, dbias : array
        The last two of shape (c,).

    Notes
    -----
    Source: cudnnBatchNormalizationBackward with CUDNN_BATCHNORM_SPATIAL. The pieces are gone
    through twice, and once more where the statistics are computed anew; sums are made in float64.

    Examples
    --------
    >>> import numpy as np, ooc_cudnn
    >>> x, dy = np.float32([[[1, 3]], [[5, 7]]]), np.float32([[[1, 1]], [[1, 1]]])
    >>> with ooc_cudnn.settings(device="host", machine="host"):
    ...     dx, dscale, dbias = ooc_cudnn.batch_normalization_backward(x, dy, np.ones(1, "float32"))
    >>> bool(abs(dx).max() < 1e-6), dbias.tolist()
    (True, [4.0])
    """
    epsilon = _epsilon(epsilon)
    axes = len(shape_of(x))
    vectors = {
        "scale": scale,
        "saved_mean": saved_mean,
        "saved_inverse_variance": saved_inverse_variance,
    }
    if (saved_mean is None) != (saved_inverse_variance is None):
        raise ValueError("saved_mean and saved_inverse_variance must be given both, or neither")
    anew = saved_mean is None
    if anew:
        vectors = {"scale": scale}
    arrays = {"x": x, "dy": dy} | {
        name: channel_vector(vector, name, axes) for name, vector in vectors.items()
    }

    def build(specs: Specs, settings: Settings) -> BatchNormalizationGradientCall:
        _check(specs, *vectors)
        x = specs["x"]
        check_shape(specs, "dy", x.shape, "that of x")
        check_dtype(specs, "x", "dy")
        return BatchNormalizationGradientCall(
            x.shape,
            x.dtype,
            epsilon if anew else None,
            settings.deterministic,
            alpha=alpha,
            beta=beta,
        )

    parameters = (anew and epsilon, alpha, beta)
    return Description(
        build, arrays, parameters, out, beta, ("dx", "dscale", "dbias"), scaled=("dx",)
    )


def _epsilon(value: Any) -> float:
    epsilon = scalar(value, "epsilon")
    if epsilon < 0:
        raise ValueError(f"epsilon must not be negative, not {epsilon}")
    return epsilon


def _check(specs: Mapping[str, TensorSpec], *vectors: str) -> None:
    x = specs["x"]
    check_rank(specs, "x")
    for name in vectors:
        check_vector(specs, name, x.shape[1], ACCUMULATOR[x.dtype], "x")
