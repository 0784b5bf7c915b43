"""Statistics of a batch that several processes have parts of: each waits here for all others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ooc_cudnn.operations.core.call import Piece, Read
from ooc_cudnn.operations.core.operation import Array
from ooc_cudnn.operations.external.calls import ExternalCall, ExternalInput
from ooc_cudnn.operations.normalization.channel_reduction import STATES


class Ranks(Protocol):
    """Processes that train one network together, each on images of its own.

    What they make are computations (`operations.external`) without gradients.
    """

    def moments(self, node: str, channels: int) -> Any:
        """Those of all images, (3, c), of those of one's own."""

    def sums(self, node: str, channels: int, elements: int) -> Any:
        """Those over all images, (2, c), of one's own and the moments of all.

        They are scaled by `elements`, those that a channel has in one's own images, over those that
        it has in all: whoever divides by the former has divided by the latter.
        """


@dataclass(frozen=True)
class CrossRankCall(ExternalCall):
    """y from x0 (and what further there is), by a computation that all ranks take part in.

    It is run once a step, in the order of the step: what one rank does again, another would not.
    """

    @classmethod
    def of(cls, computation: Any, kind: str, channels: int, *further: str) -> CrossRankCall:
        """Describe the call of a state (`STATES`) that is float64, and further ones."""
        taken = tuple(
            ExternalInput((STATES[k], channels), "float64", True) for k in (kind, *further)
        )
        return cls(computation, taken, (STATES[kind], channels), "float64", 1, 1)

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        """Do nothing: the others have gone on, and nobody would answer."""
        return {}
