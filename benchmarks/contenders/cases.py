"""The suite's cases with all contenders: PyTorch, hand-written loops, Unified Memory, training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatch

from ooc_cudnn.bench import cases
from ooc_cudnn.bench.case import Case
from ooc_cudnn.bench.cases import STRICT, TF32

UNIFIED_MEMORY = (
    "unified_memory",
    "unified_memory_prefetch",
    "unified_memory_prefetch_split",
)
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
VGG16_BATCHES = (32, 64, 128, 256, 512, 1024)
#: Batches at which all of PyTorch's ways are timed in TF32, elsewhere PyTorch in core alone; and
#: those at which it is timed in strict float32: trying cuDNN's engines takes minutes there.
_WAYS_OF_PYTORCH, _STRICT_PYTORCH = (32, 512, 1024), (32, 64, 1024)


def _convolutions() -> Iterator[Case]:
    for name, case in cases.CASES.items():
        for pattern, (before, after) in BESIDE.items():
            if fnmatch(name, pattern):
                case = replace(case, baselines=(*before, *case.baselines, *after))
        yield case


def _vgg16() -> Iterator[Case]:
    for batch in VGG16_BATCHES:
        for precision in (TF32, STRICT):
            pytorch: tuple[str, ...] = ("torch_in_core",)
            if batch in _WAYS_OF_PYTORCH and precision == TF32:
                pytorch += "torch_save_on_cpu", "torch_checkpoint", "torch_micro_batches"
            if batch not in _STRICT_PYTORCH and precision == STRICT:
                pytorch = ()
            yield Case(
                name=f"vgg16-n{batch}-{precision}",
                about=f"a training step of VGG-16, batch {batch}, "
                f"{'TF32' if precision == TF32 else 'strict float32'}",
                source="figures 12 and 13",
                workload="training_step",
                sizes={"batch": batch, "image": 224, "channels_percent": 100},
                tiny={"batch": 2, "image": 32, "channels_percent": 6},
                memory_limit="16GiB",
                tiny_memory_limit="512KiB",
                baselines=("in_core", *pytorch),
                allow_tf32=precision == TF32,
                repeats=3,
            )


CASES = {case.name: case for family in (_convolutions, _vgg16) for case in family()}
