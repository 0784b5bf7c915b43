"""Protocol of a recorder: what rules that note operations of their own may call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from ooc_cudnn.torch.tracing.graph import Operation, Value


class Recorder(Protocol):
    """Notes operations on values; `recording.GraphRecording` is one.

    Attributes
    ----------
    given : tuple of Value
    before, operations, effects : list of Operation
        As of a `Graph`.
    constants : dict
        Value to tensor.
    memories : Memories
        What each fake tensor stands for.
    of_inputs : set of Value
        Those that depend on an input of the call.
    inputs : mapping
        What is given, to what is known of its fake tensor.
    numbers : Numbers
    """

    given: tuple[Value, ...]
    before: list[Operation]
    operations: list[Operation]
    effects: list[Operation]
    constants: dict[Value, torch.Tensor]
    memories: Any
    of_inputs: set[Value]
    inputs: dict[Value, Any]
    numbers: Any

    def run(self, module: torch.fx.GraphModule, args: Sequence[Any]) -> Any:
        """Call what a graph says, node by node; return what it hands out."""

    @property
    def where(self) -> str:
        """The line of the user's model that is being recorded."""

    def paused(self) -> AbstractContextManager[None]:
        """Note nothing."""

    def left(self) -> AbstractContextManager[None]:
        """Be in force no more."""

    def constant(self, tensor: torch.Tensor) -> Value:
        """A value for a tensor that is there already."""

    def value_like(self, tensor: torch.Tensor, requires_grad: bool | None = None) -> Value:
        """A new value like a fake tensor."""

    def another(self, value: Value, *, requires_grad: bool) -> Value:
        """A new value of the same shape and dtype."""

    def detached(self, value: Value) -> Value:
        """A value that autograd does not follow."""

    def one(
        self,
        function: Any,
        name: str,
        args: tuple[Any, ...],
        shape: tuple[int, ...],
        dtype: torch.dtype,
        *,
        requires_grad: bool | None = None,
        once: bool = False,
    ) -> Value:
        """Note an operation of ours with one result, and return that."""

    def emit(
        self,
        function: Callable[..., Any],
        name: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        results: tuple[Value | None, ...],
        schema: Any = None,
    ) -> Operation:
        """Add an operation to those of the inputs, or to those before."""
