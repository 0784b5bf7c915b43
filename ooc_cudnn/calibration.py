"""`calibrate`: measures a device, and fits the machine model that plans are made with.

What is measured is what a call does: copies of pieces by placement, both directions of the link at
once, convolutions and elementwise passes by arithmetic and memory order. `perfmodel.fit` finds the
lines; nothing is stored before all of them are found.
"""

from __future__ import annotations

import datetime
import functools
import itertools
import os
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ooc_cudnn.calibration_effort import MIB, Effort, arithmetic, make_effort
from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.base import Device
from ooc_cudnn.functions.call import forget_calls
from ooc_cudnn.machines import cache_directory, machine_for, machine_path
from ooc_cudnn.measuring import DUPLEX_BATCHES, Bench, Timing
from ooc_cudnn.memory.arrays import reserve_file
from ooc_cudnn.memory.limit import limit_bytes
from ooc_cudnn.operations.chain import Buffer, Launch
from ooc_cudnn.operations.convolution import Convolution
from ooc_cudnn.operations.pointwise import Pointwise
from ooc_cudnn.pipeline.pricing import aligned
from ooc_cudnn.progress import Reporter, reporter
from ooc_cudnn.settings import current
from perfmodel import ComputeModel, FitError, Line, MachineModel, TransferModel, fit

__all__ = ["calibrate", "machine_for"]

#: A line is refused if the timings of its typical sample lie further than this from their median.
TOO_NOISY = 0.5


def calibrate(
    device: Device | str | None = None, save: bool = True, quick: bool = False
) -> MachineModel:
    """Measure a device and fit its machine model.

    Parameters
    ----------
    device : str or Device, optional
        "cuda", "cuda:1", "host"; that of the settings when left out.
    save : bool
        Keep the model under the user's cache directory, where plans find it from now on.
    quick : bool
        Fewer and shorter measurements: about 5 seconds, and larger errors.

    Returns
    -------
    MachineModel
        `quality` says of each line the median error on its samples, on samples held out of the
        fit, and how far timings varied from batch to batch.

    Raises
    ------
    perfmodel.FitError
        If timings vary too much, or fall as work grows: something else uses the machine.
    DeviceOutOfMemoryError
        If the memory limit leaves no room to measure.
    OSError
        If no temporary file can be written.

    Notes
    -----
    Source: sections 4.1 and 4.2 of the ooc_cuDNN paper. The file is written at the very end, so an
    interrupted calibration leaves the last one in place.
    """
    settings = current()
    if device is None or isinstance(device, str):
        device = get_device(device or settings.device)
    effort = make_effort(device, quick=quick)
    with device.arena.lock:
        limit = limit_bytes(device, settings.memory_limit)
        bench = Bench(device, limit, batches=effort.batches, batch_seconds=effort.batch_seconds)
        device.release_caches()
        count = 3 + len(arithmetic(device)) * 2
        try:
            with reporter(
                settings.progress, total=count, label="calibrate", predicted_seconds=5.0
            ) as report:
                model = _Calibration(bench, effort, report).model()
        finally:
            device.arena.release_block()
    if save:
        model.save(machine_path(device.identity()))
        forget_calls()
    return model


class _Samples:
    """What was measured for one line."""

    def __init__(self) -> None:
        self.work: list[float] = []
        self.timings: list[Timing] = []

    def add(self, work: float, timing: Timing) -> None:
        self.work.append(work)
        self.timings.append(timing)


