"""Baselines: cuDNN called by hand, and the bias and ReLU kernel by itself."""

from __future__ import annotations

from typing import Any

from ooc_cudnn.devices.cuda.cudnn_engines import forbidden_notes
from ooc_cudnn.devices.cuda.cudnn_graphs import INPUTS, RESULT, describe
from ooc_cudnn.devices.cuda.frontend import import_frontend
from ooc_cudnn.devices.kernels.pointwise import pointwise
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.convolution.forward import Convolution


def view(array: Any) -> DeviceView:
    """A CuPy array as the kernels see it."""
    strides = tuple(stride // array.itemsize for stride in array.strides)
    return DeviceView(array.data.ptr, str(array.dtype), tuple(array.shape), strides)


class ConvolutionPlan:
    """One float32 convolution through cudnn-frontend: stride 1, NCHW, padding of one column.

    The first plan that cuDNN ranks and can build, its scratch memory allocated beforehand. With
    `tf32` off, engines that round are deselected by their numerical notes. It launches on the
    stream that is current when it is built. `row_padding` is 0 where `x` brings rows of its own for
    it. Raises ``RuntimeError`` if cuDNN has no plan.
    """

    def __init__(
        self,
        x_shape: tuple[int, ...],
        w_shape: tuple[int, ...],
        *,
        tf32: bool,
        row_padding: int = 1,
    ) -> None:
        import cupy

        cudnn = import_frontend()
        cupy.cuda.runtime.free(0)  # a context before the handle
        self._handle = cudnn.create_handle()
        cudnn.set_stream(self._handle, cupy.cuda.get_current_stream().ptr)
        operation = Convolution.of(x_shape, w_shape, padding=(row_padding, 1), allow_tf32=tf32)
        self.y_shape = operation.output_shape
        graph = describe(cudnn, self._handle, operation)
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        graph.deselect_numeric_notes(forbidden_notes(cudnn, operation))
        graph.check_support()
        for index in range(graph.get_execution_plan_count()):
            try:
                graph.build_plan_at_index(index)
            except (cudnn.cudnnGraphNotSupportedError, RuntimeError):
                continue
            break
        else:
            raise RuntimeError("cuDNN has no plan for this convolution")
        self.workspace_bytes = int(graph.get_workspace_size_plan_at_index(index))
        self.engine = str(graph.get_plan_name_at_index(index))
        self._workspace = cupy.cuda.alloc(max(self.workspace_bytes, 1))
        self._graph, self._index = graph, index

    def launch(self, x_pointer: int, w_pointer: int, y_pointer: int) -> None:
        """Launch on packed memory."""
        addresses = {INPUTS[0]: x_pointer, INPUTS[1]: w_pointer, RESULT: y_pointer}
        self._graph.execute_plan_at_index(addresses, self._workspace.ptr, self._index, self._handle)


class DirectConvolution(ConvolutionPlan):
    """A `ConvolutionPlan` bound to its arrays; padding 1."""

    def __init__(self, x: Any, w: Any, y: Any, *, tf32: bool) -> None:
        super().__init__(tuple(x.shape), tuple(w.shape), tf32=tf32)
        if tuple(y.shape) != self.y_shape:
            raise ValueError(f"y has shape {tuple(y.shape)}, not {self.y_shape}")
        self._arrays = (x, w, y)
        self._bound = (x.data.ptr, w.data.ptr, y.data.ptr)

    def __call__(self) -> None:
        """Launch."""
        self.launch(*self._bound)


class DirectBiasActivation:
    """The bias and ReLU kernel by itself, in place on a CuPy array."""

    def __init__(self, y: Any, b: Any) -> None:
        import cupy

        self._y, self._b = view(y), view(b)
        self._stream, self._arrays = cupy.cuda.get_current_stream(), (y, b)

    def __call__(self) -> None:
        """Launch."""
        pointwise(self._y, self._y, shift=self._b, mode="relu", stream=self._stream)
