"""What a calibration measures of the link: copies by placement and size, one way and both ways.

What is measured is the steady state of pieces that follow each other through more host memory than
any processor cache holds. One way and both ways take turns, so that their ratio, the slowdown, does
not depend on when they were measured.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from functools import partial
from itertools import product

import numpy as np

from ooc_cudnn.calibration.files import FileCopies
from ooc_cudnn.devices.base import HostArray
from ooc_cudnn.devices.measuring import Bench, Group, Measure, Recorder, Timing
from perfmodel import Samples, Slowdown

MIB = 2**20
DIRECTIONS = ("copy_in", "copy_out")
#: The groups that tell what both directions lose to each other, each beside those before it.
PAIRS = PINNED, PAGEABLE, MIXED = "pinned copies", "pageable copies", "copies of both kinds"

#: Bytes of pieces; for a quick calibration, the second of each.
GPU_SIZES = tuple(MIB * n for n in (1, 4, 16, 32, 64, 128)), tuple(MIB * n for n in (1, 16, 32))
HOST_SIZES = tuple(MIB * n // 4 for n in (1, 4, 16, 32, 64)), (MIB // 4, 2 * MIB, 8 * MIB)
#: Bytes of pieces of files; for a quick calibration, the second of each.
GPU_FILES = tuple(MIB * n for n in (1, 4, 16, 32, 64)), tuple(MIB * n for n in (1, 4, 8))
HOST_FILES = tuple(MIB * n for n in (1, 4, 8)), tuple(MIB * n for n in (1, 2, 4))
#: How often those are measured at least.
GPU_FILE_TURNS, HOST_FILE_TURNS = (5, 2), (3, 2)
#: Bytes of plain memory each way: several times a processor cache.
GPU_PAGEABLE, HOST_PAGEABLE = (512 * MIB, 256 * MIB), 64 * MIB
#: Pieces from this size on say how much the directions slow each other down: they are what calls
#: move, and what each copy costs beside its bytes no longer counts.
GPU_LARGE, HOST_LARGE = 16 * MIB, MIB
#: Most copies of a batch.
MOST_COPIES = 128
#: Rows of the strided copy, and what is page-locked at once.
STRIDED_ROW_BYTES, PIN_BYTES = 4096, 64 * MIB


class LinkMeasurements:
    """The copies that are timed on a device.

    Parameters
    ----------
    bench : Bench
    record : callable
        Takes the key of a line, the bytes of a sample, and its timing.
    quick : bool
        Fewer of them.

    Attributes
    ----------
    slowdowns : dict
        Of each pair of placements, as `TransferModel` has them.
    quality, samples, facts : dict
        Of what is no line, as `MachineModel` has them.
    """

    def __init__(self, bench: Bench, record: Recorder, *, quick: bool) -> None:
        self.bench, self.record, self.device = bench, record, bench.device
        on_host = self.device.kind == "host"
        sizes = (HOST_SIZES if on_host else GPU_SIZES)[1 if quick else 0]
        pageable = HOST_PAGEABLE if on_host else GPU_PAGEABLE[1 if quick else 0]
        self.large = HOST_LARGE if on_host else GPU_LARGE
        # the smallest, where none fits, then says what it lacks
        self.sizes = tuple(size for size in sizes if bench.fits(2 * size)) or sizes[:1]
        self.bytes_each_way = {
            "pinned": max(2 * self.sizes[-1], pageable // 4),
            "pageable": max(2 * self.sizes[-1], pageable),
        }
        files = (HOST_FILES if on_host else GPU_FILES)[1 if quick else 0]
        turns = (HOST_FILE_TURNS if on_host else GPU_FILE_TURNS)[1 if quick else 0]
        self.files = FileCopies(bench, record, files, turns=turns)
        self.host: dict[str, dict[str, HostArray]] = {}
        self.alone: dict[tuple[str, str, int], Timing] = {}
        self.slowdowns: dict[str, Slowdown] = {}
        self.quality: dict[str, dict[str, float]] = {}
        self.samples: dict[str, Samples] = {}
        self.facts: dict[str, float] = {}

    def groups(self) -> list[Group]:
        """What is to be measured, in this order."""
        bench, each = self.bench, len(self.sizes) * len(DIRECTIONS)
        batch = 1.5 * bench.batches * bench.batch_seconds
        moved = self.bytes_each_way["pageable"] / 2**30
        found = [
            Group("host memory", 2.0 * moved, self.prepare),
            Group(PINNED, 1.5 * each * batch, partial(self.same, "pinned")),
            Group(PAGEABLE, 1.5 * each * batch, partial(self.same, "pageable")),
            Group(MIXED, 4 * batch, self.mixed),
            Group("strided copies", 4 * batch, self.strided),
        ]
        if self.device.kind != "host":  # there, nothing needs page-locking to be copied
            found.append(Group("page-locking", 0.5 * moved, self.page_locking))
        found.append(Group("copies of files", 2.0 * self.files.seconds, self.files.measure))
        return found

    def prepare(self) -> None:
        """Allocate host memory for copies each way, and touch every page of it."""
        base = self._reserve()
        for placement, count in self.bytes_each_way.items():
            self.host[placement] = {}
            for direction in DIRECTIONS:
                began = time.perf_counter()
                memory = (
                    self.device.allocate_pinned(count).view(np.float32)
                    if placement == "pinned"
                    else np.empty(count // 4, np.float32)
                )
                if placement == "pinned" and self.device.kind != "host":
                    spent = time.perf_counter() - began
                    self.facts["allocate_pinned_bytes_per_second"] = count / max(spent, 1e-9)
                self.host[placement][direction] = memory
                size = self.sizes[-1]
                copy = self.bench.copy("copy_out", base, memory, size // 4)
                touching = [copy(index) for index in range(-(-count // size))]
                self.bench.steps({"copy_out": touching}, staged=placement != "pinned")

    def close(self) -> None:
        """Let the host memory go."""
        self.host.clear()

    def reference(self) -> float:
        """Seconds of one copy that is measured first and last, to see whether clocks drift."""
        size = min(self.sizes[-1], GPU_LARGE)
        host = self.device.allocate_pinned(2 * size).view(np.float32)
        host[:] = 0
        base = self.bench.reserve(size)
        return self.bench.time("copy_in", self.bench.copy("copy_in", base, host, size // 4)).seconds

    # Copies ------------------------------------------------------------------------------------

    def same(self, placement: str) -> None:
        """Measure copies of pinned memory, or of plain memory: in, out, and both at once."""
        kinds = [("copy_in",), ("copy_out",), DIRECTIONS]
        wanted = list(product(self.sizes, kinds))
        measures = [
            self._copies(dict.fromkeys(directions, placement), size) for size, directions in wanted
        ]
        both: list[tuple[int, dict[str, Timing]]] = []
        for (size, directions), found in zip(wanted, self.bench.in_turns(measures), strict=True):
            if len(directions) == 2:
                both.append((size, found))
                continue
            for direction, timing in found.items():
                self.alone[direction, placement, size] = timing
                self.record(f"{direction}/{placement}", size, timing)
        self._slowed((placement, placement), both)

    def mixed(self) -> None:
        """Measure copies of pinned memory one way and of plain memory the other way, at once."""
        pairs = (("pinned", "pageable"), ("pageable", "pinned"))
        wanted = list(product(pairs, self._large_sizes()))
        measures = [
            self._copies(dict(zip(DIRECTIONS, pair, strict=True)), size) for pair, size in wanted
        ]
        found = self.bench.in_turns(measures)
        for pair in pairs:
            both = [
                (size, timings)
                for (of, size), timings in zip(wanted, found, strict=True)
                if of == pair
            ]
            self._slowed(pair, both)

    def strided(self) -> None:
        """Measure copies of rows that lie apart; they cost the same as others on a good link."""
        size = min(self.sizes[-1], self.large)
        base, row = self._reserve(), STRIDED_ROW_BYTES // 4
        plain, apart = list[Measure](), list[Measure]()
        for direction in DIRECTIONS:
            host = self.host["pinned"][direction]
            for measures, copy in (
                (plain, self.bench.copy(direction, base, host, size // 4)),
                (apart, self.bench.strided_copy(direction, base, host, size // 4, row)),
            ):
                measures.append(
                    self.bench.prepare({direction: copy}, staged=False, most=MOST_COPIES)
                )
        found = self.bench.in_turns([*plain, *apart])
        for direction, one, other in zip(DIRECTIONS, found[:2], found[2:], strict=True):
            ratio = other[direction].seconds / one[direction].seconds
            self.facts[f"strided_{direction}_over_plain"] = ratio

    def page_locking(self) -> None:
        """Measure how fast plain memory is page-locked and released, a piece at a time."""
        host = self.host["pageable"]["copy_in"]
        count = min(PIN_BYTES, host.nbytes)
        seconds: dict[str, list[float]] = {"pin": [], "unpin": []}
        for start in range(0, host.nbytes - count + 1, count):
            pointer = host.ctypes.data + start
            began = time.perf_counter()
            self.device.pin(pointer, count)
            locked = time.perf_counter()
            self.device.unpin(pointer)
            seconds["pin"].append(locked - began)
            seconds["unpin"].append(time.perf_counter() - locked)
        for name, found in seconds.items():
            spent = max(statistics.median(found), 1e-9)
            self.facts[f"{name}_bytes_per_second"] = count / spent

    def _copies(self, placements: dict[str, str], size: int) -> Measure:
        """Prepare copies in the given directions, of memory of the given placements."""
        base = self._reserve()
        actions = {
            direction: self.bench.copy(
                direction,
                base + DIRECTIONS.index(direction) * self.sizes[-1],
                self.host[placement][direction],
                size // 4,
            )
            for direction, placement in placements.items()
        }
        staged = set(placements.values()) != {"pinned"}
        return self.bench.prepare(actions, staged=staged, most=MOST_COPIES)

    def _slowed(self, pair: tuple[str, str], both: Sequence[tuple[int, dict[str, Timing]]]) -> None:
        """Keep how much slower large copies of a pair are at once than alone."""
        name = "/".join(pair)
        large, factors, spreads = self._large_sizes(), dict[str, float](), list[float]()
        for direction, placement in zip(DIRECTIONS, pair, strict=True):
            ratios = [
                found[direction].seconds / self.alone[direction, placement, size].seconds
                for size, found in both
                if size in large
            ]
            factors[direction] = _rounded(max(1.0, statistics.median(ratios)))
            spreads += [found[direction].spread for size, found in both if size in large]
            self.samples[f"duplex/{name}/{direction}"] = Samples(
                tuple(float(size) for size, _ in both),
                tuple(_rounded(found[direction].seconds) for _, found in both),
            )
        self.slowdowns[name] = Slowdown(**factors)
        self.quality[f"duplex/{name}"] = {
            "spread": statistics.median(spreads),
            "samples": float(len(both)),
        }

    def _large_sizes(self) -> tuple[int, ...]:
        return tuple(size for size in self.sizes if size >= min(self.large, self.sizes[-1]))

    def _reserve(self) -> int:
        """A slot for each direction."""
        return self.bench.reserve(2 * self.sizes[-1])


def _rounded(value: float) -> float:
    """Five digits: files stay short, and no timing is truer."""
    return float(f"{value:.5g}")
