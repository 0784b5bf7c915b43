"""A grid of blocks of one output: what each reads of the inputs, and which blocks are alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise, product

from ooc_cudnn.network.ir.step import Step
from ooc_cudnn.network.ir.tensor import common
from ooc_cudnn.network.tiled.tile_step import step_of_tile
from ooc_cudnn.operations.core.call import Region
from perfmodel.cached import cached_property


@dataclass(frozen=True)
class GridTile:
    """A block of a grid.

    Attributes
    ----------
    index : tuple of int
        In the grid.
    region : Region
        Of the output.
    inputs : mapping
        What it needs of each input.
    kind : tuple of int
        Blocks of one kind run the same step, and make as much more than their region.
    """

    index: tuple[int, ...]
    region: Region
    inputs: Mapping[str, Region]
    kind: tuple[int, ...]


class Grid:
    """Blocks of the one output of a step of inference.

    Parameters
    ----------
    step : Step
    cuts : sequence of sequence of int
        Where blocks begin along each axis of the output, and where the last one ends.
    """

    def __init__(self, step: Step, cuts: Sequence[Sequence[int]]) -> None:
        self.step, self.cuts = step, tuple(map(tuple, cuts))
        (self.output,) = step.outputs

    @cached_property
    def _along(self) -> list[list[tuple[int, Mapping[str, Region]]]]:
        """The kind of each place on each axis, and what it needs of the inputs."""
        whole = tuple((0, each[-1]) for each in self.cuts)
        axes = []
        for axis, cuts in enumerate(self.cuts):
            kinds: dict[tuple[Step, int, int], int] = {}
            places = []
            for start, stop in pairwise(cuts):
                region = (*whole[:axis], (start, stop), *whole[axis + 1 :])
                tile = step_of_tile(self.step, self.output, region)
                first, last = tile.output[axis]
                kind = tile.step, start - first, last - stop
                places.append((kinds.setdefault(kind, len(kinds)), tile.inputs))
            axes.append(places)
        return axes

    def __iter__(self) -> Iterator[GridTile]:
        """Every block in turn.

        What it needs along an axis does not depend on the others, nor does what it launches.
        """
        for index in product(*(range(len(each) - 1) for each in self.cuts)):
            region = tuple(
                (each[at], each[at + 1]) for at, each in zip(index, self.cuts, strict=True)
            )
            along = [each[at] for at, each in zip(index, self._along, strict=True)]
            # an axis of the output cuts one of the input, whichever that is, if any
            inputs = {
                name: reduce(common, (each[name] for _, each in along)) for name in along[0][1]
            }
            yield GridTile(index, region, inputs, tuple(kind for kind, _ in along))
