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
    relayout,
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
    odd = ("CV6 NCHW to NHWC", "CV6 NHWC to NCHW")
    yield "word by word", relayout, {"SHIFTED_BYTES": 10**9}, odd
    whole = tuple(f"{name} scaled {way}" for name in ("CV7", "CV12")
                  for way in ("NCHW to NHWC", "NHWC to NCHW"))  # fmt: skip
    large = (*whole, "CV10 scaled NHWC to CHWN", "CV1 scaled NCHW to CHWN")
    for size in (8192, 24576):
        yield f"tile {size}", launch_geometry, {"TRANSPOSE_TILE_BYTES": size}, large
    yield "none whole", launch_geometry, {"MOST_WHOLE": 0}, whole
    planes = ("PL5 max NCHW forw", "PL7 max NCHW forw", "PL5 average NCHW forw")
    for outputs in (1, 2, 4):
        yield f"windows {outputs}", pooling, {"WORKING_SETS": (outputs,)}, planes
    yield "windows 1", pooling, {"WORKING_SETS": ()}, ("PL5 max NHWC forw", "PL5 max CHWN forw")
    for box in ((2, 2), (4, 1)):
        back = ("PL5 max NCHW back", "PL7 max NCHW back", "PL5 average NCHW back")
        yield f"box {box}", pooling_backward, {"BOXES": (box,)}, back
    yield "no box", pooling_backward, {"BOXES": ()}, back
    long_rows = ("512 x 30000", "128 x 100000")
    yield "chunks of 512 threads", softmax_plans, {"CHUNK_LANES": 512}, long_rows


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
