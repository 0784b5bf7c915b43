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
    planes = (
        "PL1 max NCHW forw",
        "PL3 max NCHW forw",
        "PL8 max NCHW forw",
        "PL5 average NCHW forw",
    )
    yield "no planes", pooling, {"STAGE_BYTES": 0}, planes
    rows = ("PL1 max NCHW back", "PL5 max NCHW back", "PL7 average NCHW back")
    yield "no rows", pooling_backward, {"MOST_STAGE_BYTES": 0}, rows
    lanes = ("PL5 max NHWC back", "PL5 average NHWC back")
    yield "no cells", pooling_backward, {"CELL_ELEMENTS": 0}, lanes
    for packs in (1024, 4096):
        yield f"tiles of {packs}", pooling_backward, {"TILE_PACKS": packs}, lanes
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
    yield "rows of 8 KB", pooling_backward, {"STAGE_BYTES": 8192}, rows
    yield "planes of 8 KB", pooling, {"STAGE_BYTES": 8192}, planes[2:]
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
