"""The builder of what somebody outside of the library computes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ooc_cudnn.network.graph.builders.base import Builders, builder
from ooc_cudnn.network.graph.initializers import random_state
from ooc_cudnn.network.graph.nodes.external import Outside
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.operations.core.operation import Shape
from ooc_cudnn.operations.external.calls import Computation, ExternalResult, numbered
from ooc_cudnn.tensor import dtype_name


class OutsideBuilders(Builders):
    """Functions of others."""

    @builder
    def outside(
        self,
        xs: Sequence[Tensor],
        shape: Shape,
        dtype: str,
        computation: Computation,
        *,
        images: int,
        of_images: Sequence[bool],
        draws: bool = False,
        differentiable: Sequence[Collection[int]] = (),
        others: Sequence[ExternalResult] = (),
        name: str = "",
    ) -> Tensor:
        """Add a function of some tensors, computed image by image outside of the library.

        Parameters
        ----------
        xs : sequence of Tensor
            What it reads: maps, inputs, parameters; each once.
        shape, dtype : tuple of int, str
            Of its result; the first axis is that of the images.
        computation : Computation
            The function, its gradients and its cost (`operations.external`).
        images : int
            Into so many parts its work may be cut: the first axes of its result, and of what is
            `of_images`, are multiples of it.
        of_images : sequence of bool
            Of each of `xs` whether an image reads a part of it alone; else all of it.
        draws : bool
            Whether it draws random numbers: then it has a state, as `dropout` has.
        differentiable : sequence of collection of int
            Of each of `xs` the results, by number, whose gradients go on to it; all where left out.
        others : sequence of ExternalResult
            Further results, as the first; `net.graph.nodes` has the node, and that all `results`.
        """
        taken = tuple(self.graph.check_own(x, f"xs[{at}]") for at, x in enumerate(xs))
        shapes = [shape, *(each.shape for each in others)]
        shapes += [x.shape for x, each in zip(taken, of_images, strict=True) if each]
        if any(each[0] % images for each in shapes):
            raise ValueError(f"the first axes of {shapes} must be multiples of {images} images")
        y = self._result(name, tuple(shape), dtype_name(dtype))
        state = None
        if draws:
            state = self._running_statistics(name, "state", (2,), "int64", random_state)
        told = tuple(of_images), images, computation, state, tuple(map(frozenset, differentiable))
        further = tuple(
            self._result(f"{name} {numbered('y', at)}", tuple(each.shape), dtype_name(each.dtype))
            for at, each in enumerate(others, 1)
        )
        return self._add(Outside(name, y, taken, *told, further))
