"""The nodes that a call is in autograd's graph.

Where all outputs depend on the same tensors, backward is a chain of nodes, one for each group of
gradients that are final at once. A token goes from each to the next, so autograd runs them in this
order; what is to be done with a group (DistributedDataParallel begins to sum it over processes) it
does before it comes to the next one.

Where they do not, autograd must not come to what a loss leaves out: hooks that lie there would be
called. So outputs that depend on the same tensors are a node, and tensors that the same outputs
depend on are one, too. Of nodes that are ready autograd takes the one that was made last. Hence it
comes to tensors when all outputs have their gradients, and one backward makes what all of them are
given. Where an output comes later all the same (each card has a thread of its own, and the nodes of
each thread are counted apart), backward runs again, for what is still to come: the outputs that a
tensor depends on have always been there before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ooc_cudnn.torch.autograd.function import Request, Run, Seeds
from ooc_cudnn.torch.errors import SecondDerivativeError
from ooc_cudnn.torch.places import users_frame


def differentiable_outputs(
    request: Request, tensors: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """Run forward on tensors in the order of the request's names; autograd knows what it made."""
    with torch.no_grad():
        run = Run(request, tensors)
    pairs = zip(request.names, tensors, strict=True)
    named = {name: each for name, each in pairs if name in request.reached.of_names}
    make = _in_a_chain if len(request.reached.nodes) == 1 else _apart
    return make(run, named, tensors)


