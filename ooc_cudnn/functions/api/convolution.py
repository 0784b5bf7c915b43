"""The convolution functions: thin. Each checks nothing but what its chain cannot know."""

from __future__ import annotations

from ooc_cudnn.functions.call.arguments import make_convolution
from ooc_cudnn.functions.call.decorator import public
from ooc_cudnn.functions.call.spec import Description, Specs
from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.settings_table import Settings
from ooc_cudnn.types import Array, Filters, Padding, Sizes


@public
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
) -> Description:
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
    geometry = (padding, stride, dilation, groups)

    def build(specs: Specs, settings: Settings) -> Chain:
        convolution = make_convolution(specs["x"], specs["w"], geometry, settings)
        return Chain((convolution,), convolution.dtype, alpha=alpha, beta=beta)

    return Description(build, {"x": x, "w": w}, (geometry, alpha, beta), out, beta)
