"""External function as a node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from ooc_cudnn.network.graph.autodiff_emit import Backward, Forward
from ooc_cudnn.network.graph.nodes.base import Node
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.operations.elementwise.dropout import AdvanceCall
from ooc_cudnn.operations.external.calls import (
    AnyExternalCall,
    Computation,
    ExternalCall,
    ExternalGradientCall,
    ExternalInput,
    ExternalResult,
    numbered,
)

C = TypeVar("C", bound=AnyExternalCall)


@dataclass(frozen=True)
class Outside(Node):
    """y of some tensors, by a function of images; its gradients read these tensors and dy.

    `of_images` says of each whether its first axis is that of `images`, and `differentiable` which
    results depend on it by what has a derivative, by number. Where it draws random numbers it has a
    `state`, as dropout has: backward makes the same ones again. Of several results `others` are
    those behind y: all are made at once, and so are the gradients of what it reads.
    """

    xs: tuple[Tensor, ...]
    of_images: tuple[bool, ...]
    images: int
    computation: Computation
    state: Tensor | None = None
    differentiable: tuple[frozenset[int], ...] = ()
    others: tuple[Tensor, ...] = ()

    @property
    def results(self) -> tuple[Tensor, ...]:
        return (self.y, *self.others)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """All that it reads, and its state."""
        return self.xs if self.state is None else (*self.xs, self.state)

    @property
    def differentiable_inputs(self) -> tuple[Tensor, ...]:
        """Operands that it names; all where it names none."""
        if not self.differentiable:
            return self.xs
        return tuple(x for x, of in zip(self.xs, self.differentiable, strict=True) if of)

    @property
    def _taken(self) -> tuple[ExternalInput, ...]:
        pairs = zip(self.xs, self.of_images, strict=True)
        return tuple(ExternalInput(x.shape, x.dtype, own) for x, own in pairs)

    @property
    def _reads(self) -> dict[str, Tensor]:
        found = {f"x{at}": x for at, x in enumerate(self.xs)}
        return found if self.state is None else {**found, "state": self.state}

    def _call(self, kind: type[C], **how: Any) -> C:
        return kind(
            self.computation,
            self._taken,
            self.y.shape,
            self.y.dtype,
            self.images,
            self.images,
            draws=self.state is not None,
            others=tuple(ExternalResult(each.shape, each.dtype) for each in self.others),
            **how,
        )

    def forward(self, emit: Forward) -> None:
        call = self._call(ExternalCall)
        if self.state is not None:
            emit.phase("advance", AdvanceCall(), state=self.state)
        ys = {numbered("y", at): y for at, y in enumerate(self.results)}
        emit.phase(f"{self.computation.name} outside", call, **self._reads, **ys)

    def backward(self, emit: Backward, dy: Tensor) -> None:
        dys = {at: emit.gradient_of(y) for at, y in enumerate(self.results)}
        given = {at: each for at, each in dys.items() if each is not None}
        of = self.differentiable or (frozenset(given),) * len(self.xs)
        wanted = tuple(
            at for at, x in enumerate(self.xs) if not of[at].isdisjoint(given) and emit.wants(x)
        )
        if not wanted:
            return
        call = self._call(ExternalGradientCall, wanted=wanted, given=tuple(given))
        reads = {**self._reads, **{numbered("dy", at): each for at, each in given.items()}}
        makes = {f"dx{at}": self.xs[at] for at in wanted}
        emit.gradient(f"{self.computation.name} gradient outside", call, reads, **makes)