class _Calibration:
    """The measurements of one calibration, in the order in which they are made."""

    def __init__(self, bench: Bench, effort: Effort, report: Reporter) -> None:
        self.bench, self.effort, self.report = bench, effort, report
        self.device = bench.device
        self.samples: defaultdict[str, _Samples] = defaultdict(_Samples)
        self.quality: dict[str, dict[str, float]] = {}
        self.done = 0

    def model(self) -> MachineModel:
        """Measure everything, and fit it."""
        slowdown = self.pinned()
        self.step()
        self.pageable()
        self.step()
        with _scratch_directory() as directory:
            self.disk(directory)
        self.step()
        for dtype, tf32 in arithmetic(self.device):
            for layout in self.device.layouts(dtype):
                self.convolutions(dtype, layout, allow_tf32=tf32)
                self.step()
            if tf32 or self.device.kind == "host":
                self.pointwise(dtype)
        lines = {key: self.line(key, found) for key, found in self.samples.items()}
        copies: dict[str, dict[str, Line]] = {"copy_in": {}, "copy_out": {}}
        for key in [key for key in lines if key.startswith("copy_")]:
            direction, placement = key.split("/")
            copies[direction][placement] = lines.pop(key)
        identity = dict(self.device.identity())
        identity.setdefault(
            "device_bytes", str(self.device.free_bytes() + self.device.arena.held_bytes)
        )
        return MachineModel(
            name=identity.get("gpu", self.device.name),
            identity=identity,
            transfer=TransferModel(**copies, duplex_slowdown=slowdown),
            compute=ComputeModel(self.with_stand_ins(lines)),
            calibrated=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
            quality=self.quality,
        )

    def step(self) -> None:
        """Report that another group of measurements is done."""
        self.done += 1
        self.report.update(self.done)

    def line(self, key: str, found: _Samples) -> Line:
        """Fit one line, and keep how good it is."""
        spread = statistics.median(timing.spread for timing in found.timings)
        name = f"{key} on {self.device.name}"
        if spread > TOO_NOISY:
            raise FitError(
                f"{name}: timings vary by {spread:.0%} from batch to batch; something else uses "
                "the machine, so calibrate again when it is quiet"
            )
        try:
            fitted = fit(found.work, [timing.seconds for timing in found.timings])
        except FitError as error:
            raise FitError(f"{name}: {error}") from error
        self.quality[key] = {**fitted.quality(), "spread": spread}
        return fitted.line

    def with_stand_ins(self, lines: dict[str, Line]) -> dict[str, Line]:
        """Add the lines of TF32 on the host, which computes it as float32."""
        if self.device.kind == "host":
            strict = [key for key in lines if key.startswith("convolution/float32/")]
            lines.update({key.replace("float32", "tf32"): lines[key] for key in strict})
        return lines

    # The link ----------------------------------------------------------------------------------

    def pinned(self) -> float:
        """Measure copies of pinned memory, and how the two directions slow each other down."""
        sizes = self._copy_sizes()
        host = self.device.allocate_pinned(2 * sizes[-1]).view(np.float32)
        self._link("pinned", host, sizes)
        other = self.device.allocate_pinned(2 * sizes[-1]).view(np.float32)
        other[...] = 0
        base, elements = self.bench.reserve(2 * sizes[-1]), sizes[-1] // 4
        copy_in = self.bench.copy("copy_in", base, host, elements)
        copy_out = self.bench.copy("copy_out", base + sizes[-1], other, elements)
        found = self.bench.slowdown(
            copy_in,
            copy_out,
            self.bench.time("copy_in", copy_in).seconds,
            self.bench.time("copy_out", copy_out).seconds,
        )
        self.quality["duplex"] = {"spread": found.spread, "samples": float(DUPLEX_BATCHES)}
        return found.seconds

    def pageable(self) -> None:
        """Measure copies of plain NumPy memory."""
        sizes = self._copy_sizes()
        self._link("pageable", np.zeros(2 * sizes[-1] // 4, np.float32), sizes)

    def _copy_sizes(self) -> tuple[int, ...]:
        sizes = tuple(size for size in self.effort.copy_bytes if self.bench.fits(2 * size))
        return sizes or self.effort.copy_bytes[:1]  # which then says what it lacks

    def _link(self, placement: str, host: Any, sizes: tuple[int, ...]) -> None:
        base, staged = self.bench.reserve(sizes[-1]), placement != "pinned"
        # Out first: it touches every page of the host's memory, and then of the device's.
        for direction in ("copy_out", "copy_in"):
            whole = self.bench.copy(direction, base, host, sizes[-1] // 4)
            self.bench.steps({direction: [whole(0), whole(1)]}, staged=staged)
            for size in sizes:
                action = self.bench.copy(direction, base, host, size // 4)
                timing = self.bench.time(direction, action, staged=staged)
                self.samples[f"{direction}/{placement}"].add(size, timing)

    def disk(self, directory: Path) -> None:
        """Measure reading a file that is not in the page cache, and writing one that is new.

        Writing is as fast as the page cache takes it, as it is until that is full.
        """
        source = directory / "source"
        np.ones(self.effort.file_bytes // 4, np.float32).tofile(source)
        sizes = [size for size in self.effort.disk_bytes if self.bench.fits(2 * size)]
        base = self.bench.reserve(max(sizes, default=MIB))
        openings: dict[str, Callable[[], Any]] = {
            "copy_in": lambda: _cold(source),
            "copy_out": lambda: _fresh(directory / "target", self.effort.file_bytes),
        }
        for direction, opened in openings.items():
            for size in sizes:
                measure = functools.partial(self._through_file, direction, base, opened, size)
                self.samples[f"{direction}/disk"].add(size, self.bench.repeat(measure))

    def _through_file(
        self, direction: str, base: int, opened: Callable[[], Any], size: int
    ) -> float:
        """Seconds of one copy, to or from parts of a file that were not touched before."""
        file = opened()
        count = min(8, file.nbytes // size)
        copy = self.bench.copy(direction, base, file, size // 4)
        actions = [copy(index) for index in range(count)]
        stops = self.bench.steps({direction: actions}, staged=True)[direction]
        return float((stops[-1] - stops[0]) / (count - 1))

    # Computing ---------------------------------------------------------------------------------

    def convolutions(self, dtype: str, layout: str, *, allow_tf32: bool) -> None:
        """Measure one kind of arithmetic in one memory order."""
        found = []
        for n, c_x, c_y, extent, window in self.effort.convolutions:
            operation = replace(
                Convolution.of(
                    (n, c_x, extent, extent),
                    (c_y, c_x, window, window),
                    padding=window // 2,
                    dtype=dtype,
                    allow_tf32=allow_tf32,
                ),
                layout=layout,
            )
            buffers = {
                "x": Buffer(operation.x_shape, dtype, layout),
                "w": Buffer(operation.w_shape, dtype, layout),
                "y": Buffer(operation.output_shape, dtype, layout),
            }
            found.append((Launch(operation, ("x", "w"), "y"), buffers))
        self._launches(found, dtype)

    def pointwise(self, dtype: str) -> None:
        """Measure the fused elementwise pass: bias and ReLU."""
        found = []
        for elements in self.effort.elements:
            shape = (1, 64, elements // 2048, 32)
            operation = Pointwise(shape, dtype, dtype, "relu", has_shift=True)
            buffers = {
                "x": Buffer(shape, dtype, "channels_first"),
                "b": Buffer((64,), dtype, "channels_first"),
                "y": Buffer(shape, dtype, "channels_first"),
            }
            found.append((Launch(operation, ("x", "", "b", ""), "y"), buffers))
        self._launches(found, dtype)

    def _launches(self, launches: list[tuple[Launch, dict[str, Buffer]]], dtype: str) -> None:
        """Time launches on random numbers; those that the memory limit excludes are left out."""
        # Each operand has a place of its own, so no result becomes another launch's input.
        sizes: dict[str, int] = {}
        chosen: list[tuple[Launch, dict[str, Buffer], int]] = []
        for launch, buffers in launches:
            grown = {
                name: max(sizes.get(name, 0), aligned(buffer.nbytes))
                for name, buffer in buffers.items()
            }
            held = sum(grown.values())
            scratch = self.bench.workspace(launch, buffers, held) if self.bench.fits(held) else None
            most = max([scratch or 0, *(other for *_, other in chosen)])
            if scratch is not None and self.bench.fits(held + aligned(most)):
                chosen.append((launch, buffers, scratch))
                sizes = grown
        held, most = sum(sizes.values()), max((scratch for *_, scratch in chosen), default=0)
        base = self.bench.reserve(held + aligned(most))
        self.bench.fill(base, held, dtype)
        starts = itertools.accumulate(sizes.values(), initial=base)
        pointers = dict(zip(sizes, starts, strict=False))
        for launch, buffers, scratch in chosen:
            work = launch.operation.work()
            timing = self.bench.launch(launch, buffers, pointers, (base + held, scratch))
            self.samples[work.key].add(work.amount, timing)


# Files -----------------------------------------------------------------------------------------


@contextmanager
def _scratch_directory() -> Iterator[Path]:
    """Make a folder for a while: in the cache directory, else where temporary files go."""
    try:
        cache_directory().mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(prefix="calibrate-", dir=cache_directory())
    except OSError:
        folder = tempfile.TemporaryDirectory(prefix="ooc_cudnn-calibrate-")
    with folder as name:
        yield Path(name)


def _cold(path: Path) -> np.memmap[Any, Any]:
    """Map a file, with nothing of it in the page cache where the system can be asked for that."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return np.memmap(path, np.float32, "r")


def _fresh(path: Path, nbytes: int) -> np.memmap[Any, Any]:
    """Map a new file, set aside on the disk as an output is."""
    path.unlink(missing_ok=True)
    file: np.memmap[Any, Any] = np.memmap(path, np.float32, "w+", shape=(nbytes // 4,))
    reserve_file(file)
    return file
