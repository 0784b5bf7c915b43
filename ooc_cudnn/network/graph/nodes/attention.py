"""Attention."""

from __future__ import annotations

from dataclasses import dataclass

from ooc_cudnn.network.graph.autodiff_emit import Backward, Forward
from ooc_cudnn.network.graph.nodes.base import Node
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.operations.attention import launches
from ooc_cudnn.operations.attention.calls import AttentionCall, AttentionGradientCall
from ooc_cudnn.operations.core.operation import Shape
from ooc_cudnn.settings_table import Settings


@dataclass(frozen=True)
class Attention(Node):
    """softmax(scale * q . k + bias) . v; gradients read all of these, y, and what is saved of rows.

    Maps are (n, depth, heads, queries or keys), or have no axis of heads where there is one.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    scale: float
    causal: bool
    images: int

    @property
    def differentiable_inputs(self) -> tuple[Tensor, ...]:
        """All but a mask."""
        return tuple(tensor for tensor in self.inputs if tensor.is_floating)

    def _operation(self, settings: Settings) -> launches.Attention:
        bias = self.bias
        return launches.Attention(
            of_heads(self.q.shape),
            of_heads(self.k.shape),
            self.v.shape[1],
            self.q.dtype,
            self.scale,
            None if bias is None else of_scores(bias.shape),
            "" if bias is None else bias.dtype,
            self.causal,
            allow_tf32=settings.allow_tf32,
            deterministic=settings.deterministic,
        )

    def _reads(self) -> dict[str, Tensor]:
        found = {"q": self.q, "k": self.k, "v": self.v}
        return found if self.bias is None else {**found, "bias": self.bias}

    def _lse(self, emit: Forward | Backward, operation: launches.Attention) -> Tensor:
        """What is saved of each row: a map, so that y may be made again, and this beside it."""
        return emit.known(Tensor(f"{self.name}.lse", operation.lse_shape, operation.lse_dtype))

    def forward(self, emit: Forward) -> None:
        operation = self._operation(emit.settings)
        call = AttentionCall(operation, self.images)
        emit.phase("forward", call, **self._reads(), y=self.y, lse=self._lse(emit, operation))

    def backward(self, emit: Backward, dy: Tensor) -> None:
        operation = self._operation(emit.settings)
        makes = {"dq": self.q, "dk": self.k, "dv": self.v}
        if self.bias is not None and self.bias.is_floating and emit.wants(self.bias):
            makes["dbias"] = self.bias
        call = AttentionGradientCall(operation, "dbias" in makes, self.images)
        lse = self._lse(emit, operation)
        emit.gradient(
            "gradient", call, {**self._reads(), "y": self.y, "dy": dy, "lse": lse}, **makes
        )


def of_heads(shape: Shape) -> Shape:
    """Shape with an axis of heads.

    >>> of_heads((2, 8, 5)), of_heads((2, 8, 3, 5))
    ((2, 8, 1, 5), (2, 8, 3, 5))
    """
    return shape if len(shape) == 4 else (*shape[:2], 1, *shape[2:])


def of_scores(shape: Shape) -> Shape:
    """Shape of a bias with all axes of scores: those that are left out come first.

    >>> of_scores((3, 7, 7))
    (1, 3, 7, 7)
    """
    return (*(1,) * (4 - len(shape)), *shape)
