"""The views of a task's rings and intermediates that its steps take."""

from __future__ import annotations

from collections.abc import Mapping

from ooc_cudnn.devices.base import HostArray
from ooc_cudnn.devices.binding import DeclaredBuffer, declare_buffers
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.core.call import Region, TiledCall
from ooc_cudnn.pipeline.instructions import Instruction, Place
from ooc_cudnn.pipeline.task_buffers import TaskBuffers
from ooc_cudnn.tensor import ITEM_BYTES, TensorSpec, packed_strides

#: An operand as the executor takes it: a NumPy array, or a view of device memory.
Source = HostArray | DeviceView


class Views:
    """The rings and intermediates of a task at one base address, as its steps see them.

    Made when a step first needs them, and kept for the next call: making them again would take the
    host as long as issuing the step.
    """

    def __init__(
        self, chain: TiledCall, orders: Mapping[str, str], offsets: TaskBuffers, base: int
    ) -> None:
        self.chain, self.orders, self.offsets, self.base = chain, orders, offsets, base
        offset, nbytes = offsets.workspace
        self.workspace = (base + offset, nbytes)
        self._of_step: dict[int, Mapping[str, DeviceView]] = {}
        self._alike: dict[tuple[str, int, tuple[int, ...]], DeviceView] = {}
        #: By the buffers that steps share which launch the same.
        self._shared: dict[int, Mapping[str, DeviceView]] = {}
        self._declared: dict[int, tuple[DeclaredBuffer, ...]] = {}

    def of(self, index: int, step: Instruction) -> Mapping[str, DeviceView]:
        """Return what a step reads and writes by name, but for operands computed on in place."""
        views = self._of_step.get(index)
        if views is None:
            shared = self._shared.get(id(step.buffers)) if step.buffers else {}
            if shared is None:
                shared = self._shared[id(step.buffers)] = self._intermediates(step)
            slots = {place.operand: self._slot(place) for place in step.places if place.slot >= 0}
            views = self._of_step[index] = {**slots, **shared}
        return views

    def declared(self, step: Instruction) -> tuple[DeclaredBuffer, ...]:
        """Return the buffers that the launches of a step were built for."""
        found = self._declared.get(id(step.buffers))
        if found is None:
            found = self._declared[id(step.buffers)] = declare_buffers(step.launches, step.buffers)
        return found

    def _slot(self, place: Place) -> DeviceView:
        """The part of a ring's slot that a region fills, packed in the operand's order."""
        shape = tuple(stop - start for start, stop in place.region)
        key = (place.operand, place.slot, shape)
        if key not in self._alike:
            offset, size, _ = self.offsets.slots[place.operand]
            order = self.orders.get(place.operand, "channels_first")
            self._alike[key] = DeviceView(
                self.base + offset + place.slot * size,
                self.chain.operands[place.operand].dtype,
                shape,
                packed_strides(shape, order),
            )
        return self._alike[key]

    def _intermediates(self, step: Instruction) -> dict[str, DeviceView]:
        views = {}
        for name, buffer in step.buffers.items():
            block = buffer.block or name
            if block in self.offsets.buffers:
                pointer = self.base + self.offsets.buffers[block][0] + buffer.offset_bytes
                views[name] = DeviceView(pointer, buffer.dtype, buffer.shape, buffer.strides)
        return views


def region_of(source: Source, region: Region) -> Source:
    """The part of an operand that a region names, without a copy."""
    if isinstance(source, DeviceView):
        offset = sum(
            start * stride for (start, _), stride in zip(region, source.strides, strict=True)
        )
        return DeviceView(
            source.pointer + offset * ITEM_BYTES[source.dtype],
            source.dtype,
            tuple(stop - start for start, stop in region),
            source.strides,
        )
    return source[tuple(slice(start, stop) for start, stop in region)]


def packed_image(view: DeviceView) -> DeviceView:
    """A view, of rows of a single image as if there were no others: that is how it is packed."""
    if len(view.shape) < 3 or view.shape[0] != 1 or view.strides[1] != 1:
        return view
    packed = packed_strides(view.shape, "channels_last")
    if view.strides == packed or view.strides[1:] != packed[1:]:
        return view
    return DeviceView(view.pointer, view.dtype, view.shape, packed)


def drop_unit_axes(source: Source, spec: TensorSpec) -> Source:
    """Return a view in the shape of a spec that differs in axes of extent 1 alone."""
    if isinstance(source, DeviceView):
        return DeviceView(source.pointer, spec.dtype, spec.shape, spec.strides)
    return source.reshape(spec.shape)
