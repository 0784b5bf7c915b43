"""Convolutions and their gradients through NVIDIA's cudnn-frontend: plans built once a shape.

Measured on cuDNN 9.19: every dtype, layout, stride, dilation, group count and asymmetric padding is
supported on packed tensors, if not by every engine that says so (`cudnn_engines`), nor in every
combination of types (`cudnn_forms`); on strided tensors of 2**31 elements and more cuDNN writes
nonsense, so pieces are always packed here. What it does not support, our own kernels
`convolution_direct*.cu` compute.
"""

from __future__ import annotations

import gc
import threading
from typing import Any, NamedTuple

from ooc_cudnn.devices.cuda.cudnn_engines import forbidden_notes, is_faulty
from ooc_cudnn.devices.cuda.cudnn_forms import Form, forms
from ooc_cudnn.devices.cuda.cudnn_graphs import INPUTS, RESULT, describe, forget_frames
from ooc_cudnn.devices.kernels import convolution_direct
from ooc_cudnn.devices.kernels.launch import Call
from ooc_cudnn.devices.kernels.relayout import fill_zero
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.errors import CudnnError
from ooc_cudnn.operations.convolution_backward import AnyConvolution, forward_of


class Executable(NamedTuple):
    """A built plan: its graph, which of the graph's plans, all its scratch bytes, its engine."""

    graph: Any
    plan_index: int
    workspace_bytes: int
    engine: str
    form: Form


class Convolutions:
    """cuDNN's handle and the plans of one GPU."""

    def __init__(self) -> None:
        import cudnn

        self._cudnn = cudnn
        self._handle: Any = None
        self._lock = threading.RLock()
        # Most capable first: without a budget, then those that fit smaller and smaller ones.
        self._built: dict[tuple[AnyConvolution, int | None], Executable | None] = {}
        self._chosen: dict[tuple[AnyConvolution, int], Executable | None] = {}

    @property
    def handle(self) -> Any:
        """The cuDNN handle, made at first use."""
        if self._handle is None:
            self._handle = self._cudnn.create_handle()
        return self._handle

    def executable(self, operation: AnyConvolution, budget_bytes: int | None) -> Executable | None:
        """Return an operation's plan, its workspace within a budget; None if there is none."""
        key = (operation, budget_bytes)
        with self._lock:
            if key not in self._built:
                self._built[key] = self._build(operation, budget_bytes)
            return self._built[key]

    def run(
        self,
        operation: AnyConvolution,
        inputs: tuple[DeviceView, ...],
        output: DeviceView,
        workspace: tuple[int, int],
        stream: Any,
    ) -> None:
        """Launch on a stream; a workspace that is large enough for the preferred plan gets it.

        Inputs in the operation's order; all packed, at multiples of 16 bytes.
        """
        if 0 in output.shape:
            return
        first, second = inputs
        if 0 in second.shape:  # a gradient of no window
            nbytes = output.size * output.item_bytes
            fill_zero(output.pointer, nbytes, 1, nbytes, stream)
            return
        if 0 in first.shape:  # nothing but padding: zeros, by what may be infinite
            convolution_direct.run(operation, Call(inputs, output, workspace, stream))
            return
        pointer, available = workspace
        try:
            found = self._chosen[operation, available]
        except KeyError:
            found = self._choose(operation, available)
        if found is None:
            convolution_direct.run(operation, Call(inputs, output, workspace, stream))
            return
        form = found.form
        addresses = {}
        for uid, view, copy in zip(INPUTS, inputs, form.inputs, strict=True):
            addresses[uid] = pointer + copy.offset if copy else view.pointer
            if copy:
                copy.fill(view, pointer, stream)
        addresses[RESULT] = pointer + form.result.offset if form.result else output.pointer
        handle = self.handle
        self._cudnn.set_stream(handle, stream.ptr)
        found.graph.execute_plan_at_index(
            addresses, pointer + form.nbytes, found.plan_index, handle
        )
        if form.result:
            form.result.give_back(output, pointer, stream)

    def _choose(self, operation: AnyConvolution, available_bytes: int) -> Executable | None:
        found = self.executable(operation, None)
        if found is not None and found.workspace_bytes > available_bytes:
            found = self.executable(operation, available_bytes)
        self._chosen[operation, available_bytes] = found
        return found

    def _build(self, operation: AnyConvolution, budget_bytes: int | None) -> Executable | None:
        forward = forward_of(operation)
        # cuDNN takes no negative padding: a piece of dx whose first rows no window reaches.
        least = min(*forward.x_shape, *forward.w_shape, *forward.output_shape)
        if least < 1 or any(min(pair) < 0 for pair in forward.padding):
            return None
        try:
            for form in forms(operation):
                left = None if budget_bytes is None else budget_bytes - form.nbytes
                if left is not None and left < 0:
                    continue
                found = self._build_form(form, left)
                if found is not None:
                    return found
            return None
        finally:
            # The frontend keeps errors in cycles with its frames. These keep ours, and the arrays
            # of the call with them, until the cycles are collected.
            gc.collect(1)

    def _build_form(self, form: Form, budget_bytes: int | None) -> Executable | None:
        graph = describe(self._cudnn, self.handle, form.operation)
        try:
            return self._plan_of(graph, form, budget_bytes)
        finally:
            forget_frames(graph)

    def _plan_of(self, graph: Any, form: Form, budget_bytes: int | None) -> Executable | None:
        cudnn, operation = self._cudnn, form.operation
        try:
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
            graph.deselect_numeric_notes(forbidden_notes(cudnn, operation))
            if budget_bytes is not None:
                graph.deselect_workspace_greater_than(budget_bytes)
            graph.check_support()
        except cudnn.cudnnGraphNotSupportedError:
            return None
        except RuntimeError as error:
            raise CudnnError(f"cuDNN cannot build {operation}: {error}") from error
        for index in range(graph.get_execution_plan_count()):
            engine = graph.get_plan_name_at_index(index)
            if is_faulty(engine, operation):
                continue
            try:  # the best ranked that is neither deselected nor unsupported
                graph.build_plan_at_index(index)
            except (cudnn.cudnnGraphNotSupportedError, RuntimeError):
                continue
            nbytes = form.nbytes + int(graph.get_workspace_size_plan_at_index(index))
            name = f"{engine}, {form.name}" if form.name else engine
            return Executable(graph, index, nbytes, name, form)
        return None
