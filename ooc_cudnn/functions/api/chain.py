"""`chain_forward`: any run of operations while each piece is on the device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ooc_cudnn import operations as applicable
from ooc_cudnn.functions.call.arguments import channel_vector, shape_of, wide_vector
from ooc_cudnn.functions.call.decorator import public
from ooc_cudnn.functions.call.spec import Description, Specs
from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.operations.chain_forms.windows_and_norms import Applied, Incoming
from ooc_cudnn.operations.core.operation import Operation, number_names
from ooc_cudnn.settings_table import Settings
from ooc_cudnn.types import Array


@public
def chain_forward(
    x: Array,
    operations: Iterable[Applied],
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Array | None = None,
) -> Description:
    """Run operations one after the other on each piece of x while it is on the device.

    Parameters
    ----------
    x : array, shape (n, c, up to 3 spatial axes)
        Any placement and strides.
    operations : sequence
        Of `ooc_cudnn.operations`: Convolution(w, padding=1), AddTensor(b), Activation("relu"),
        Pooling(2), BatchNormalization(scale, bias, mean, variance), OpTensor("add", b).
    alpha, beta : float
        ``out = alpha * result + beta * out``; beta needs `out`.
    out : array, optional
        Where to write the last result; any placement; may not overlap the operands.

    Returns
    -------
    array
        `out` if given. Else on the host for a host x, by `empty`'s rule for a device x.

    Raises
    ------
    TypeError, ValueError
        Naming the operation and its argument, its value and the rule; for operations whose shapes
        do not meet, both of them.
    PlanInfeasibleError, DeviceOutOfMemoryError
        As for `convolution_forward`.

    Notes
    -----
    Cut along n and rows (and along channels, with a single convolution that comes first).
    Intermediates never leave the device, and nothing is computed twice: the last rows of every
    intermediate stay there for the next piece. What lies outside an intermediate is the next
    operation's padding, so the result is that of the whole, without seams.

    Examples
    --------
    >>> import numpy as np, ooc_cudnn
    >>> from ooc_cudnn.operations import Activation, Convolution, Pooling
    >>> x, w = np.ones((1, 1, 8, 8), "float32"), np.ones((1, 1, 3, 3), "float32")
    >>> with ooc_cudnn.settings(device="host", machine="host"):
    ...     y = ooc_cudnn.chain_forward(
    ...         x, [Convolution(w, padding=1), Activation("relu"), Pooling(2)])
    >>> y[0, 0, 0].tolist()
    [9.0, 9.0, 9.0, 9.0]
    """
    try:
        applied: tuple[Applied, ...] = tuple(operations)
    except TypeError:
        raise TypeError(
            f"operations must be a sequence of ooc_cudnn.operations, not {operations!r:.60}"
        ) from None
    if not applied:
        raise ValueError("operations must hold at least one operation")
    for index, operation in enumerate(applied):
        if not isinstance(operation, Applied):
            raise TypeError(
                f"operations[{index}] must be one of ooc_cudnn.operations "
                f"({', '.join(applicable.__all__)}), not {operation!r:.60}"
            )
    names = number_names([operation.names for operation in applied])
    arrays: dict[str, Any] = {"x": x}
    for operation, keys in zip(applied, names, strict=True):
        views = [_flat(operation, array, len(shape_of(x))) for array in operation.arrays]
        arrays |= zip(keys, views, strict=True)

    def build(specs: Specs, settings: Settings) -> Chain:
        shape, dtype = specs["x"].shape, specs["x"].dtype
        steps: list[Operation] = []
        for index, operation in enumerate(applied):
            operands = tuple(specs[name] for name in names[index])
            try:
                steps.append(operation.bind(Incoming(shape, dtype, settings), operands))
            except (ValueError, TypeError) as error:
                raise type(error)(_where(applied, index, shape) + str(error)) from None
            shape = steps[-1].output_shape
        return Chain(tuple(steps), dtype, alpha=alpha, beta=beta)

    parameters = ([operation.arguments for operation in applied], alpha, beta)
    return Description(build, arrays, parameters, out, beta)


def _where(applied: tuple[Applied, ...], at: int, shape: tuple[int, ...]) -> str:
    """Name an operation that does not fit, and the one before it."""
    name = f"operations[{at}], {type(applied[at]).__name__}"
    if at == 0:
        return f"{name}, does not fit x of shape {shape}: "
    before = f"operations[{at - 1}], {type(applied[at - 1]).__name__}"
    return f"{name}, does not fit {before}, which gives shape {shape}: "


def _flat(operation: Applied, array: Any, axes: int) -> Any:
    """Channel vectors of cuDNN's shape (1, c, 1...) as (c,), where these are meant.

    A single value is no vector but broadcast, whatever the channels.
    """
    if isinstance(operation, applicable.BatchNormalization | applicable.PRelu):
        return channel_vector(array, "a channel vector", axes)
    shape = shape_of(array)
    is_vector = len(shape) == axes and all(e == 1 for at, e in enumerate(shape) if at != 1)
    if isinstance(operation, applicable.AddTensor) and shape != (1,):
        return channel_vector(array, "b", axes) if is_vector and shape[1] > 1 else array
    broadcast = isinstance(operation, applicable.AddTensor | applicable.OpTensor)
    return wide_vector(array, axes) if broadcast else array
