"""Other shapes of tiles and boxes than those that are chosen, each on the cases that it is for.

Only times count here: `benchmarks.kernels` checks contents, and tests do for every shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.kernel_cases import Case, cases, filled
from ooc_cudnn.devices.kernels import (
    launch,
    launch_geometry,
    pooling,
    pooling_backward,
    softmax_plans,
)


@contextmanager
def changed(module: Any, **values: Any) -> Iterator[None]:
    """Let constants of a module have other values meanwhile."""
    before = {name: getattr(module, name) for name in values}
    for name, value in values.items():
        setattr(module, name, value)
    launch._prepared.clear()
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)
        launch._prepared.clear()


def trials() -> Iterator[tuple[str, Any, dict[str, Any], tuple[str, ...]]]:
    """What is changed, and in cases with which words."""
    odd = ("PL5 max NCHW forw", "PL7 max NCHW forw", "PL8 max NCHW forw")
    for sets in ((3, 2), (2,), ()):
        yield f"windows of {sets}", pooling, {"WORKING_SETS": sets}, odd
    planes = (
        "PL1 max NCHW back",
        "PL5 max NCHW back",
        "PL7 max NCHW back",
        "PL5 average NCHW back",
        "PL7 average NCHW back",
    )
    for size in (0, 8192, 32768):
        yield f"planes of {size}", pooling_backward, {"PLANES_BYTES": size}, planes
    lanes = (
        "PL5 max NHWC back",
        "PL9 max NHWC back",
        "PL5 average NHWC back",
        "PL5 average CHWN back",
    )
    for power in (18, 20):
        yield f"2**{power} strips", pooling_backward, {"STRIP_THREADS": 2**power}, lanes
    yield "lanes of 16", pooling_backward, {"TILE_LANES": 16}, lanes
    yield "packs of 8 bytes", pooling_backward, {"PACK_BYTES": 8}, lanes
    odd = ("CV6 NCHW to NHWC", "CV6 NHWC to NCHW", "CV6 scaled NHWC to CHWN")
    yield "bursts", launch_geometry, {"LINE_BYTES": 64}, odd
    yield (
        "tile 24576",
        launch_geometry,
        {"TRANSPOSE_TILE_BYTES": 24576},
        ("CV7 scaled NHWC to NCHW",),
    )
    yield "staged", softmax_plans, {"FEW_ROWS": 0}, ("128 x 10 ",)
    long_rows = ("512 x 30000", "128 x 100000")
    yield "chunks of 512 threads", softmax_plans, {"CHUNK_LANES": 512}, long_rows
    yield "windows 1", pooling, {"WORKING_SETS": ()}, ("PL5 max NHWC forw",)


def run(bench: Any, seconds_left: Any) -> list[dict[str, Any]]:
    """Time every trial beside what is chosen now."""
    found: list[dict[str, Any]] = []
    chosen: dict[str, float] = {}

    def time_of(case: Case) -> float:
        tensors = filled(bench.torch, case, bench.place)
        timings = bench.clock.measure({"ours": [bench.ours(case, tensors)]})
        return float(timings["ours"].median)

    for name, module, values, words in trials():
        for case in cases(quick=False):
            if not any(word in case.name for word in words) or seconds_left() < 0:
                continue
            if case.name not in chosen:
                chosen[case.name] = time_of(case)
            try:
                with changed(module, **values):
                    seconds = time_of(case)
            except Exception as error:  # a tile too large, say
                bench.report.note(f"{name}: {case.name}: {type(error).__name__}")
                continue
            share = chosen[case.name] / seconds
            found.append({"trial": name, "case": case.name, "seconds": seconds, "speed": share})
            print(f"{name:18} {case.name:28} {share:.3f} x as fast as chosen")
    return found
