"""A program in two calls: up to its pause, and from there on; and what is in its block meanwhile.

Both halves work in one block, at the same addresses, and on the same pinned memory. Where somebody
else wants the block meanwhile, what the second half reads of it is copied to the host, and back
before it runs: these are programs of moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ooc_cudnn.pipeline.program import (
    COPY_IN,
    COPY_OUT,
    Home,
    Item,
    Move,
    Program,
    Task,
    byte_range,
)
from ooc_cudnn.tensor import TensorSpec


@dataclass(frozen=True, eq=False)
class Halves:
    """What runs before the pause of a program and after it, and what is kept between.

    Attributes
    ----------
    first, second : Program
    kept : tuple of (int, int)
        Ranges of bytes of the block that the first half has touched, and the second touches.
    """

    first: Program
    second: Program
    kept: tuple[tuple[int, int], ...]

    @property
    def kept_bytes(self) -> int:
        """Bytes of the block that are kept between."""
        return sum(stop - start for start, stop in self.kept)

    def moves(self, stream: str) -> Program:
        """The program that copies what is kept to the host (or back): arrays "0", "1", ..."""
        homes: dict[str, Home] = {}
        items: list[Item] = []
        for at, (start, stop) in enumerate(self.kept):
            host, there = str(at), f"{at} on the device"
            shape = (stop - start,)
            homes[host] = Home(TensorSpec(shape, "uint8", "pinned"))
            homes[there] = Home(TensorSpec(shape, "uint8", "device"), start)
            ends = (host, there) if stream == COPY_IN else (there, host)
            items.append(Move(f"{stream} of {start} to {stop}", stream, *ends))
        name = f"what {self.first.name} keeps on the device"
        return Program(name, tuple(items), homes, self.first.device_bytes)

    @property
    def out(self) -> Program:
        """The program that copies what is kept to the host."""
        return self.moves(COPY_OUT)

    @property
    def back(self) -> Program:
        """The program that copies it back."""
        return self.moves(COPY_IN)


def halves_of(program: Program) -> Halves:
    """The two halves of a program that pauses.

    Raises
    ------
    ValueError
        If it does not.
    """
    if program.pause is None:
        raise ValueError(f"{program.name} does not pause")
    items = program.items[: program.pause], program.items[program.pause :]
    first, second = (_of(program, each) for each in items)
    shared = first.homes.keys() & second.homes.keys()
    ranges = [
        byte_range(home, tuple((0, extent) for extent in home.spec.shape))
        for home in (program.homes[name] for name in shared)
        if home.offset is not None
    ]
    return Halves(first, second, tuple(_merged(ranges)))


def _of(program: Program, items: tuple[Item, ...]) -> Program:
    """The program of some of the items, with the tensors that they touch."""
    names = set[str]()
    for item in items:
        for name in _touched(item):
            while name:
                names.add(name)
                name = program.homes[name].of
    homes = {
        name: home._replace(after=tuple(other for other in home.after if other in names))
        for name, home in program.homes.items()
        if name in names
    }
    return replace(program, items=items, homes=homes, pause=None)


def _touched(item: Item) -> Iterable[str]:
    if isinstance(item, Task):
        return item.binds.values()
    return item.ends if isinstance(item, Move) else ()


def _merged(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Ranges of bytes in order, those that meet as one.

    >>> list(_merged([(8, 16), (0, 4), (12, 20), (20, 24)]))
    [(0, 4), (8, 24)]
    """
    found: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(stop, found[-1][1])
        else:
            found.append((start, stop))
    yield from found
