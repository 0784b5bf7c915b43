"""Builders of what moves elements and computes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from ooc_cudnn.network.builders.base import Builders, builder
from ooc_cudnn.network.nodes.concatenate import Concatenate
from ooc_cudnn.network.nodes.reshape import Reshape
from ooc_cudnn.network.tensors import Tensor
from ooc_cudnn.operations.reshape import flattened


class ShapeBuilders(Builders):
    """Concatenation, and what changes shapes."""

    @builder
    def flatten(self, x: Tensor, *, name: str = "") -> Tensor:
        """All elements of an image on one axis, (n, c * sites): channel after channel."""
        x = self._own(x)
        return self._add(Reshape(name, self._result(name, flattened(x.shape), x.dtype), x))

    @builder
    def concatenate(self, parts: Sequence[Tensor], *, name: str = "") -> Tensor:
        """The channels of several maps, one after the other.

        Parts that nodes make are made in their place: nothing is copied.
        """
        if isinstance(parts, Tensor) or not isinstance(parts, Sequence) or not parts:
            raise TypeError(f"parts must be a list of tensors, not {parts!r}")
        first = self._own(parts[0], "parts[0]")
        found = tuple(
            self._own(part, f"parts[{at}]", dtype=first.dtype) for at, part in enumerate(parts)
        )
        for part in found[1:]:
            if len(part.shape) < 2 or (part.shape[0], *part.shape[2:]) != (
                first.shape[0],
                *first.shape[2:],
            ):
                raise ValueError(
                    f"parts must have the shape of {first.name}, {first.shape}, but for channels; "
                    f"{part.name} has {part.shape}"
                )
        channels = sum(part.shape[1] for part in found)
        y = self._result(name, (first.shape[0], channels, *first.shape[2:]), first.dtype)
        return self._add(Concatenate(name, y, found))
