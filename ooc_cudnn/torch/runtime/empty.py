"""A captured graph of a batch without elements: PyTorch runs it, for there is nothing to hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ooc_cudnn.torch.autograd.function import tensor_of
from ooc_cudnn.torch.autograd.late_state import LateState
from ooc_cudnn.torch.errors import UnsupportedModelError
from ooc_cudnn.torch.runtime.input_independent import leave, run_before
from ooc_cudnn.torch.tracing.graph import Graph, Value, run_operation


class EmptyModel:
    """Runs a graph whose inputs have no elements, as PyTorch does."""

    plan = None

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    @property
    def step(self) -> Any:
        """There is nothing to plan.

        Raises
        ------
        UnsupportedModelError
            Always.
        """
        raise UnsupportedModelError("an argument has no elements: there is nothing to plan")

    def __call__(
        self, tensors: Sequence[Any], out: Any = None, late_state: LateState | None = None
    ) -> list[Any]:
        """Run a call; `out` is not written to, for nothing is to be written.

        What backward reads by names is not looked at: gradients of nothing are zeros.
        """
        graph = self.graph
        inputs = {
            value: tensor_of(each) if value.kind == "input" else each
            for value, each in zip(graph.given, tensors, strict=True)
        }
        values = run_before(graph, (), inputs)
        for operation in (*graph.operations, *graph.effects):
            run_operation(operation, values)
        leave(graph.writes, values, ())
        return [values[each] if isinstance(each, Value) else each for each in graph.outputs]


def is_empty(graph: Graph) -> bool:
    """True if an input has no elements."""
    return any(0 in value.shape for value in graph.inputs)
