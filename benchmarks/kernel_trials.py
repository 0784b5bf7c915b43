"""Other shapes of tiles and boxes than those that are chosen, each on the cases that it is for.

Only times count here: `benchmarks.kernels` checks contents, and tests do for every shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.kernel_cases import Case, cases, filled
from ooc_cudnn.devices.kernels import launch, launch_geometry, pooling, pooling_backward, relayout


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
    for box in ((2, 1), (1, 1)):
        lanes = [f"{name} max {way} back" for name in ("PL1", "PL5") for way in ("NHWC", "CHWN")]
        lanes.append("PL5 average CHWN back")
        yield f"lanes {box}", pooling_backward, {"LANE_BOXES": (box,)}, tuple(lanes)
    planes = ("PL5 max NCHW back", "PL8 max NCHW back", "PL1 max NCHW back")
    yield "no box", pooling_backward, {"BOXES": ()}, planes
    yield "1 window", pooling, {"MOST_HELD": 40}, ("PL5 max NHWC forw", "PL5 max CHWN forw")
    ways = ("CV6 NCHW to NHWC", "CV6 NCHW to CHWN", "CV6 NHWC to CHWN")
    for channels, size in ((128, 16384), (32, 16384), (64, 8192), (128, 24576)):
        values = {"TRANSPOSE_CHANNELS": channels, "TRANSPOSE_TILE_BYTES": size}
        yield f"tile {channels}, {size}", launch_geometry, values, ways
    joined = ("CV6 NHWC to CHWN", "CV6 CHWN to NHWC")
    yield "always joined", relayout, {"SHORT_AXIS": 10**9}, joined
    for box in ((4, 1), (4, 2), (2, 1)):
        values = {"BOXES": (box,), "BOX_TAPS": 320}
        yield f"box {box}", pooling_backward, values, planes[:2]
    yield "never joined", relayout, {"SHORT_AXIS": 0}, ("CV5 scaled NHWC", "CV5 scaled CHWN")


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
