"""Cache of the launches on a piece of a call: layers repeat, and so do plans of them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from ooc_cudnn.operations.core.call import ALONE, Accumulation, Piece, TiledCall
from ooc_cudnn.operations.core.launch import Buffer, Launch
from ooc_cudnn.operations.core.subcall import SubCall

#: Kinds of pieces whose launches are remembered.
REMEMBERED = 8192
#: The launches of a piece, and every buffer that it takes.
Made = tuple[tuple[Launch, ...], Mapping[str, Buffer]]


@dataclass(frozen=True)
class _Asked:
    """A kind of pieces, and one of them."""

    call: TiledCall
    launch_key: Hashable
    layout: str
    orders: tuple[tuple[str, str], ...]
    accumulation: Accumulation
    piece: Piece = field(compare=False)


def launches_on(
    call: TiledCall,
    piece: Piece,
    *,
    layout: str,
    orders: Mapping[str, str],
    accumulation: Accumulation = ALONE,
) -> Made:
    """`TiledCall.launches`, made once for all pieces that launch the same; not to be changed.

    What is computed outside of the library is made each time: one computation is told from another
    by what plans depend on alone, and each has a function, or a group of ranks, of its own.
    """
    key = call.launch_key(piece)
    while isinstance(call, SubCall):
        piece = call.there(piece)
        call = call.inner
    if call.is_external:
        return call.launches(piece, layout=layout, orders=orders, accumulation=accumulation)
    return _made(_Asked(call, key, layout, tuple(orders.items()), accumulation, piece))


@lru_cache(maxsize=REMEMBERED)
def _made(asked: _Asked) -> Made:
    return asked.call.launches(
        asked.piece,
        layout=asked.layout,
        orders=dict(asked.orders),
        accumulation=asked.accumulation,
    )
