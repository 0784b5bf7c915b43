"""External functions, called on memory of the card in the order of a stream."""

from __future__ import annotations

from typing import Any

from ooc_cudnn.devices.kernels.launch import Call, Runner
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.external.calls import ExternalLaunch
from ooc_cudnn.tensor import numpy_dtype


class DeviceArrayView:
    """A view of device memory, as other libraries take it: by ``__cuda_array_interface__``.

    bfloat16, which that does not know, is two bytes of an integer.
    """

    def __init__(self, view: DeviceView) -> None:
        dtype = "int16" if view.dtype == "bfloat16" else view.dtype
        self.dtype = view.dtype
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": view.shape,
            "typestr": numpy_dtype(dtype).str,
            "data": (view.pointer, False),
            "strides": tuple(step * view.item_bytes for step in view.strides),
            "version": 2,
        }


def outside(operation: ExternalLaunch, call: Call) -> None:
    """Hand the memory over, and the stream."""
    inputs = [DeviceArrayView(view) for view in call.inputs if view is not None]
    operation.run(inputs, DeviceArrayView(call.output), call.stream)


RUNNERS: dict[type, Runner] = {ExternalLaunch: outside}
