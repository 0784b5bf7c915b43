"""What the tests compare with: PyTorch in float64, or a direct loop where there is no PyTorch.

Nothing here uses the library. `bound` is the rigorous rounding error of a sum of products in any
order (Higham, Accuracy and Stability, section 3.1), so tests need no tuned tolerances.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from tests.support import activation_modes

try:
    import torch
    import torch.nn.functional as F
except ImportError:  # the direct loop below serves
    torch = None

UNIT_ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}


def pairs(padding, axes):
    """Padding as a (before, after) pair per axis."""
    values = (padding,) * axes if isinstance(padding, int) else tuple(padding)
    return tuple((p, p) if isinstance(p, int) else tuple(p) for p in values)


def per_axis(value, axes):
    """An int or one per axis, as one per axis."""
    return (value,) * axes if isinstance(value, int) else tuple(value)


def convolution(x, w, *, padding=0, stride=1, dilation=1, groups=1):
    """Cross-correlation in float64."""
    if torch is None:
        return direct(x, w, padding=padding, stride=stride, dilation=dilation, groups=groups)
    axes = x.ndim - 2
    padded = F.pad(
        torch.from_numpy(np.ascontiguousarray(x, dtype="f8")),
        [side for pair in reversed(pairs(padding, axes)) for side in pair],
    )
    function = (F.conv1d, F.conv2d, F.conv3d)[axes - 1]
    filters = torch.from_numpy(np.ascontiguousarray(w, dtype="f8"))
    return function(
        padded,
        filters,
        stride=per_axis(stride, axes),
        dilation=per_axis(dilation, axes),
        groups=groups,
    ).numpy()


def direct(x, w, *, padding=0, stride=1, dilation=1, groups=1):
    """The definition: one sum per output element."""
    axes = x.ndim - 2
    padding, stride, dilation = (
        pairs(padding, axes),
        per_axis(stride, axes),
        per_axis(dilation, axes),
    )
    extents = [
        (e + p[0] + p[1] - ((k - 1) * d + 1)) // s + 1
        for e, p, k, d, s in zip(x.shape[2:], padding, w.shape[2:], dilation, stride, strict=True)
    ]
    y = np.zeros((x.shape[0], w.shape[0], *extents))
    per_group = w.shape[0] // groups
    for channel, *site in itertools.product(range(w.shape[0]), *map(range, extents)):
        first = channel // per_group * w.shape[1]
        for tap in itertools.product(*map(range, w.shape[2:])):
            at = [
                o * s - p[0] + t * d
                for o, s, p, t, d in zip(site, stride, padding, tap, dilation, strict=True)
            ]
            if all(0 <= i < e for i, e in zip(at, x.shape[2:], strict=True)):
                seen = x[(slice(None), slice(first, first + w.shape[1]), *at)].astype("f8")
                y[(slice(None), channel, *site)] += seen @ w[(channel, slice(None), *tap)].astype(
                    "f8"
                )
    return y


ACTIVATIONS = {mode: known.value for mode, known in activation_modes.MODES.items()}
DEFAULT_COEF = {mode: known.coef for mode, known in activation_modes.MODES.items()}


def bias(b, ndim):
    """A bias shaped to be added to a tensor of `ndim` axes."""
    return b.astype("f8").reshape(-1, *[1] * (ndim - 2))


def bound(x, w, b=None, *, dtype="float32", halves=0, **geometry):
    """Largest rounding error of each output of convolution + bias + activation.

    `halves` is how often a result is rounded to a dtype narrower than the sums on its way.
    """
    unit = UNIT_ROUNDOFF["float32" if dtype in ("float16", "bfloat16") else dtype]
    size = convolution(np.abs(x.astype("f8")), np.abs(w.astype("f8")), **geometry)
    if b is not None:
        size = size + np.abs(bias(b, x.ndim))
    terms = math.prod(w.shape[1:]) + 8
    found = (terms * unit + (8 * 2.0**-53 * terms if dtype == "float64" else 0)) * size
    return found + halves * UNIT_ROUNDOFF[dtype] * size + 1e-300


def assert_close(actual, expected, tolerance, where=""):
    """Every element finite and within its tolerance; NaN left in an output fails."""
    actual = np.asarray(actual).astype("f8")
    assert actual.shape == expected.shape, where
    wrong = ~(np.abs(actual - expected) <= tolerance)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        margin = np.broadcast_to(tolerance, expected.shape)[at]
        raise AssertionError(
            f"{where}: {int(wrong.sum())} of {wrong.size} elements wrong, first at {at}: "
            f"{actual[at]} instead of {expected[at]}, tolerance {margin:.3g}"
        )
