"""Sums, products and quotients of two maps, the second of which may be broadcast."""

from __future__ import annotations

from dataclasses import dataclass

from ooc_cudnn.network.graph.autodiff_emit import Backward, Forward
from ooc_cudnn.network.graph.nodes.base import Node
from ooc_cudnn.network.ir.tensor import Origin, Tensor
from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.operations.core.operation import Shape
from ooc_cudnn.operations.elementwise.binary import OpTensor
from ooc_cudnn.operations.elementwise.broadcast_reduction import BroadcastGradientCall


@dataclass(frozen=True)
class Combine(Node):
    """Base of sums and products: y has the shape of a, and b is broadcast as `b_shape`.

    Attributes
    ----------
    factor : float
        What b is multiplied by, in the type that is computed in. Where it is not 1, b is the
        constant one: a number that the dtype does not hold.
    """

    a: Tensor
    b: Tensor
    b_shape: Shape
    factor: float = 1.0

    @property
    def is_broadcast(self) -> bool:
        """True if the gradient of b is a sum."""
        return self.b_shape != self.a.shape

    def _op(self, op: str, b_shape: Shape) -> Chain:
        a = self.a
        operation = OpTensor(a.shape, b_shape, a.dtype, op, alpha_b=self.factor)
        return Chain((operation,), a.dtype)


@dataclass(frozen=True)
class Add(Combine):
    """y = a + b; the gradient of y is that of both, or of b its sum over what was broadcast."""

    def forward(self, emit: Forward) -> None:
        emit.phase("forward", self._op("add", self.b_shape), x=self.a, b=self.b, y=self.y)

    def backward(self, emit: Backward, dy: Tensor) -> None:
        emit.hand_on(dy, self.a)
        if not self.is_broadcast:
            emit.hand_on(dy, self.b)
            return
        call = BroadcastGradientCall(dy.shape, dy.dtype, self.b_shape)
        emit.gradient("broadcast gradient", call, {"dy": dy}, db=self.b)


@dataclass(frozen=True)
class Multiply(Combine):
    """y = a * b; each gradient is dy times the other one, of b summed over what was broadcast."""

    def forward(self, emit: Forward) -> None:
        emit.phase("forward", self._op("multiply", self.b_shape), x=self.a, b=self.b, y=self.y)

    def backward(self, emit: Backward, dy: Tensor) -> None:
        reads = {"x": dy, "b": self.b}
        emit.gradient("gradient of a", self._op("multiply", self.b_shape), reads, y=self.a)
        if self.is_broadcast:
            call = BroadcastGradientCall(dy.shape, dy.dtype, self.b_shape, "x")
            emit.gradient("broadcast gradient", call, {"dy": dy, "x": self.a}, db=self.b)
        else:
            reads = {"x": dy, "b": self.a}
            emit.gradient("gradient of b", self._op("multiply", self.a.shape), reads, y=self.b)


@dataclass(frozen=True)
class Divide(Combine):
    """y = a / b; the gradient of a is dy / b, and of b the sum of -dy y / b over what it met."""

    def forward(self, emit: Forward) -> None:
        emit.phase("forward", self._op("divide", self.b_shape), x=self.a, b=self.b, y=self.y)

    def backward(self, emit: Backward, dy: Tensor) -> None:
        reads = {"x": dy, "b": self.b}
        emit.gradient("gradient of a", self._op("divide", self.b_shape), reads, y=self.a)
        if not emit.wants(self.b):
            return
        shape = self.b.shape if len(self.b.shape) > 1 else (1, *self.b.shape)
        origin = Origin(gradient_of=self.b.name)
        name = f"{self.name}.products"
        products = emit.known(Tensor(name, shape, dy.dtype, "gradient", origin=origin))
        if self.is_broadcast:
            call = BroadcastGradientCall(dy.shape, dy.dtype, self.b_shape, "x")
            emit.phase("sums of products", call, dy=dy, x=self.y, db=products)
        else:
            call_of_all = self._op("multiply", self.b_shape)
            emit.phase("products", call_of_all, x=dy, b=self.y, y=products)
        quotient = OpTensor(shape, shape, dy.dtype, "divide", alpha_a=-1.0)
        reads = {"x": products, "b": self.b}
        emit.gradient("gradient of b", Chain((quotient,), dy.dtype), reads, y=self.b)
