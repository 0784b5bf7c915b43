"""Strategies of the planner, a file each; `best` tries them in the order of `STRATEGIES`."""

from __future__ import annotations

from ooc_cudnn.network.search.strategies.copied_skips import CopiedSkips
from ooc_cudnn.network.search.strategies.host_memory import HostMemory
from ooc_cudnn.network.search.strategies.other_layout import OtherLayout
from ooc_cudnn.network.search.strategies.remade_row_tiles import RemadeRowTiles
from ooc_cudnn.network.search.strategies.remat_shares import RematerializeShares
from ooc_cudnn.network.search.strategies.remat_slices import RematerializeSlices
from ooc_cudnn.network.search.strategies.row_tiles import RowTiles
from ooc_cudnn.network.search.strategies.spill import Spill
from ooc_cudnn.network.search.strategies.spill_slices import SpillSlices
from ooc_cudnn.network.search.strategies.strategy import Strategy
from ooc_cudnn.network.search.strategies.two_part_micro_batches import TwoPartMicroBatches

#: Tried before all others where the search finds nothing for the batch in one piece: what is soon
#: planned first.
FIRST: tuple[Strategy, ...] = (
    CopiedSkips(),
    RematerializeShares(),
    SpillSlices(),
    RematerializeSlices(),
)
STRATEGIES: tuple[Strategy, ...] = (
    *FIRST,
    RemadeRowTiles(),
    RowTiles(),
    Spill(),
    TwoPartMicroBatches(),  # of many images it has tens of thousands of phases
    OtherLayout(),
    HostMemory(),
)
