"""Operations that put axes in another order, by whatever name."""

from __future__ import annotations

from ooc_cudnn.torch.tracing.graph import Operation

#: Those that exchange two axes, by what these are called.
_SWAPS = {
    "transpose": ("dim0", "dim1"),
    "swapdims": ("dim0", "dim1"),
    "swapaxes": ("axis0", "axis1"),
}
#: Those that exchange the last two, or all of a matrix. (Numbers are real: none is conjugated.)
_LAST_TWO = frozenset({"adjoint", "mH", "mT", "matrix_H", "t"})
_MOVES_AXES = frozenset({"moveaxis", "movedim"})
#: All of them.
PERMUTES = frozenset({"permute", "numpy_T"}) | _SWAPS.keys() | _LAST_TWO | _MOVES_AXES


def permutation(operation: Operation, count: int) -> list[int]:
    """Return, of each axis of the result, the axis of the value of so many that it is.

    Examples
    --------
    >>> moved = Operation(None, "movedim", (), {}, {"source": 0, "destination": -1}, ())
    >>> permutation(moved, 3)
    [1, 2, 0]
    """
    name, told, dims = operation.name, operation.arguments, list(range(count))
    if name == "permute":
        return [each % count for each in told["dims"]]
    if name == "numpy_T":
        return dims[::-1]
    if name in _MOVES_AXES:
        source, destination = (
            [each % count for each in ([told[key]] if isinstance(told[key], int) else told[key])]
            for key in ("source", "destination")
        )
        rest = iter(axis for axis in dims if axis not in source)
        moved = dict(zip(destination, source, strict=True))
        return [moved[axis] if axis in moved else next(rest) for axis in dims]
    if name in _SWAPS:
        one, other = (told[key] % count for key in _SWAPS[name])
    elif count < 2:
        return dims
    else:
        one, other = count - 2, count - 1
    dims[one], dims[other] = dims[other], dims[one]
    return dims
