"""Whether a result is what float64 says, within the bound of its arithmetic."""

from __future__ import annotations

import numpy as np


def difference(expected, actual, *, exact_special=True):
    """What is wrong with `actual`, in a line; None if nothing is.

    A finite element lies between the ends of its bound, rounded to the result's dtype; NaN and
    infinity stand where they are expected and nowhere else. Where `exact_special` is false, any
    non-finite number will do there.
    """
    value, error = expected
    if actual.shape != value.shape:
        return f"has shape {actual.shape}, not {value.shape}"
    found, kind = actual.astype("f8"), actual.dtype
    finite = np.isfinite(value)
    with np.errstate(all="ignore"):
        low, high = ((value + side * error).astype(kind).astype("f8") for side in (-1, 1))
        inside = (low <= found) & (found <= high)
        if exact_special:
            same = (found == value) | (np.isnan(found) & np.isnan(value))
            # What is finite in float64 and beyond the largest number of the dtype is infinity.
        else:
            same = ~np.isfinite(found)
        right = np.where(finite, inside, same)
    if right.all():
        return None
    at = tuple(int(i) for i in np.argwhere(~right)[0])
    return (
        f"{int((~right).sum())} of {right.size} elements wrong, first at {at}: "
        f"{found[at]:.9g} instead of {value[at]:.9g} +- {error[at]:.2g}"
    )
