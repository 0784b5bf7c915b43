"""The demo: filter a photograph of 100 megapixels under a memory limit of a tenth of the data.

Everything is on disk and is cut, streamed and joined by the library; the result is compared with
SciPy, and drawn. Run it with ``ooc-cudnn demo`` or ``make demo``.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ooc_cudnn.call_planner.plan import Plan
from ooc_cudnn.demo.check import FUNCTION, PATCHES, Problem, check_patches
from ooc_cudnn.demo.photograph import allocate, enlarge, photograph
from ooc_cudnn.demo.pictures import feature_sheet
from ooc_cudnn.devices import get_device
from ooc_cudnn.functions import convolution_add_activation_forward
from ooc_cudnn.functions.call.plan_api import plan
from ooc_cudnn.profiling import Call, profile
from ooc_cudnn.progress import reporter
from ooc_cudnn.settings import current, settings
from ooc_cudnn.settings_table import Progress
from ooc_cudnn.units import format_bytes, format_seconds, parse_bytes

Array = np.ndarray[Any, Any]
Say = Callable[[str], object]

#: The limit is the data's size divided by this, or less.
SHARE = 10
#: Disk space to leave free.
SPARE_BYTES = 64 * 2**20


@dataclass(frozen=True)
class DemoResult:
    """Result of the demo: the call as `profile` recorded it, and the error of its result.

    `data_bytes` are those of input and output on disk, `checked_values` output values that were
    compared with SciPy's, `largest_error` their largest difference (the feature maps reach about
    0.3), `pictures` the feature maps and the timeline, `seconds` everything, from the photograph to
    the pictures.
    """

    call: Call
    data_bytes: int
    limit_bytes: int
    checked_values: int
    largest_error: float
    pictures: tuple[Path, ...]
    seconds: float


def run_demo(
    *,
    megapixels: float = 100.0,
    memory_limit: int | str | None = None,
    output: Path = Path("demo_output"),
    keep: bool = False,
    say: Say = print,
) -> DemoResult:
    """Run the demo, on the device of the settings.

    Parameters
    ----------
    megapixels : float
        Size of the enlarged photograph, at least; 12 bytes a pixel, and 16 for its feature maps.
    memory_limit : int or str, optional
        Device memory that the library may hold: at most a tenth of the data, which is also the
        default (rounded down to a power of two).
    output : Path
        Folder for the pictures, made if need be; and for the data while the demo runs.
    keep : bool
        Leave the data there: ``photograph.npy`` and ``feature_maps.npy``.
    say : callable
        Takes each line of the report.

    Raises
    ------
    ValueError, OSError
        If an option makes no sense, or the disk has no room, with what would do.
    VerificationError
        If the result differs from SciPy's by more than rounding explains.
    """
    begin = time.perf_counter()
    if not (math.isfinite(megapixels) and 0.01 <= megapixels <= 1e5):
        raise ValueError(f"megapixels={megapixels:g} must be between 0.01 and 100000")
    source = photograph()
    problem = Problem.of(source, megapixels)
    limit_bytes = _limit(memory_limit, problem.data_bytes)
    progress = _progress(say)
    with (
        _data_folder(output, problem.data_bytes, keep=keep) as folder,
        settings(memory_limit=limit_bytes, allow_tf32=False, progress=progress),
        profile() as profiled,
    ):
        name = get_device(current().device).name
        where = "the host (no card in use)" if name == "host" else name
        say(f"1. A photograph larger than the memory limit, on {where}")
        x = allocate(folder / "photograph.npy", problem.x_shape)
        y = allocate(folder / "feature_maps.npy", problem.y_shape)
        label = "   enlarging"
        with reporter(progress, total=x.shape[2], label=label, predicted_seconds=math.inf) as bar:
            enlarge(source, x[0], bar.update)
        times, share = x.shape[3] / source.shape[2], problem.data_bytes / limit_bytes
        for name, array, more in (("input", x, f", enlarged {times:.1f} times"), ("output", y, "")):
            size = " x ".join(map(str, array.shape))
            say(f"   {name:<6}  {size:<22}  {format_bytes(array.nbytes):>10}  on disk{more}")
        say(f"   limit   {format_bytes(limit_bytes)} of device memory, 1/{share:.0f} of the data")
        say("")
        say("2. The plan")
        operands: dict[str, Any] = {"x": x, "w": problem.w, "b": problem.b}
        call_plan = plan(FUNCTION, **operands, out=y, **problem.options)
        for line in call_plan.explain().splitlines():
            say(f"   {line}".rstrip())
        _explain_turns(call_plan, say)
        say("")
        say(f"3. The run: {problem.y_shape[1]} oriented filters, bias and ReLU")
        convolution_add_activation_forward(**operands, out=y, **problem.options)
        (call,) = profiled.calls
        _report_run(call, problem, limit_bytes, say)
        say("")
        say("4. A sample of the output, computed by SciPy in float64")
        values, error = check_patches(problem, x, y)
        say(f"   {values} values in {PATCHES} patches agree: largest difference {error:.1e}")
        say("")
        pictures = (output / "feature_maps.png", output / "timeline.png")
        _draw(problem, x, y, source, pictures[0])
        profiled.plot(pictures[1])
        del x, y, operands
    say("5. To look at")
    for picture in pictures:
        say(f"   {picture}")
    if keep:
        say(f"   {folder}/photograph.npy, feature_maps.npy (numpy.load with mmap_mode='r')")
    seconds = time.perf_counter() - begin
    say(f"   {format_seconds(seconds)} in all")
    return DemoResult(call, problem.data_bytes, limit_bytes, values, error, pictures, seconds)


def _limit(asked: int | str | None, data_bytes: int) -> int:
    largest = data_bytes // SHARE
    if asked is None:
        return 1 << (largest.bit_length() - 1)
    limit = parse_bytes(asked, name="memory_limit")
    if limit > largest:
        raise ValueError(
            f"memory_limit={asked!r} is more than a tenth of the data, which the demo is about; "
            f"give at most {format_bytes(largest)} ({largest}), or more megapixels"
        )
    return limit


@contextlib.contextmanager
def _data_folder(output: Path, data_bytes: int, *, keep: bool) -> Iterator[Path]:
    output.mkdir(parents=True, exist_ok=True)
    free_bytes, needed_bytes = shutil.disk_usage(output).free, data_bytes + SPARE_BYTES
    if free_bytes < needed_bytes:
        raise OSError(
            f"the demo needs {format_bytes(needed_bytes)} of disk space in {output}, and "
            f"{format_bytes(free_bytes)} are free; free some, choose another place with --output, "
            f"or a smaller picture with --megapixels"
        )
    if keep:
        yield output
        return
    with tempfile.TemporaryDirectory(prefix="data-", dir=output, ignore_cleanup_errors=True) as at:
        yield Path(at)


def _progress(say: Say) -> Progress:
    """A bar in a terminal; elsewhere a line a quarter."""
    if sys.stderr is not None and sys.stderr.isatty():
        return True
    told = [0]

    def quarters(done: int, total: int) -> None:
        quarter = 4 * done // max(total, 1)
        if quarter != told[0]:
            told[0] = quarter
            if quarter:
                say(f"   {25 * quarter:3d} %")

    return quarters


def _explain_turns(call_plan: Plan, say: Say) -> None:
    """Say why the timeline shows one bar after the other, where it does."""
    if not call_plan.takes_turns:
        return
    stages = {
        "copying in": call_plan.copy_in_seconds,
        "computing": call_plan.compute_seconds,
        "copying out": call_plan.copy_out_seconds,
    }
    longest = max(stages, key=lambda stage: stages[stage])
    share = stages[longest] / sum(stages.values())
    for line in (
        f"By prediction {longest} takes {share:.0%} of the time: overlapping has little to gain.",
        "Each operand has one slot, which allows larger pieces: the three streams take turns,",
        "and the timeline shows one bar after the other.",
    ):
        say(f"   {line}")


def _report_run(call: Call, problem: Problem, limit_bytes: int, say: Say) -> None:
    moved = call.bytes_in + call.bytes_out
    reads = problem.w.size // len(problem.w)
    operations = 2 * reads * math.prod(problem.y_shape)
    say(
        f"   {format_seconds(call.seconds)} (predicted {format_seconds(call.predicted_seconds)}), "
        f"{call.plan.pieces} pieces, {moved / call.seconds / 1e9:.2f} GB/s through the device, "
        f"{operations / call.seconds / 1e9:.0f} GFLOP/s"
    )
    say(
        f"   peak device memory {format_bytes(call.peak_device_bytes)} "
        f"of a limit of {format_bytes(limit_bytes)}"
    )
    if call.peak_device_bytes > limit_bytes:
        raise RuntimeError(f"the memory limit of {limit_bytes} bytes was broken; please report it")


def _draw(problem: Problem, x: Array, y: Array, source: Array, path: Path) -> None:
    height, width = source.shape[1:]
    feature_sheet(
        x[0],
        y[0],
        problem.w,
        path,
        captions=(
            f"A photograph of {width} x {height}, enlarged on disk to "
            f"{problem.x_shape[3]} x {problem.x_shape[2]}",
            "The 8 fine maps in one picture: the colour is the direction of the edge",
        ),
        margin=problem.padding / problem.x_shape[3],
    )
