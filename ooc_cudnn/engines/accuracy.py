"""Accuracy check of a cuDNN engine: run a small problem and compare with float64.

No engine that is chosen by its seconds is used before it was checked so, once for each kind: with
padding as it is, and with that of pieces at a border, which some engines take for symmetric. One
that computes no small problem cannot be checked, and is not used. The heuristics' choice alone is
the last resort then, with no error: it is taken where there is no engine that was checked.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.engine_kinds import small_like
from ooc_cudnn.devices.engine_provider import EngineProvider
from ooc_cudnn.devices.engines import Engine
from ooc_cudnn.operations.convolution.gradients import AnyConvolution, forward_of, replace_forward
from ooc_cudnn.operations.core.ranges import Pair
from ooc_cudnn.operations.core.row_axis import ROW_AXIS, replace_padding
from ooc_cudnn.pipeline.exactness import UNKNOWN, Error, ExpectedResult, compute

#: Images of the small problem, and its output sites along each axis. Some engines take none so
#: small, so one of more sites is asked for next, and then one of more images.
SMALL = (2, 14), (2, 40), (32, 14)


class EngineErrors(NamedTuple):
    """The errors of an engine: with padding as it is, and with that of the pieces at a border.

    No error where it could not be checked.
    """

    error: Error | None
    is_right_uneven: bool


class Checks:
    """Checks engines on a device, in so much of its memory."""

    def __init__(self, device: Device, engines: EngineProvider, limit_bytes: int) -> None:
        self.device, self.engines, self.limit_bytes = device, engines, limit_bytes
        #: The expected results are the same for all engines of a kind.
        self._expected = lru_cache(maxsize=64)(ExpectedResult.of)

    def of(
        self,
        operation: AnyConvolution,
        engine: Engine,
        *,
        borders: bool,
        chosen: bool = False,
    ) -> EngineErrors | None:
        """Return the errors of an engine; None where it cannot, or must not, compute an operation.

        What the arena held is overwritten.

        Parameters
        ----------
        borders : bool
            With padding of pieces there, too; without, there is no time for that, and it is not
            used for them.
        chosen : bool
            The heuristics chose it, so it runs where nothing was measured: it may be one that
            cannot be checked, and its error may be all that `verify` lets pass.
        """
        error = self._error(operation, engine)
        if error is None or error == UNKNOWN:
            return EngineErrors(None, is_right_uneven=False) if chosen else None
        pieces = border_pieces(operation) if borders else []
        even = [piece for piece in pieces if forward_of(piece).is_even]
        errors = itertools.chain([error], (self._error(piece, engine) for piece in even))
        if not all(_admits(each, chosen=chosen) for each in errors):
            return None
        uneven = [piece for piece in pieces if piece not in even]
        is_right = all(_admits(self._error(piece, engine), chosen=False) for piece in uneven)
        return EngineErrors(error, bool(uneven) and is_right)

    def _error(self, operation: AnyConvolution, engine: Engine) -> Error | None:
        """The error with one kind of padding; None where an engine does not compute that."""
        for images, sites in SMALL:
            small = small_like(operation, images, sites)
            with self.engines.forced(small, engine) as built:
                if built is not None:
                    expected = self._expected(small)
                    array = compute(self.device, small, expected.inputs, built[0], self.limit_bytes)
                    return UNKNOWN if array is None else expected.compared(array)
        return None


def _admits(error: Error | None, *, chosen: bool) -> bool:
    """True if an engine may be used with such an error; None: it computes nothing wrong there."""
    return error is None or error.is_admitted or (chosen and error.is_explained)


def border_pieces(operation: AnyConvolution) -> list[AnyConvolution]:
    """Return an operation with the padding that its pieces have, cut along any axis.

    A piece may have padding where its call has none: of a data gradient, or where the piece that is
    measured lies inside. So may other calls of the same kind; hardly where a window is one site.

    Examples
    --------
    >>> from ooc_cudnn.operations.convolution.forward import Convolution
    >>> pieces = border_pieces(Convolution.of((1, 4, 9, 9), (4, 4, 3, 1), padding=(1, 0)))
    >>> [piece.padding for piece in pieces]
    [((1, 0), (0, 0)), ((0, 1), (0, 0)), ((0, 0), (0, 0))]
    >>> pieces = border_pieces(Convolution.of((1, 4, 9, 9), (4, 4, 3, 1)))
    >>> [piece.padding for piece in pieces]
    [((1, 0), (0, 0)), ((0, 1), (0, 0))]
    """
    forward = forward_of(operation)
    paddings: dict[tuple[Pair, ...], None] = {}
    for axis, pair in enumerate(forward.padding):
        has_none = pair == (0, 0) and forward.window[axis] > 1
        before, after = (1, 1) if has_none else pair
        for other in ((before, 0), (0, after), (0, 0)):
            paddings[replace_padding(forward.padding, other, ROW_AXIS + axis)] = None
    return [
        replace_forward(operation, replace(forward, padding=padding))
        for padding in paddings
        if padding != forward.padding
    ]
