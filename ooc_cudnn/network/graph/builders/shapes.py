"""Builders of what moves elements and computes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from ooc_cudnn.network.graph.builders.base import Builders, builder
from ooc_cudnn.network.graph.initializers import zeros
from ooc_cudnn.network.graph.nodes.channel_slice import ChannelSlice
from ooc_cudnn.network.graph.nodes.concatenate import Concatenate
from ooc_cudnn.network.graph.nodes.crop import Crop
from ooc_cudnn.network.graph.nodes.pooling import Pooling
from ooc_cudnn.network.graph.nodes.rearrange import Rearrange
from ooc_cudnn.network.graph.nodes.reshape import Reshape
from ooc_cudnn.network.graph.nodes.roll import Roll
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.operations.core.operation import Shape
from ooc_cudnn.operations.core.window_arguments import is_int
from ooc_cudnn.operations.elementwise.rearrange import Rearrange as Rearranged
from ooc_cudnn.operations.elementwise.reshape import flatten
from ooc_cudnn.operations.elementwise.roll import Roll as Rolled
from ooc_cudnn.operations.resampling.arguments import describe_crop, describe_padding, interpolation
from ooc_cudnn.types import Padding, Sizes


class ShapeBuilders(Builders):
    """Concatenation, and what changes shapes."""

    @builder
    def flatten(self, x: Tensor, *, name: str = "") -> Tensor:
        """All elements of an image on one axis, (n, c * sites): channel after channel."""
        x = self._own(x)
        return self._add(Reshape(name, self._result(name, flatten(x.shape), x.dtype), x))

    @builder
    def rearrange(
        self,
        x: Tensor,
        factors: Sequence[Shape],
        parts: Sequence[Sequence[int]],
        *,
        name: str = "",
    ) -> Tensor:
        """Split axes of x into factors, and make axes of these: a shuffle of channels, say.

        Parameters
        ----------
        x : Tensor
        factors : sequence of tuple of int
            Of each axis of x, outermost first: ``((n,), (groups, c // groups), (h,), (w,))``.
        parts : sequence of sequence of int
            Of each axis of the result the factors that it is made of, counted through all axes of
            x, each once: ``((0,), (2, 1), (3,), (4,))``. Images stay first; windows may follow.
        """
        x = self._own(x)
        operation = Rearranged(tuple(map(tuple, factors)), tuple(map(tuple, parts)), x.dtype)
        if operation.shape != x.shape:
            raise ValueError(f"factors make {operation.shape}, but {x.name} has {x.shape}")
        if operation.order[:1] != (0,) or sorted(operation.order) != list(
            range(len(operation.sizes))
        ):
            raise ValueError(f"parts must hold each factor once, and images first, not {parts!r}")
        y = self._result(name, operation.output_shape, x.dtype)
        return self._add(Rearrange(name, y, x, operation))

    @builder
    def roll(
        self, x: Tensor, shifts: Sequence[int], axes: Sequence[int], *, name: str = ""
    ) -> Tensor:
        """Move the elements of x along axes; those that leave at the end come in at the start.

        Parameters
        ----------
        x : Tensor, shape (n, c, spatial)
        shifts : sequence of int
            Places along each of `axes`; backwards where negative.
        axes : sequence of int
            Channels' or spatial ones, each once.
        """
        x = self._own(x)
        if len(shifts) != len(axes) or not all(map(is_int, (*shifts, *axes))):
            raise TypeError(f"an int for each of axes {axes!r}, not shifts {shifts!r}")
        if len({*axes}) != len(axes) or not all(1 <= axis < len(x.shape) for axis in axes):
            raise ValueError(f"axes must be those of channels or spatial ones, not {axes!r}")
        by = dict(zip(axes, shifts, strict=True))
        places = tuple(by.get(axis, 0) % max(e, 1) for axis, e in enumerate(x.shape))
        operation = Rolled(x.shape, places, x.dtype)
        return self._add(Roll(name, self._result(name, x.shape, x.dtype), x, operation))

    @builder
    def concatenate(self, parts: Sequence[Tensor], *, axis: int = 1, name: str = "") -> Tensor:
        """The channels of several maps, one after the other; or another axis, but that of images.

        Channels that nodes make are made in their place: nothing is copied.
        """
        if isinstance(parts, Tensor) or not isinstance(parts, Sequence) or not parts:
            raise TypeError(f"parts must be a list of tensors, not {parts!r}")
        first = self._own(parts[0], "parts[0]")
        maps = tuple(
            self._own(part, f"parts[{at}]", dtype=first.dtype) for at, part in enumerate(parts)
        )
        if not is_int(axis) or not 1 <= axis < len(first.shape):
            raise ValueError(f"axis must be that of channels or a spatial one, not {axis!r}")
        along = "channels" if axis == 1 else f"axis {axis}"

        def others(shape: Shape) -> Shape:
            return (*shape[:axis], *shape[axis + 1 :])

        for part in maps[1:]:
            if others(part.shape) != others(first.shape):
                raise ValueError(
                    f"parts must have the shape of {first.name}, {first.shape}, but for {along}; "
                    f"{part.name} has {part.shape}"
                )
        extent = sum(part.shape[axis] for part in maps)
        shape = (*first.shape[:axis], extent, *first.shape[axis + 1 :])
        return self._add(Concatenate(name, self._result(name, shape, first.dtype), maps, int(axis)))

    @builder
    def pad(self, x: Tensor, padding: Padding, *, value: float = 0.0, name: str = "") -> Tensor:
        """Add so many elements of a value around x; where negative, crop x.

        `padding` is an int, one per spatial axis, or a (before, after) pair per axis. Zeros in
        front of a convolution become its padding, and cost nothing.
        """
        x = self._own(x)
        operation = describe_padding(x.shape, padding, value=value, dtype=x.dtype)
        y = self._result(name, operation.output_shape, x.dtype)
        return self._add(Pooling(name, y, x, operation))

    @builder
    def crop(self, x: Tensor, start: Sizes, size: Sizes, *, name: str = "") -> Tensor:
        """The part of x of `size` that begins at `start`, on every spatial axis; no copy."""
        x = self._own(x)
        operation = describe_crop(x.shape, start, size, dtype=x.dtype)
        y = self._result(name, operation.output_shape, x.dtype)
        return self._add(Crop(name, y, x, operation))

    @builder
    def channel_slice(self, x: Tensor, start: int, stop: int, *, name: str = "") -> Tensor:
        """The channels of x from `start` to before `stop`; no copy."""
        x = self._own(x)
        if not (is_int(start) and is_int(stop) and 0 <= start < stop <= x.shape[1]):
            raise ValueError(f"{start!r} to {stop!r} must be some of the {x.shape[1]} channels")
        zero = self._running_statistics(name, "zero", (1,), x.dtype, zeros)
        y = self._result(name, (x.shape[0], int(stop - start), *x.shape[2:]), x.dtype)
        return self._add(ChannelSlice(name, y, x, zero, (int(start), int(stop))))

    @builder
    def interpolation(
        self,
        x: Tensor,
        size: Sizes | None = None,
        *,
        scale_factor: float | Sequence[float] | None = None,
        mode: str = "nearest",
        align_corners: bool = False,
        recompute_scale_factor: bool = False,
        name: str = "",
    ) -> Tensor:
        """Nearest or linear interpolation, as torch.nn.functional.interpolate.

        Parameters
        ----------
        x : Tensor, shape (n, c, 1 to 3 spatial axes)
        size, scale_factor : one for all spatial axes, or one each
            One of the two. A factor is used as it is, unless `recompute_scale_factor`.
        mode : str
            nearest or linear (on two axes bilinear, on three trilinear).
        align_corners : bool
            Linear alone: whether the centres of the corner elements meet.
        """
        x = self._own(x)
        operation = interpolation(
            x.shape,
            size=size,
            scale_factor=scale_factor,
            mode=mode,
            align_corners=align_corners,
            recompute_scale_factor=recompute_scale_factor,
            dtype=x.dtype,
        )
        y = self._result(name, operation.output_shape, x.dtype)
        return self._add(Pooling(name, y, x, operation))
