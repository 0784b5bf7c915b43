"""External function as a node."""

from __future__ import annotations

from dataclasses import dataclass

from ooc_cudnn.network.graph.autodiff_emit import Backward, Forward
from ooc_cudnn.network.graph.nodes.base import Node
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.operations.elementwise.dropout import AdvanceCall
from ooc_cudnn.operations.external.calls import (
    Computation,
    ExternalCall,
    ExternalGradientCall,
    ExternalInput,
)


@dataclass(frozen=True)
class Outside(Node):
    """y of some tensors, by a function of images; its gradients read these tensors and dy.

    `of_images` says of each whether its first axis is that of `images`, and `differentiable`
    whether y depends on it by what has a derivative. Where it draws random numbers it has a
    `state`, as dropout has: backward makes the same ones again.
    """

    xs: tuple[Tensor, ...]
    of_images: tuple[bool, ...]
    images: int
    computation: Computation
    state: Tensor | None = None
    differentiable: tuple[bool, ...] = ()

    @property
    def differentiable_inputs(self) -> tuple[Tensor, ...]:
        """Those that it says so of; all where it says nothing."""
        if not self.differentiable:
            return self.xs
        return tuple(x for x, own in zip(self.xs, self.differentiable, strict=True) if own)

    @property
    def _taken(self) -> tuple[ExternalInput, ...]:
        pairs = zip(self.xs, self.of_images, strict=True)
        return tuple(ExternalInput(x.shape, x.dtype, own) for x, own in pairs)

    @property
    def _reads(self) -> dict[str, Tensor]:
        found = {f"x{at}": x for at, x in enumerate(self.xs)}
        return found if self.state is None else {**found, "state": self.state}

    def forward(self, emit: Forward) -> None:
        told = self.computation, self._taken, self.y.shape, self.y.dtype, self.images
        call = ExternalCall(*told, self.images, self.state is not None)
        if self.state is not None:
            emit.phase("advance", AdvanceCall(), state=self.state)
        emit.phase(f"{self.computation.name} outside", call, **self._reads, y=self.y)

    def backward(self, emit: Backward, dy: Tensor) -> None:
        inputs = self.differentiable_inputs
        wanted = tuple(at for at, x in enumerate(self.xs) if x in inputs and emit.wants(x))
        if not wanted:
            return
        told = self.computation, self._taken, self.y.shape, self.y.dtype, self.images
        call = ExternalGradientCall(*told, self.images, self.state is not None, wanted=wanted)
        reads = {**self._reads, "dy": dy}
        makes = {f"dx{at}": self.xs[at] for at in wanted}
        emit.gradient(f"{self.computation.name} gradient outside", call, reads, **makes)