def _in_a_chain(
    run: Run, named: Mapping[str, torch.Tensor], tensors: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """Outputs that depend on the same tensors."""
    later = {name for group in run.groups[1:] for name in group}
    token: tuple[torch.Tensor, ...] = ()
    for group in reversed(run.groups[1:]):
        names = [name for name in group if name in named]
        token = (Later.apply(run, names, *(named[n] for n in names), *token),)
    names = [name for name in named if name not in later]
    outputs: tuple[torch.Tensor, ...] = StepFunction.apply(
        run, names, tensors, *(named[n] for n in names), *token
    )
    return outputs


def _apart(
    run: Run, named: Mapping[str, torch.Tensor], tensors: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """Outputs that do not. What is final first is made last."""
    reach = run.request.reached
    turns = {name: turn for turn, group in enumerate(run.groups) for name in group}
    parts = dict[tuple[int, tuple[int, ...]], list[str]]()
    for name in named:
        parts.setdefault((-turns.get(name, 0), reach.of_names[name]), []).append(name)
    tokens: list[list[torch.Tensor]] = [[] for _ in reach.nodes]
    for (_, nodes), names in sorted(parts.items()):
        made = OfTensors.apply(run, names, len(nodes), *(named[n] for n in names))
        for node, token in zip(nodes, made, strict=True):
            tokens[node].append(token)
    places = range(len(reach.of_outputs))
    constant = [at for at in places if not reach.of_outputs[at]]
    outputs = dict(zip(constant, run.hand_out(constant), strict=True))
    for node, of in enumerate(reach.nodes):
        outputs |= zip(of, OfOutputs.apply(run, node, tensors, *tokens[node]), strict=True)
    return tuple(outputs[at] for at in places)


class NoSecond(torch.autograd.Function):
    """Hands gradients on; whoever differentiates them is told that this cannot be.

    Of PyTorch's `once_differentiable` they could be taken for constants: where what backward was
    given is one, as the gradient of a sum is.
    """

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The gradients; behind so many tensors are those that they depend on."""
        return tuple(each.view_as(each) for each in tensors[:count])

    @staticmethod
    @torch._disable_dynamo  # a compiled function that calls backward traces what that calls
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        """Refuse.

        Raises
        ------
        SecondDerivativeError
            Always.
        """
        raise SecondDerivativeError(
            "a gradient that a model under a limit made is differentiated (create_graph=True), and "
            "the library has first derivatives alone: ooc_cudnn.torch.release(model) before this"
            + users_frame()
        )


class StepFunction(torch.autograd.Function):
    """Results of forward; its backward returns the gradients that are final first."""

    @staticmethod
    def forward(
        ctx: Any,
        run: Run,
        names: Sequence[str],
        tensors: Sequence[torch.Tensor],
        *given: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Hand out the outputs. What is given are the tensors of the names, and a token."""
        ctx.run, ctx.names, ctx.tokens = run, names, [each.detach() for each in given[len(names) :]]
        ctx.devices = [each.device for each in given[: len(names)]]
        outputs = run.hand_out(range(len(run.outputs)))
        ctx.save_for_backward(*run.request.kept(0, tensors))
        ctx.set_materialize_grads(False)
        reached = zip(outputs, run.request.reached.of_outputs, strict=True)
        ctx.mark_non_differentiable(*(each for each, names in reached if not names))
        return outputs

    @staticmethod
    @torch._disable_dynamo  # a compiled function that calls backward traces what that calls
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
        """Run the first part of backward."""
        run = ctx.run
        tensors = ctx.saved_tensors  # raises if one was changed since
        read = (*tensors, *(each for each in gradients if each is not None))
        run.read = read if torch.is_grad_enabled() else ()
        with torch.no_grad():
            run.begin(tensors, gradients)
            results = run.gradients(ctx.names, ctx.devices)
        return None, None, None, *first_alone(results, run.read), *ctx.tokens


class Later(torch.autograd.Function):
    """Makes a token; its backward returns the gradients that are final next."""

    @staticmethod
    def forward(ctx: Any, run: Run, names: Sequence[str], *given: torch.Tensor) -> torch.Tensor:
        """Make the token. What is given are the tensors of the names, and the token before."""
        ctx.run, ctx.names, ctx.tokens = run, names, [each.detach() for each in given[len(names) :]]
        ctx.devices = [each.device for each in given[: len(names)]]
        return a_token(run)

    @staticmethod
    @torch._disable_dynamo  # a compiled function that calls backward traces what that calls
    def backward(ctx: Any, _: torch.Tensor) -> tuple[Any, ...]:
        """Run the next part of backward."""
        with torch.no_grad():
            found = ctx.run.gradients(ctx.names, ctx.devices)
        return None, None, *first_alone(found, ctx.run.read), *ctx.tokens


class OfOutputs(torch.autograd.Function):
    """Outputs that depend on the same tensors; its backward hands on what gradients they have."""

    @staticmethod
    def forward(
        ctx: Any, run: Run, node: int, tensors: Sequence[torch.Tensor], *tokens: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Hand out the outputs of a node. Behind each token are tensors that it depends on."""
        ctx.run, ctx.node, ctx.count = run, node, len(tokens)
        ctx.save_for_backward(*run.request.kept(node, tensors))
        ctx.set_materialize_grads(False)
        return run.hand_out(run.request.reached.nodes[node])

    @staticmethod
    @torch._disable_dynamo  # a compiled function that calls backward traces what that calls
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
        """Give gradients to all tokens, with what is asked for behind them."""
        behind = [node for node, _ in ctx.next_functions if node is not None]
        runs = torch._C._will_engine_execute_node
        asked = {name for node in behind if runs(node) for name in node.names}
        with torch.no_grad():
            token: Any = a_token(ctx.run)
        token.seeds = ctx.run.seeds(ctx.node, gradients, ctx.saved_tensors, asked)
        return None, None, None, *(token for _ in range(ctx.count))


class OfTensors(torch.autograd.Function):
    """Makes a token for each node of outputs that depends on some tensors."""

    @staticmethod
    def forward(
        ctx: Any, run: Run, names: Sequence[str], count: int, *given: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Make the tokens. What is given are the tensors of the names."""
        ctx.run, ctx.names = run, names
        ctx.devices = [each.device for each in given]
        tokens = tuple(a_token(run) for _ in range(count))
        ctx.save_for_backward(tokens[0])  # PyTorch says it where backward has been here before
        ctx.set_materialize_grads(False)
        return tokens

    @staticmethod
    @torch._disable_dynamo  # a compiled function that calls backward traces what that calls
    def backward(ctx: Any, *tokens: Any) -> tuple[Any, ...]:
        """Return the gradients of the tensors."""
        _ = ctx.saved_tensors
        seeds: list[Seeds] = [each.seeds for each in tokens if each is not None]
        with torch.no_grad():
            found = ctx.run.gradients_of(ctx.names, ctx.devices, seeds)
        read = [e for each in seeds for e in each.read] if torch.is_grad_enabled() else ()
        return None, None, None, *first_alone(found, read)


def a_token(run: Run) -> torch.Tensor:
    """An empty tensor; of one dtype at all times, or autograd would cast it, and make another."""
    return torch.empty(0, dtype=torch.float32, device=run.request.device)


def first_alone(
    gradients: Sequence[torch.Tensor | None], read: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor | None]:
    """Gradients that nobody can differentiate by what was read for them; as they are by nothing."""
    made = [each for each in gradients if each is not None]
    if not made or not read:
        return gradients
    marked = iter(NoSecond.apply(len(made), *made, *read))
    return [None if each is None else next(marked) for each in gradients]
