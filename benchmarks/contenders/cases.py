"""The suite's cases with all contenders: PyTorch, hand-written loops, Unified Memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatch

from ooc_cudnn.bench import cases
from ooc_cudnn.bench.case import Case

UNIFIED_MEMORY = ("unified_memory", "unified_memory_prefetch", "unified_memory_prefetch_split")
#: The loop that one writes first, and the best one.
LOOPS = ("naive_loop", "double_buffered_torch", "double_buffered_cupy")
#: Cases -> the contenders before and after those of the package.
BESIDE = {
    "fig14-*-tf32": ((*UNIFIED_MEMORY, *LOOPS), ("torch_in_core",)),
    "fig14-*-strict": (UNIFIED_MEMORY, ("torch_in_core",)),
    "vgg-conv2-*": ((), (*LOOPS[1:], "torch_in_core")),
    "pathology-slide-*": ((), LOOPS),
    "pageable-*": (LOOPS, ("torch_in_core",)),
}


def _convolutions() -> Iterator[Case]:
    for name, case in cases.CASES.items():
        for pattern, (before, after) in BESIDE.items():
            if fnmatch(name, pattern):
                case = replace(case, baselines=(*before, *case.baselines, *after))
        yield case


CASES = {case.name: case for case in _convolutions()}
