"""The cases, and what computes them: the suite that ``python -m benchmarks.contenders`` runs."""

from __future__ import annotations

from functools import partial

from benchmarks.contenders import torch_training
from benchmarks.contenders.cases import CASES
from benchmarks.contenders.double_buffered import DoubleBufferedCupy, DoubleBufferedTorch
from benchmarks.contenders.torch_convolution import NaiveLoop, TorchInCore
from benchmarks.contenders.training_library import NETWORK, LibraryStep
from benchmarks.contenders.training_step import Step
from benchmarks.contenders.unified_memory import (
    UnifiedMemory,
    UnifiedMemoryPrefetch,
    UnifiedMemoryPrefetchSplit,
)
from ooc_cudnn.bench import runner
from ooc_cudnn.bench.case import OURS, Case
from ooc_cudnn.bench.convolution import ConvolutionWorkload


class Convolution(ConvolutionWorkload):
    """The package's workload with contenders that the package does not have."""

    kinds = (
        *ConvolutionWorkload.kinds,
        NaiveLoop,
        DoubleBufferedTorch,
        DoubleBufferedCupy,
        TorchInCore,
        UnifiedMemory,
        UnifiedMemoryPrefetch,
        UnifiedMemoryPrefetchSplit,
    )


class TrainingStep(Step):
    """The ways to a training step: the library under its limit and in core, and PyTorch's."""

    def __init__(self, case: Case, *, cuda: bool, tiny: bool) -> None:
        super().__init__(case, cuda=cuda, tiny=tiny)
        self.contenders = {
            OURS: lambda: LibraryStep(self, OURS, NETWORK),
            "in_core": lambda: LibraryStep(
                self, "in_core", "the same with every map kept on the device", in_core=True
            ),
            **{way.name: partial(way, self) for way in torch_training.WAYS},
        }


SUITE = runner.Suite(CASES, {"convolution": Convolution, "training_step": TrainingStep})
run_case = partial(runner.run_case, workloads=SUITE.workloads)
