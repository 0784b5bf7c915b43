"""A training step of a PyTorch model in one of several ways, and the memory that it takes.

As its users have it: eager, by `torch.compile`, with checkpoints, or under a limit of ours; under
autocast, or in TF32 or strict float32 as the flags are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch._functorch.config
from torch import nn
from torch.utils.checkpoint import checkpoint

import ooc_cudnn.torch as ooc
from ooc_cudnn.devices import get_device
from ooc_cudnn.functions.tune.tune import NothingToTuneError
from ooc_cudnn.network.runtime.plan_cache import load_or_plan

#: By what they are called: of autocast, and what a loss is multiplied by; TF32 is without autocast.
DTYPES: dict[str, tuple[torch.dtype | None, float]] = {
    "bfloat16": (torch.bfloat16, 1.0), "float16": (torch.float16, 1024.0), "tf32": (None, 1.0),
}  # fmt: skip


class Way(NamedTuple):
    """A way to a step.

    Attributes
    ----------
    budget : float, optional
        Of a compiled step: the share of what is saved for backward that it may keep.
    share : float or str, optional
        Of ours: the limit, as a share of eager's peak (2 keeps all), or as it is.
    """

    budget: float | None = None
    is_checkpointed: bool = False
    share: float | str | None = None


def _compiler(budget: float, place: str) -> Callable[..., Any]:
    """TorchInductor under a budget; on the host what cuts the graph as it does, and compiles none.

    A function each, or Dynamo would take for one budget what it has for another.
    """
    name = "inductor" if place == "cuda" else "aot_eager_decomp_partition"
    backend = torch._dynamo.lookup_backend(name)

    def compiled(module: torch.fx.GraphModule, examples: Any) -> Any:
        with torch._functorch.config.patch(activation_memory_budget=budget):
            return backend(module, examples)

    return compiled


def checkpoint_blocks(model: nn.Module, blocks: tuple[str, ...]) -> None:
    """Let a model save the inputs of its blocks alone."""
    for each in model.modules():
        if type(each).__name__ in blocks:
            each.forward = partial(
                checkpoint, each.forward, use_reentrant=False, preserve_rng_state=False
            )


class Data(NamedTuple):
    """Images (and times, of a diffusion model) in pinned memory, and what a model is to make."""

    inputs: tuple[torch.Tensor, ...]
    target: torch.Tensor


class Step:
    """A step of a model in a way: gradients anew, the loss as a number.

    Parameters
    ----------
    model : Module
    way : Way
    limit : int or None
        Bytes, of ours.
    dtype : str
        Of `DTYPES`; "float64" without autocast.
    place : str
        "cuda" or "cpu".
    criterion : Module
        Takes the model's output (or its "out") and the target.
    blocks : tuple of str
        Names of the classes of modules that are checkpointed.
    is_loss_inside : bool
        Whether the loss is part of our plan (`with_loss`): for outputs that are large themselves.
    """

    def __init__(
        self,
        model: nn.Module,
        way: Way,
        limit: int | None,
        dtype: str,
        place: str,
        *,
        criterion: nn.Module,
        blocks: tuple[str, ...] = (),
        is_loss_inside: bool = False,
    ) -> None:
        self.model, self.place, self.limit = model, place, limit
        self.cast, self.scale = DTYPES.get(dtype, (None, 1.0))
        self.criterion, self.is_inside = criterion, is_loss_inside and limit is not None
        self.run: Any = model
        if self.is_inside:
            self.run = ooc.with_loss(model, self.criterion, limit)
        elif limit is not None:
            ooc.limit(model, limit)
        elif way.is_checkpointed:
            checkpoint_blocks(model, blocks)
        elif way.budget is not None:
            self.run = torch.compile(model, backend=_compiler(way.budget, place), dynamic=False)

    def autocast(self) -> Any:
        """Return the user's own context."""
        return nullcontext() if self.cast is None else torch.autocast(self.place, self.cast)

    def __call__(self, data: Data) -> float:
        """Take a step; return its loss."""
        self.model.zero_grad(set_to_none=True)
        inputs, target = data
        if self.limit is None:
            inputs = tuple(each.to(self.place, non_blocking=True) for each in inputs)
        if not self.is_inside:
            target = target.to(self.place, non_blocking=True)
        with self.autocast():
            if self.is_inside:
                loss = self.run(*inputs, target)
            else:
                scores = self.run(*inputs)
                loss = self.criterion(scores["out"] if isinstance(scores, dict) else scores, target)
        (loss * self.scale).backward()
        return float(loss.detach())

    def gradients(self) -> dict[str, Any]:
        """Return gradients by name, in float64, as of the loss itself."""
        named = self.model.named_parameters()
        return {name: x.grad.double() / self.scale for name, x in named if x.grad is not None}

    @property
    def plan(self) -> Any:
        """Plan of our last step."""
        return self.run.forward.plan

    def tune(self, data: Data, seconds: float) -> list[Any]:
        """Measure engines, as a user does; none where there is nothing to measure."""
        arguments = (*data.inputs, data.target) if self.is_inside else data.inputs
        try:
            with self.autocast():
                found: list[Any] = ooc.tune(self.run, *arguments, seconds=seconds)
        except NothingToTuneError:
            return []
        return found


class Memory:
    """The most that the card held in a block: by PyTorch's count, and what is the arena's own.

    What was there before does not count.
    """

    def __init__(self, device: str) -> None:
        self.cuda, self.device = device != "host", device
        self.before = torch.cuda.memory_allocated() if self.cuda else 0

    def begin(self) -> None:
        """Count from here on."""
        if self.cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()

    def figures(self) -> dict[str, int]:
        """Return bytes, by whose count they are."""
        arena = get_device(self.device).arena
        held, shared = arena.held_bytes, arena.shared_bytes
        theirs = torch.cuda.max_memory_allocated() - self.before if self.cuda else 0
        total = theirs + held - shared
        return {"max_memory_allocated": theirs, "arena": held, "of_the_arena_in_pytorch": shared,
                "total": total}  # fmt: skip


@contextmanager
def planning_timed() -> Iterator[list[float]]:
    """Keep the seconds of each planning."""
    seconds = list[float]()

    def timed(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        try:
            return load_or_plan(*args, **kwargs)
        finally:
            seconds.append(time.perf_counter() - begin)

    with mock.patch("ooc_cudnn.network.runtime.lazy_step.load_or_plan", timed):
        yield seconds
