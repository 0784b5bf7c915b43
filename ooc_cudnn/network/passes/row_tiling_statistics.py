"""Statistics of a map in the bands that make it, instead of a sweep of their own over all its rows.

A rewrite of a step that goes down the rows. What statistics are taken of is read again once they
are there, and so must be whole; it may lie on the host. Instead of reading it from there, they take
the rows of a band as soon as these are made: the map is made in bands, each of which is copied into
the whole. Each band has statistics of its own, which are merged behind the last (`row_tiling`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from ooc_cudnn.network.ir.step import Phase, Step
from ooc_cudnn.network.passes.row_tiling_cache import Cut, copy_rows, insert_banded
from ooc_cudnn.network.passes.row_tiling_regions import TilingRegions, takes_statistics


class _Handed(NamedTuple):
    """A whole map that one phase makes, and those that take statistics of it before it is read."""

    source: str
    maker: int
    readers: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.source} rows"


def hand_on_rows(tiling_regions: TilingRegions, cut: Cut) -> TilingRegions:
    """Rewrite regions so that statistics are taken of rows while these are there."""
    return insert_banded(tiling_regions, tuple(_wanted(tiling_regions)), _insert_rows, cut)


def _wanted(tiling_regions: TilingRegions) -> Iterator[_Handed]:
    """Yield maps that cross regions, each made by a phase that makes and adds to nothing else."""
    step, uses = tiling_regions.step, tiling_regions.uses
    for name, used in uses.items():
        tensor = step.tensors[name]
        if len(used.written) != 1 or tensor.of or name in tiling_regions.banded_tensors:
            continue
        maker = step.phases[used.written[0]]
        call = maker.call
        if len(call.results) != 1 or maker.binds[call.results[0]] != name or name in maker.reads:
            continue
        if "h_y" not in call.operands[call.results[0]].axes:
            continue
        behind = [at for at in used.phases if at > used.written[0]]
        readers = tuple(
            itertools.takewhile(lambda at: takes_statistics(step.phases[at].call), behind)
        )
        if readers:
            yield _Handed(name, used.written[0], readers)


def _insert_rows(step: Step, maps: tuple[_Handed, ...]) -> Step:
    """The step with rows of these maps, each copied into the whole behind its maker."""
    tensors, phases = dict(step.tensors), list[Phase]()
    of_maker = {each.maker: each for each in maps}
    for each in maps:
        tensors[each.name] = step.tensors[each.source].derived(each.name, {"copy": "rows"})
    for index, phase in enumerate(step.phases):
        binds = dict(phase.binds)
        made = of_maker.get(index)
        renamed = {each.source: each.name for each in maps if index in each.readers}
        if made is not None:
            renamed[made.source] = made.name
        binds = {operand: renamed.get(name, name) for operand, name in binds.items()}
        phases.append(replace(phase, binds=binds))
        if made is not None:
            whole = step.tensors[made.source]
            phases.append(copy_rows(phase, whole, made.name, made.source))
    count = sum(not phase.is_backward for phase in phases)
    return replace(step, tensors=tensors, phases=tuple(phases), forward_count=count)
