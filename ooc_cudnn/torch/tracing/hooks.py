"""Hooks that forward registers on tensors: they hand a tensor on, and change its gradient."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from typing import Any

import torch

from ooc_cudnn.torch.errors import UnsupportedModelError
from ooc_cudnn.torch.tracing.autocast import without_autocast
from ooc_cudnn.torch.tracing.bodies import Body, Bound, Hooked
from ooc_cudnn.torch.tracing.body_writes import writes_of
from ooc_cudnn.torch.tracing.graph import Operation, Value, replace_values
from ooc_cudnn.torch.tracing.recorder_protocol import Recorder


class Hooks:
    """Hooks of tensors, as a recorder notes them."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def register(self, tensor: torch.Tensor, body: Any, *others: Any) -> torch.Tensor:
        """A tensor whose gradient a hook of the user's changes, wherever it comes from."""
        recorder = self._recorder
        seen = recorder.memories.seen(tensor)
        now = recorder.memories.read(tensor)
        if not now.requires_grad:
            return tensor
        # hooks run as they were registered: a later one is nearer to what made the tensor
        before = recorder.memories.below_hooks(now)
        past = recorder.memories.past_hooks
        shown = recorder.memories.show_again(tensor)
        if any(
            shown.intersection(each.reads) and each.results[0] not in past
            for each in (*recorder.before, *recorder.operations)
        ):
            raise UnsupportedModelError(
                "a hook is registered on a tensor, and forward has read a view of it that was "
                f"changed in place before: register it before that\n  {recorder.where}"
            )
        given = [each for each in others if isinstance(each, torch.Tensor)]
        values = (before, *map(recorder.detached, map(recorder.memories.read, given)))
        result = recorder.value_like(tensor, True)
        for each in given:
            recorder.memories.keep(each, "a hook of a tensor", (result,))
        hook = self._hook(body, tensor, *others)
        operation = recorder.emit(hook, "register_hook", values, {}, (result,))
        lists = [recorder.operations, recorder.before]
        operations = next(each for each in lists if each and each[-1] is operation)
        _put_behind_maker(operations, operation, before, result, set(values[1:]), past)
        recorder.memories.hooked[result] = before
        seen.value = result if now is before else now
        return tensor

    def _hook(self, body: Any, tensor: torch.Tensor, *others: Any) -> Hooked:
        """A hook, of which is known what it changes in place."""
        function = Bound(Body(body), (tensor, *others), {})
        given = [
            fake_like(self._recorder, each)
            for each in (tensor, *others)
            if isinstance(each, torch.Tensor)
        ]
        with self._recorder.left(), torch.no_grad(), without_autocast():
            writes = writes_of(function, given, with_backward=False)
        if 0 in writes.given:
            raise UnsupportedModelError(
                "a hook of a tensor changes its gradient in place, and others may read that: let "
                f"it return another one\n  {self._recorder.where}"
            )
        if writes.given:
            raise UnsupportedModelError(
                "a hook of a tensor changes another tensor in place: let it return a gradient, and "
                f"count in forward\n  {self._recorder.where}"
            )
        return Hooked(function)


def fake_like(
    recorder: Recorder, example: torch.Tensor, *, follows: bool | None = None
) -> torch.Tensor:
    """A tensor without memory of the same form, which a recorder has not seen.

    Parameters
    ----------
    recorder : Recorder
    example : Tensor
    follows : bool, optional
        Whether autograd follows it; as it follows the example when left out.
    """
    with recorder.paused():
        fake = torch.empty_strided(
            example.shape, example.stride(), dtype=example.dtype, device=example.device
        )
        if follows is None:
            follows = example.requires_grad and torch.is_grad_enabled()
        return fake.requires_grad_().clone() if follows else fake


def _put_behind_maker(
    operations: list[Operation],
    hook: Operation,
    before: Value,
    hooked: Value,
    others: set[Value],
    past: Container[Value],
) -> None:
    """Let all that reads a value, earlier ones too, read it behind its hook.

    But what goes `past` the hooks of a view: its base, which what was written to it is put into.
    """
    operations.pop()
    makers = [at for at, each in enumerate(operations) if before in each.results]
    first = makers[0] + 1 if makers else 0
    # what was there before is detached for the hook behind it: its own tensor, say
    behind = operations[first:]
    made = {value for each in behind for value in each.results}
    early = [
        each
        for each in behind
        if others.intersection(each.results)
        and each.name == "detach"
        and not made.intersection(each.reads)
    ]
    rest = [each for each in behind if each not in early]
    late = any(others.intersection(each.results) for each in rest)
    readers = [e for e in rest if before in e.reads and e.results[0] not in past]
    if late and readers:
        raise UnsupportedModelError(
            "a hook of a tensor uses what forward computes after others have read the tensor: "
            f"register it before\n  {hook.where}"
        )
    if late:
        operations.append(hook)
        return

    def put(value: Value) -> Value:
        return hooked if value == before else value

    operations[first:] = [
        *early,
        hook,
        *(
            replace(
                each,
                args=replace_values(each.args, put),
                kwargs=replace_values(dict(each.kwargs), put),
                arguments=replace_values(dict(each.arguments), put),
            )
            if each in readers
            else each
            for each in rest
        ),
    ]
