"""What a first call waits for engines to be measured, and what the calls that follow gain by it.

Each call from pinned memory, under a memory limit that it does not fit, twice from the start: with
`trials.FIRST_CALLS_MEASURE` off, as it is by default, and on. Nothing that was stored is used.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

import ooc_cudnn
from benchmarks import common
from benchmarks.engines import QUICK, Layer
from ooc_cudnn.bench.timing import timed
from ooc_cudnn.devices import get_device
from ooc_cudnn.functions import trials

NAME = "first_calls"
LAYERS = (Layer(1024, 512, 512, 28), Layer(1024, 256, 256, 28), Layer(256, 128, 128, 112))
DIRECTIONS = ("forward", "backward_filter")
#: Device memory, and calls that are timed after the first one.
LIMIT, CALLS = "1GiB", 3
#: No first call may wait longer for it (seconds).
MOST_WAITING = 1.0


def arguments_of(layer: Layer, direction: str) -> dict[str, Any]:
    """The operands and the result of a call, in pinned memory; ones, which take as long as any."""
    sites = (layer.extent + 2 * layer.padding - layer.window) // layer.stride + 1
    shapes = {"x": layer.x_shape, "w": layer.w_shape, "dy": (layer.n, layer.c_y, sites, sites)}
    names = {"forward": ("x", "w", "dy"), "backward_filter": ("x", "dy", "w")}[direction]
    arrays = [common.pinned(shapes[name]) for name in names]
    for array in arrays:
        array.fill(1.0)
    given: dict[str, Any] = dict(zip(names[:2], arrays, strict=False))
    given |= {"out": arrays[2], "padding": layer.padding, "stride": layer.stride}
    if direction == "backward_filter":
        given["filter_shape"] = layer.w_shape
    return given


def in_the_middle(layer: Layer, direction: str, result: Any) -> dict[str, Any]:
    """Whether results are the sums of ones that they must be, where the window lies within."""
    if direction == "forward":
        found, expected = result[0, :, 1:-1, 1:-1], layer.c_x * layer.window**2
    else:
        found, expected = result[:, :, 1, 1], layer.n * layer.extent**2
    error = float(abs(found / expected - 1).max())
    return {"ok": error < 1e-3, "error": error}


def seconds_of(report: common.Report, direction: str, given: dict[str, Any]) -> tuple[float, float]:
    """Seconds of a first call, and of one that follows."""
    call = partial(getattr(ooc_cudnn, f"convolution_{direction}"), **given)
    with common.no_stored_engines():
        first = timed(call, report.synchronize)
        later = [timed(call, report.synchronize) for _ in range(CALLS)]
    return first, statistics.median(later)


def body(report: common.Report) -> None:
    rows = []
    chosen: dict[str, Any] = {"memory_limit": LIMIT}
    if get_device(report.arguments.device).engines is not None:
        chosen["machine"] = None  # by a machine that is named, nothing is tried
    # what a process does once is no part of a first call's wait
    with ooc_cudnn.settings(**chosen):
        seconds_of(report, DIRECTIONS[0], arguments_of(QUICK[0], DIRECTIONS[0]))
    before, most = trials.FIRST_CALLS_MEASURE, 0.0
    for layer in QUICK if report.quick else LAYERS:
        for direction in DIRECTIONS:
            given = arguments_of(layer, direction)
            for tf32 in (True, False):
                name = f"{layer.name} {'tf32' if tf32 else 'strict'} {direction}"
                found = {}
                with ooc_cudnn.settings(allow_tf32=tf32, **chosen):
                    for on in (False, True):
                        trials.FIRST_CALLS_MEASURE = on
                        try:
                            found[on] = seconds_of(report, direction, given)
                        finally:
                            trials.FIRST_CALLS_MEASURE = before
                (plain_first, plain), (first, later) = found[False], found[True]
                waited = first - plain_first
                most = max(most, waited)
                figures = {"first": [plain_first, first], "later": [plain, later]}
                spoken = f"waits {waited:.3f} s; later {1e3 * plain:.1f} > {1e3 * later:.1f} ms"
                report.measure(name, figures, spoken=spoken)
                rows.append(
                    (name, f"{waited:.3f} s", f"{1e3 * plain:.1f} ms", f"{1e3 * later:.1f}")
                )
                report.write()
            finite = bool(abs(given["out"]).max() < float("inf"))
            report.check(f"{layer.name} {direction}: contents", {"ok": finite})
    report.claim("the longest wait of a first call", most, "<=", MOST_WAITING, "s")
    print("\n" + common.table(("call", "first waits", "later, plain", "measured"), rows))


main = partial(common.run, NAME, body, __doc__)

if __name__ == "__main__":
    common.main(main)
