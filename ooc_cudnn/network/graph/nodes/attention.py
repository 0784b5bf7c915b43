"""Attention."""

from __future__ import annotations

from dataclasses import dataclass

from ooc_cudnn.network.graph.autodiff_emit import Backward, Forward
from ooc_cudnn.network.graph.nodes.base import Node
from ooc_cudnn.network.ir.tensor import Tensor, whole_region
from ooc_cudnn.operations.attention import launches
from ooc_cudnn.operations.attention.calls import AttentionCall, AttentionGradientCall
from ooc_cudnn.operations.attention.heads import HeadsCall
from ooc_cudnn.operations.core.operation import Shape
from ooc_cudnn.settings_table import Settings

#: The maps that attention takes.
PARTS = ("q", "k", "v")


@dataclass(frozen=True)
class _Attending(Node):
    """Attention of maps (n, depth, heads, queries or keys), or without an axis of one head."""

    bias: Tensor | None
    scale: float
    causal: bool
    images: int

    @property
    def differentiable_inputs(self) -> tuple[Tensor, ...]:
        """All but a mask."""
        return tuple(tensor for tensor in self.inputs if tensor.is_floating)

    def operation(self, maps: dict[str, Tensor], settings: Settings) -> launches.Attention:
        """Operation on q, k and v."""
        bias = self.bias
        return launches.Attention(
            of_heads(maps["q"].shape),
            of_heads(maps["k"].shape),
            maps["v"].shape[1],
            self.y.dtype,
            self.scale,
            None if bias is None else of_scores(bias.shape),
            "" if bias is None else bias.dtype,
            self.causal,
            allow_tf32=settings.allow_tf32,
            deterministic=settings.deterministic,
        )

    def _reads(
        self, emit: Forward | Backward, maps: dict[str, Tensor], operation: launches.Attention
    ) -> dict[str, Tensor]:
        """Operands that both directions bind: lse is a map, so that y may be rematerialized."""
        lse = Tensor(f"{self.name}.lse", operation.lse_shape, operation.lse_dtype)
        bias = {} if self.bias is None else {"bias": self.bias}
        return {**maps, **bias, "y": self.y, "lse": emit.known(lse)}

    def attend(self, emit: Forward, maps: dict[str, Tensor]) -> None:
        """Emit the phase that makes y."""
        operation = self.operation(maps, emit.settings)
        reads = self._reads(emit, maps, operation)
        emit.phase("forward", AttentionCall(operation, self.images), **reads)

    def attend_backward(
        self,
        emit: Backward,
        dy: Tensor,
        maps: dict[str, Tensor],
        results: dict[str, Tensor],
        **makes: Tensor,
    ) -> None:
        """Emit the phase that makes gradients: in `results`, and those that are of `makes`."""
        if self.bias is not None and self.bias.is_floating and emit.wants(self.bias):
            makes["dbias"] = self.bias
        operation = self.operation(maps, emit.settings)
        call = AttentionGradientCall(operation, "dbias" in makes, self.images)
        reads = {**self._reads(emit, maps, operation), "dy": dy, **results}
        if makes:
            emit.gradient("gradient", call, reads, **makes)
        else:
            emit.phase("gradient", call, **reads)


@dataclass(frozen=True)
class Attention(_Attending):
    """softmax(scale * q . k + bias) . v; gradients read all of these, and y."""

    q: Tensor
    k: Tensor
    v: Tensor

    def forward(self, emit: Forward) -> None:
        self.attend(emit, {"q": self.q, "k": self.k, "v": self.v})

    def backward(self, emit: Backward, dy: Tensor) -> None:
        maps = {"q": self.q, "k": self.k, "v": self.v}
        self.attend_backward(emit, dy, maps, {}, dq=self.q, dk=self.k, dv=self.v)


@dataclass(frozen=True)
class PackedAttention(_Attending):
    """The same of q, k and v that are thirds of the channels of x, (n, 3 * heads * depth, sites).

    Each is copied to a map of its own, and its gradient to its third.
    """

    x: Tensor
    heads: int

    def _third(self, emit: Forward | Backward, tensor: Tensor, at: int) -> Tensor:
        n, channels, sites = whole_region(tensor.shape)
        width = channels[1] // 3
        shape = (n[1], width, sites[1])
        region = (n, (at * width, (at + 1) * width), sites)
        return emit.view(tensor, shape, region, f"{tensor.name} {self.name} {PARTS[at]}")

    def _maps(self, emit: Forward | Backward, kind: str, prefix: str = "") -> dict[str, Tensor]:
        n, channels, sites = self.x.shape
        shape = (n, channels // 3 // self.heads, self.heads, sites)
        return {
            f"{prefix}{part}": emit.known(
                Tensor(f"{self.name}.{prefix}{part}", shape, self.x.dtype, kind)
            )
            for part in PARTS
        }

    def forward(self, emit: Forward) -> None:
        maps = self._maps(emit, "map")
        for at, (part, tensor) in enumerate(maps.items()):
            third = self._third(emit, self.x, at)
            call = HeadsCall(third.shape, tensor.shape, tensor.dtype)
            emit.phase(f"heads of {part}", call, x=third, y=tensor)
        self.attend(emit, maps)

    def backward(self, emit: Backward, dy: Tensor) -> None:
        results = self._maps(emit, "gradient", "d")
        self.attend_backward(emit, dy, self._maps(emit, "map"), results)
        if not emit.wants(self.x):
            return
        name = f"{self.name}.dx"
        dx = emit.known(Tensor(name, self.x.shape, self.x.dtype, "gradient"))
        for at, (part, tensor) in enumerate(results.items()):
            third = self._third(emit, dx, at)
            call = HeadsCall(tensor.shape, third.shape, tensor.dtype)
            emit.phase(f"channels of {part}", call, x=tensor, y=third)
        emit.hand_on(dx, self.x)


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
