"""The ways to a training step: the library under its limit and in core, and PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks.contenders.torch_training import (
    TorchCheckpoint,
    TorchInCore,
    TorchMicroBatches,
    TorchSaveOnCpu,
)
from benchmarks.contenders.training_library import LibraryStep
from benchmarks.contenders.training_step import Step
from ooc_cudnn.bench.case import OURS, Case
from ooc_cudnn.bench.contender import Contender


class TrainingStep(Step):
    """A step with its contenders."""

    def __init__(self, case: Case, *, cuda: bool, tiny: bool) -> None:
        super().__init__(case, cuda=cuda, tiny=tiny)
        self.contenders: Mapping[str, Callable[[], Contender]] = {
            OURS: lambda: LibraryStep(
                self, OURS, "examples/vgg16.py under the memory limit, maps channels-first"
            ),
            "in_core": lambda: LibraryStep(
                self, "in_core", "the same with everything on the device", in_core=True
            ),
            "torch_in_core": lambda: TorchInCore(self),
            "torch_save_on_cpu": lambda: TorchSaveOnCpu(self),
            "torch_checkpoint": lambda: TorchCheckpoint(self),
            "torch_micro_batches": lambda: TorchMicroBatches(self),
        }
