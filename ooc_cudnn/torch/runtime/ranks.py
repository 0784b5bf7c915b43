"""Processes that train a model together (torch.distributed): statistics of all their images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import distributed
from torch.nn.modules.batchnorm import _BatchNorm

from ooc_cudnn.operations.external.calls import Cost, ExternalRun
from ooc_cudnn.operations.normalization.channel_reduction import STATES
from ooc_cudnn.torch.errors import RanksError
from ooc_cudnn.torch.lowering.fallback_runner import on_stream, tensor_on

#: Of which images batch normalization takes its statistics: one's own, or those of all ranks.
STATISTICS = ("rank", "global")
_FLOAT64_BYTES = 8
#: What DistributedDataParallel sums over ranks at once, by default (`bucket_cap_mb`).
BUCKET_BYTES = 25 * 2**20


def world_size(group: Any = None) -> int:
    """Processes of a group (of all); 1 where nothing is distributed.

    >>> world_size()
    1
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        return 1
    return distributed.get_world_size(group)


def bucket_bytes(model: torch.nn.Module, statistics: str) -> int | None:
    """Bytes of gradients that backward hands out at once, to be summed over ranks meanwhile.

    None where it hands out all at its end: where nothing is distributed; and where statistics are
    those of all ranks. Then backward waits for others itself, and ranks whose plans differ would
    come to these exchanges and to those of gradients in different orders.

    >>> bucket_bytes(torch.nn.ReLU(), "rank")
    """
    there = distributed.is_available() and distributed.is_initialized()
    waits = statistics == "global" or _synchronised(model)
    return BUCKET_BYTES if there and not waits else None


def _synchronised(model: torch.nn.Module) -> dict[str, torch.nn.SyncBatchNorm]:
    """The parts that take statistics over ranks by themselves, by their paths."""
    return {
        path: module
        for path, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, torch.nn.SyncBatchNorm)
    }


def unwrap_ddp(model: torch.nn.Module) -> torch.nn.Module:
    """The model that DistributedDataParallel is wrapped around; any other one as it is."""
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        found: torch.nn.Module = model.module
        return found
    return model


def over_ranks(model: torch.nn.Module, statistics: str) -> Callable[[str], Group | None]:
    """Say of a module, by its path, over which ranks it takes statistics of a batch.

    Those of SyncBatchNorm are of its own process group, whatever `statistics` is.
    """
    groups = {path: module.process_group for path, module in _synchronised(model).items()}

    def of(path: str) -> Group | None:
        if path not in groups and statistics != "global":
            return None
        group = groups.get(path)
        return Group(group) if world_size(group) > 1 else None

    return of


@contextmanager
def as_batch_normalization(model: torch.nn.Module) -> Iterator[None]:
    """Let SyncBatchNorm be captured as batch normalization: over which ranks is said beside."""
    changed = list(dict.fromkeys(_synchronised(model).values()))
    for module in changed:
        module.__dict__["forward"] = MethodType(_BatchNorm.forward, module)
    try:
        yield
    finally:
        for module in changed:
            del module.__dict__["forward"]


class Group:
    """A process group, as `cross_rank.Ranks` has it; that of all processes if it is None."""

    def __init__(self, group: Any = None) -> None:
        self._group = group

    def moments(self, node: str, channels: int) -> GatheredState:
        """Those of all images."""
        return GatheredState("moments over ranks", node, channels, self._group)

    def sums(self, node: str, channels: int, elements: int) -> GatheredState:
        """Those over all images, scaled."""
        return GatheredState("sums over ranks", node, channels, self._group, elements)


@dataclass(frozen=True)
class _Told:
    """The identity of a computation: a plan depends on no more."""

    name: str
    node: str
    channels: int
    world: int
    elements: int


class GatheredState(_Told):
    """A state of all ranks, of that of each: gathered, and merged in the order of ranks.

    So every rank has the same one, to the last bit. One all-gather of a few numbers a channel.
    """

    why = "statistics are those of all ranks"
    may_be_recorded = False
    _group: Any

    def __init__(self, name: str, node: str, channels: int, group: Any, elements: int = 0) -> None:
        super().__init__(name, node, channels, world_size(group), elements)
        object.__setattr__(self, "_group", group)

    def cost(self, images: int, wanted: tuple[int, ...] | None) -> Cost:
        """Return its cost here. How long others and the network take is not known."""
        state = STATES["moments"] * self.channels * _FLOAT64_BYTES
        return Cost((2 * self.world + 2) * state, 2 * (self.world + 1) * state, 0)

    def forward(self, inputs: Sequence[Any], ys: Sequence[Any], how: ExternalRun) -> None:
        """Wait for all ranks, and merge.

        Raises
        ------
        RanksError
            If another rank has failed, or does not come within the group's timeout.
        """
        (target,) = map(tensor_on, ys)
        with on_stream(target.device, how.stream), torch.no_grad():
            local, *moments = [tensor_on(each) for each in inputs]
            parts = torch.stack(self._gathered(local))
            merged = self._scaled(parts.sum(0), *moments) if moments else merge_moments(parts)
            target.copy_(merged)

    def _gathered(self, local: torch.Tensor) -> list[torch.Tensor]:
        parts = [torch.empty_like(local) for _ in range(self.world)]
        try:
            distributed.all_gather(parts, local.clone(), group=self._group)
        except (RuntimeError, ValueError) as error:
            raise RanksError(self.node, self.world, str(error).strip()) from error
        return parts

    def _scaled(self, sums: torch.Tensor, moments: torch.Tensor) -> torch.Tensor:
        return sums * (self.elements / moments[0])


def merge_moments(parts: torch.Tensor) -> torch.Tensor:
    """Moments (count, mean and M2 of each channel) of all parts (ranks, 3, c), by Chan's formula.

    >>> a, b = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0, 8.0])
    >>> def of(x):
    ...     return torch.tensor([[len(x)], [x.mean()], [((x - x.mean()) ** 2).sum()]])
    >>> bool(torch.allclose(merge_moments(torch.stack([of(a), of(b)])), of(torch.cat([a, b]))))
    True
    """
    count, mean, m2 = parts.unbind(1)
    total = count.sum(0)
    of_all = (count * mean).sum(0) / total
    return torch.stack([total, of_all, (m2 + count * (mean - of_all) ** 2).sum(0)])
