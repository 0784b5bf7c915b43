"""What the library is compared with: cuDNN by hand, and the bias and ReLU kernel by itself."""

from __future__ import annotations

from typing import Any

from ooc_cudnn.tensor import packed_strides


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
        import cudnn
        import cupy

        cupy.cuda.runtime.free(0)  # a context before the handle
        self._handle = cudnn.create_handle()
        cudnn.set_stream(self._handle, cupy.cuda.get_current_stream().ptr)
        kind = cudnn.data_type.FLOAT
        graph = cudnn.pygraph(
            io_data_type=kind,
            intermediate_data_type=kind,
            compute_data_type=kind,
            handle=self._handle,
        )

        def tensor(shape: tuple[int, ...], uid: int) -> Any:
            strides = packed_strides(shape, "channels_first")
            return graph.tensor(
                dim=list(shape), stride=list(strides), data_type=kind, name=f"t{uid}", uid=uid
            )

        rows = x_shape[2] - 2 + 2 * row_padding
        self.y_shape = (x_shape[0], w_shape[0], rows, x_shape[3])
        result = graph.conv_fprop(
            image=tensor(x_shape, 1),
            weight=tensor(w_shape, 2),
            pre_padding=[row_padding, 1],
            post_padding=[row_padding, 1],
            stride=[1, 1],
            dilation=[1, 1],
            compute_data_type=kind,
        )
        result.set_output(True).set_uid(3).set_data_type(kind).set_dim(list(self.y_shape))
        result.set_stride(list(packed_strides(self.y_shape, "channels_first")))
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        if not tf32:
            notes = cudnn.numerical_note
            graph.deselect_numeric_notes(
                [
                    notes.TENSOR_CORE,
                    notes.DOWN_CONVERT_INPUTS,
                    notes.REDUCED_PRECISION_REDUCTION,
                    notes.FFT,
                ]
            )
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
        self._graph.execute_plan_at_index(
            {1: x_pointer, 2: w_pointer, 3: y_pointer},
            self._workspace.ptr,
            self._index,
            self._handle,
        )


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

        from ooc_cudnn.devices.kernels.pointwise import pointwise
        from ooc_cudnn.devices.view import DeviceView

        def view(array: Any) -> DeviceView:
            strides = tuple(s // array.itemsize for s in array.strides)
            return DeviceView(array.data.ptr, str(array.dtype), tuple(array.shape), strides)

        self._launch, self._y, self._b = pointwise, view(y), view(b)
        self._stream, self._arrays = cupy.cuda.get_current_stream(), (y, b)

    def __call__(self) -> None:
        """Launch."""
        self._launch(self._y, self._y, shift=self._b, mode="relu", stream=self._stream)
