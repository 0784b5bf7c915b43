"""PyTorch's ways to a training step: in core, and the ones that need less device memory."""

from __future__ import annotations

import importlib
from abc import abstractmethod
from typing import Any

from benchmarks.contenders.torch_convolution import release_torch
from benchmarks.contenders.torch_network import (
    MICRO_BATCH,
    TorchNetwork,
    load_torch,
    out_of_memory_as,
    precision,
)
from benchmarks.contenders.training_reference import Outcome
from benchmarks.contenders.training_step import Step
from ooc_cudnn.bench.contender import Contender, Unavailable
from ooc_cudnn.bench.placing import available_host_bytes, idle_pinned_bytes, release_pinned
from ooc_cudnn.settings import current
from ooc_cudnn.units import format_bytes

#: Host memory that must stay free: a machine whose memory PyTorch pins to the last GiB is killed.
HOST_RESERVE_BYTES = 16 * 2**30


class TorchStep(Contender):
    """A training step in PyTorch; `gradients` is what the ways differ in."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.network: Any = None
        self._torch: Any = None
        self._loss = 0.0
        self._details: dict[str, Any] = {}

    @abstractmethod
    def gradients(self) -> float:
        """Compute the gradients of all parameters; return the loss."""

    def prepare(self) -> None:
        torch = self._torch = load_torch(cuda=self.step.cuda)
        with out_of_memory_as(torch, Unavailable):
            device = "cuda" if self.step.cuda else "cpu"
            self.network = TorchNetwork(
                torch, self.step.network, device, channels_last=self.step.tf32
            )
        order = "channels_last" if self.step.tf32 else "channels_first"
        self._details = {"torch": torch.__version__, "order": order}
        if self.step.cuda:
            self._details["cudnn"] = torch.backends.cudnn.version()

    def rest(self) -> None:
        self.network.reset()

    def run(self) -> None:
        """Take one step. Raises ``MemoryError`` where the device is too small for it."""
        with (
            precision(self._torch, tf32=self.step.tf32),
            out_of_memory_as(self._torch, MemoryError),
        ):
            self.network.forget_gradients()
            self._loss = self.gradients()
            self.network.descend(self.step.rate)
            if self.step.cuda:
                self._torch.cuda.synchronize()

    def check(self) -> dict[str, Any]:
        """Take a step whose gradients are all new, and compare them."""
        expected = self.step.expected()
        self.rest()
        if self.step.cuda:
            self._torch.cuda.reset_peak_memory_stats()
        self.run()
        if self.step.cuda:
            self._details["peak_device_bytes"] = self._torch.cuda.max_memory_allocated()
            self._details["peak_reserved_bytes"] = self._torch.cuda.max_memory_reserved()
        found = Outcome(self._loss, self.network.gradients(), self.network.weights())
        return self.step.compare(found, expected)

    def details(self) -> dict[str, Any]:
        return dict(self._details)

    def release(self) -> None:
        self.network = None
        release_torch(cuda=self.step.cuda)

    def _whole(self, **options: Any) -> float:
        """Loss and gradients of all images at once."""
        x = self.network.images(self.step.images)
        loss = self.network.loss(x, self.step.labels, **options)
        del x
        loss.backward()
        return float(loss.detach())


class TorchInCore(TorchStep):
    """Everything on the card."""

    name, about = "torch_in_core", "PyTorch, everything on the device"

    def gradients(self) -> float:
        return self._whole()


class TorchSaveOnCpu(TorchStep):
    """What autograd saves goes to pinned host memory and comes back."""

    name = "torch_save_on_cpu"
    about = "PyTorch, saved tensors in pinned host memory: save_on_cpu(pin_memory=True)"

    def prepare(self) -> None:
        """Put the parameters on the device, if the host has room for what will be saved."""
        super().prepare()
        with out_of_memory_as(self._torch, Unavailable):
            needed = sum(map(pinned_bytes, self.network.saved_bytes(self.step.batch)))
        device = current().device
        free = available_host_bytes() + idle_pinned_bytes(device)
        self._details["predicted_pinned_bytes"] = needed
        if needed > free - HOST_RESERVE_BYTES:
            raise Unavailable(
                f"would pin {format_bytes(needed)} of host memory for saved tensors; "
                f"{format_bytes(free)} are free, of which {format_bytes(HOST_RESERVE_BYTES)} must "
                "stay so"
            )
        if needed > available_host_bytes() - HOST_RESERVE_BYTES:
            release_pinned(device)

    def gradients(self) -> float:
        with self._torch.autograd.graph.save_on_cpu(pin_memory=self.step.cuda):
            return self._whole()


class TorchCheckpoint(TorchStep):
    """Only what goes from group to group is saved; the rest is computed again."""

    name = "torch_checkpoint"
    about = "PyTorch, activation checkpointing of each of VGG's groups"

    def gradients(self) -> float:
        checkpoint = importlib.import_module("torch.utils.checkpoint").checkpoint

        def through(group: Any, x: Any) -> Any:
            return checkpoint(group, x, use_reentrant=False, preserve_rng_state=False)

        return self._whole(through=through)


class TorchMicroBatches(TorchStep):
    """A part of the batch at a time, gradients summed up."""

    name = "torch_micro_batches"
    about = f"PyTorch, micro-batches of {MICRO_BATCH} images with their gradients accumulated"

    def gradients(self) -> float:
        step, micro = self.step, min(self.step.batch, MICRO_BATCH)
        loss: float = self.network.accumulate(step.images, step.labels, micro)
        return loss


WAYS = (TorchInCore, TorchSaveOnCpu, TorchCheckpoint, TorchMicroBatches)


def pinned_bytes(nbytes: int) -> int:
    """Return what PyTorch's pinned memory takes for a tensor: the next power of two.

    Examples
    --------
    >>> pinned_bytes(1000), pinned_bytes(1024), pinned_bytes(1025), pinned_bytes(0)
    (1024, 1024, 2048, 0)
    """
    return 1 << (nbytes - 1).bit_length() if nbytes else 0
