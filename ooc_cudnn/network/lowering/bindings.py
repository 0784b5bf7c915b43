"""Bindings: where a program finds the tensors of a step, for each live range, or on the host."""

from __future__ import annotations

from collections.abc import Mapping

from ooc_cudnn.devices.view import WIDEST_ACCESS_BYTES
from ooc_cudnn.network.ir.live_ranges import LiveRanges
from ooc_cudnn.network.ir.step import Step, orders_of
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.pipeline.program import Binding, byte_range
from ooc_cudnn.tensor import TensorSpec, packed_strides


class Bindings:
    """The bindings of a step's tensors, made as they are asked for.

    Parameters
    ----------
    step : Step
    live_ranges : mapping
    spans : mapping
        Of each live range (tensor, index) the bytes of the block that it takes; known before it is
        asked for a tensor on the device.
    given : mapping
        Name to the spec of the array that is handed in.
    order : str
        Memory order of maps that the step makes.
    misaligned : frozenset of str
        Arrays that are handed in and begin on no 16-byte boundary.

    Attributes
    ----------
    found : dict
        The program's name of a tensor, to its binding.
    between : dict
        Name to the spec of what the step keeps on the host itself.
    """

    def __init__(
        self,
        step: Step,
        live_ranges: LiveRanges,
        spans: Mapping[tuple[str, int], tuple[int, int]],
        given: Mapping[str, TensorSpec],
        order: str,
        misaligned: frozenset[str],
    ) -> None:
        self.found: dict[str, Binding] = {}
        self.between: dict[str, TensorSpec] = {}
        self._step, self._stays, self.spans = step, live_ranges, spans
        self._given, self._misaligned = given, misaligned
        self._order_of = orders_of(step, order)

    def _stay(self, base: str, at: int) -> int | None:
        for index, live_range in enumerate(self._stays.get(base, ())):
            if live_range.first <= at <= live_range.last:
                return index
        return None

    def binding_of(self, name: str, at: int) -> str:
        """The program's name for a tensor in a phase: where it is then."""
        base = self._step.base(name)
        index = self._stay(base, at)
        return self.on_host(name) if index is None else self.on_device(name, index)

    def on_host(self, name: str) -> str:
        """The program's name for a tensor on the host: its own."""
        if name in self.found:
            return name
        tensor, (base, region) = self._step.tensors[name], self._step.place(name)
        if base != name:
            spec = self.found[self.on_host(base)].spec
            order = self._order_of(self._step.tensors[base])
            strides = _strides(tensor, region, spec.strides, spec.shape, order)
            view = TensorSpec(tensor.shape, tensor.dtype, spec.placement, strides)
            self.found[name] = Binding(view, None, base, region)
            return name
        bound = self._given.get(name)
        # as on the device: then its copies are plain ones
        packed = packed_strides(tensor.shape, self._order_of(tensor))
        pinned = TensorSpec(tensor.shape, tensor.dtype, "pinned", packed)
        self.found[name] = Binding(bound or pinned)
        if bound is None:
            self.between[name] = self.found[name].spec
        return name

    def on_device(self, name: str, index: int) -> str:
        """The program's name for a tensor during one of its live ranges."""
        device_name = f"{name} on the device" + f" ({index + 1})" * bool(index)
        if device_name not in self.found:
            tensor, (base, region) = self._step.tensors[name], self._step.place(name)
            whole = self._step.tensors[base]
            order = self._order_of(whole)
            packed = packed_strides(whole.shape, order)
            item_bytes = TensorSpec((1,), tensor.dtype).itemsize
            start = sum(low * step for (low, _), step in zip(region, packed, strict=True))
            spec = TensorSpec(
                tensor.shape,
                tensor.dtype,
                "device",
                _strides(tensor, region, packed, whole.shape, order),
            )
            offset = self.spans[base, index][0] + start * item_bytes
            self.found[device_name] = Binding(spec, offset)
        return device_name

    def also_on_host(self, name: str) -> str:
        """The program's name for a copy on the host of what lies on the device.

        Of all else its own name. A copy is there for an item or two.
        """
        spec = self.found[name].spec
        if spec.placement != "device":
            return name
        copy = f"{name}, on the host"
        packed = packed_strides(spec.shape, spec.order or "channels_first")
        self.between[copy] = TensorSpec(spec.shape, spec.dtype, "pinned", packed)
        self.found[copy] = Binding(self.between[copy])
        return copy

    def is_aligned(self, name: str) -> bool:
        """True if a tensor of the program begins on a 16-byte boundary."""
        binding = self.found[name]
        if binding.offset is not None:
            return binding.offset % WIDEST_ACCESS_BYTES == 0
        if not binding.of:
            return name not in self._misaligned
        start, _ = byte_range(self.found[binding.of], binding.region)
        return start % WIDEST_ACCESS_BYTES == 0 and self.is_aligned(binding.of)


def _strides(
    tensor: Tensor,
    region: tuple[tuple[int, int], ...],
    strides: tuple[int, ...],
    shape: tuple[int, ...],
    order: str = "channels_first",
) -> tuple[int, ...]:
    """Strides of a view: those of the axes that are longer than 1, in order."""
    if region == tuple((0, extent) for extent in shape) and strides == packed_strides(shape, order):
        return packed_strides(tensor.shape, order)
    longer = iter(
        stride for (start, stop), stride in zip(region, strides, strict=True) if stop - start > 1
    )
    return tuple(1 if extent == 1 else next(longer) for extent in tensor.shape)
