"""Attention by cuDNN's fused engines, which keep the scores on the chip: half types, no bias.

What they decline, and all else, the kernels compute (`devices.kernels.attention`), in the same
memory: either reads the logarithms that the other saved.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from ooc_cudnn.devices.cuda.cudnn_graphs import forget_frames
from ooc_cudnn.devices.cuda.frontend import is_cudnn_engine
from ooc_cudnn.devices.kernels.attention_operands import packed_rows
from ooc_cudnn.devices.kernels.launch import Call
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.attention.launches import Attention, AttentionBackward
from ooc_cudnn.operations.core.operation import Shape
from ooc_cudnn.warnings_once import warn_once

AnyAttention = Attention | AttentionBackward
#: Depths of heads that cuDNN 9 has on every card since Ampere, and what they are multiples of.
MOST_DEPTH, DEPTH_STEP = 128, 8


class FusedPlan(NamedTuple):
    """A built graph: which of its plans, its scratch bytes, and the names of its tensors by uid."""

    graph: Any
    plan_index: int
    workspace_bytes: int
    uids: dict[str, int]


class FusedAttention:
    """Plans of one GPU, built once for each operation.

    Parameters
    ----------
    cudnn : module
    handle : callable
        Returns cuDNN's handle.
    """

    def __init__(self, cudnn: Any, handle: Callable[[], Any]) -> None:
        self._cudnn, self._handle = cudnn, handle
        self._lock = threading.Lock()
        self._plans: dict[AnyAttention, FusedPlan | None] = {}
        #: What cuDNN raises where it cannot do something, or an older frontend does not know it.
        self._declined = (
            cudnn.cudnnGraphNotSupportedError, RuntimeError, AttributeError, TypeError
        )  # fmt: skip

    def plan(self, operation: AnyAttention) -> FusedPlan | None:
        """Return an operation's plan; None if cuDNN has none."""
        if not may_be_fused(operation):
            return None
        with self._lock:
            if operation not in self._plans:
                self._plans[operation] = self._built(operation)
            return self._plans[operation]

    def run(self, operation: AnyAttention, call: Call) -> bool:
        """Run an operation on `Call`'s memory; False if cuDNN does not compute it there."""
        plan = self.plan(operation)
        if plan is None:
            return False
        views = _views(operation, call)
        results = ("y",) if isinstance(operation, Attention) else ("dq", "dk", "dv")
        narrow = all(views[name].dtype == operation.dtype for name in results)
        if plan.workspace_bytes > call.workspace[1] or not narrow:
            return False
        addresses = {uid: views[name].pointer for name, uid in plan.uids.items()}
        handle = self._handle()
        self._cudnn.set_stream(handle, call.stream.ptr)
        try:
            plan.graph.execute_plan_at_index(addresses, call.workspace[0], plan.plan_index, handle)
        except self._declined as error:
            with self._lock:
                self._plans[operation] = None
            warn_once(f"cuDNN's {operation.name} failed, so kernels compute it: {error}")
            return False
        return True

    def _built(self, operation: AnyAttention) -> FusedPlan | None:
        modes = self._cudnn.heur_mode
        graph = None
        try:
            graph, uids = self._describe(operation)
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([modes.A, modes.FALLBACK])
            graph.check_support()
            for index in range(graph.get_execution_plan_count()):
                if not is_cudnn_engine(graph.get_plan_name_at_index(index)):
                    continue
                try:
                    graph.build_plan_at_index(index)
                except self._declined:
                    continue
                nbytes = int(graph.get_workspace_size_plan_at_index(index))
                return FusedPlan(graph, index, nbytes, uids)
            return None
        except self._declined:
            return None
        finally:
            if graph is not None:
                forget_frames(graph)

    def _describe(self, operation: AnyAttention) -> tuple[Any, dict[str, int]]:
        """State it as a graph of rows; return that, and the uid of each tensor."""
        backward = isinstance(operation, AttentionBackward)
        forward = operation.forward if isinstance(operation, AttentionBackward) else operation
        types = self._cudnn.data_type
        data = types.HALF if forward.dtype == "float16" else types.BFLOAT16
        graph = self._cudnn.pygraph(
            io_data_type=data,
            intermediate_data_type=types.FLOAT,
            compute_data_type=types.FLOAT,
            handle=self._handle(),
        )
        shapes = _shapes(forward)
        uids = dict[str, int]()

        def rows(name: str) -> dict[str, list[int]]:
            n, depth, heads, queries = shapes[name]
            strides = [heads * queries * depth, queries * depth, depth, 1]
            return {"dim": [n, heads, queries, depth], "stride": strides}

        def given(name: str) -> Any:
            uids[name] = len(uids) + 1
            kind = types.FLOAT if name == "lse" else data
            return graph.tensor(name=name, uid=uids[name], data_type=kind, **rows(name))

        def made(result: Any, name: str) -> None:
            uids[name] = len(uids) + 1
            kind = types.FLOAT if name == "lse" else data
            result.set_output(True).set_uid(uids[name]).set_data_type(kind)
            laid = rows(name)
            result.set_dim(laid["dim"]).set_stride(laid["stride"])

        q, k, v = map(given, ("q", "k", "v"))
        told = {"attn_scale": forward.scale, "use_causal_mask": forward.causal}
        if not backward:
            y, lse = graph.sdpa(name="sdpa", q=q, k=k, v=v, generate_stats=True, **told)
            made(y, "y")
            made(lse, "lse")
            return graph, uids
        y, dy, lse = map(given, ("y", "dy", "lse"))
        results = graph.sdpa_backward(
            name="sdpa_backward", q=q, k=k, v=v, o=y, dO=dy, stats=lse,
            use_deterministic_algorithm=forward.deterministic, **told,
        )  # fmt: skip
        for result, name in zip(results, ("dq", "dk", "dv"), strict=True):
            made(result, name)
        return graph, uids


def may_be_fused(operation: AnyAttention) -> bool:
    """True if cuDNN may have an engine: a query sees a key then, so no row is without a sum."""
    forward = operation.forward if isinstance(operation, AttentionBackward) else operation
    depths = (forward.depth, forward.v_depth)
    return (
        forward.dtype in ("float16", "bfloat16")
        and forward.bias_shape is None
        and forward.first == 0
        and all(depth % DEPTH_STEP == 0 and depth <= MOST_DEPTH for depth in depths)
    )


def _views(operation: AnyAttention, call: Call) -> dict[str, DeviceView]:
    """The memory of each tensor, which must be packed rows."""
    forward = operation.forward if isinstance(operation, AttentionBackward) else operation
    names = ["q", "k", "v", "bias", "lse", "y"]
    if isinstance(operation, AttentionBackward):
        names = ["q", "k", "v", "bias", "y", "dy", "lse", "dk", "dv", "dq"]
    views = dict(zip(names, (*call.inputs[: len(names) - 1], call.output), strict=True))
    shapes = _shapes(forward)
    return {
        name: packed_rows(name, view, shapes[name])
        for name, view in views.items()
        if name in shapes
    }


def _shapes(forward: Attention) -> dict[str, Shape]:
    """Shape of each tensor."""
    shapes = {
        "q": forward.q_shape,
        "k": forward.k_shape,
        "v": forward.v_shape,
        "y": forward.y_shape,
    }
    gradients = {f"d{name}": shape for name, shape in shapes.items()}
    return {**shapes, **gradients, "lse": forward.lse_shape}
