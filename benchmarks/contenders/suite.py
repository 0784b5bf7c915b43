"""The cases, and what computes them: the suite that ``python -m benchmarks.contenders`` runs."""

from __future__ import annotations

from functools import partial

from benchmarks.contenders.cases import CASES
from benchmarks.contenders.double_buffered import DoubleBufferedCupy, DoubleBufferedTorch
from benchmarks.contenders.torch_convolution import NaiveLoop, TorchInCore
from benchmarks.contenders.unified_memory import (
    UnifiedMemory,
    UnifiedMemoryPrefetch,
    UnifiedMemoryPrefetchSplit,
)
from ooc_cudnn.bench import runner
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


SUITE = runner.Suite(CASES, {"convolution": Convolution})
run_case = partial(runner.run_case, workloads=SUITE.workloads)
