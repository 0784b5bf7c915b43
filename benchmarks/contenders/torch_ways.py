"""PyTorch's ways to a step of a network that takes less device memory: twins made of a twin."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from benchmarks.contenders.torch_networks import Tensors
from examples.twins import Twin
from ooc_cudnn.bench.contender import Unavailable
from ooc_cudnn.bench.placing import available_host_bytes
from ooc_cudnn.units import format_bytes

#: Host memory that must stay free: a machine whose memory PyTorch pins to the last GiB is killed.
HOST_RESERVE_BYTES = 16 * 2**30
#: Of what is saved for backward, the share that a compiled step may keep (1: all of it).
BUDGETS = (0.5, 0.2)
#: Images of a batch whose saved tensors tell those of a whole one.
SAMPLE = 8


class Way(NamedTuple):
    """A way of PyTorch's.

    Attributes
    ----------
    contender : str
        What has its colour.
    label : str
        For tables.
    twin : callable
        (a network's twin) -> a context manager: the twin that goes this way, while it lasts.
    """

    contender: str
    label: str
    twin: Callable[[Any], contextlib.AbstractContextManager[Twin]]


@contextlib.contextmanager
def _in_core(twin: Any) -> Iterator[Twin]:
    yield twin


@contextlib.contextmanager
def _by_block(twin: Any) -> Iterator[Twin]:
    """Of each residual block the input alone is saved: `torch.utils.checkpoint`."""
    checkpoint = importlib.import_module("torch.utils.checkpoint").checkpoint
    through = functools.partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    yield functools.partial(twin, through=through)


@contextlib.contextmanager
def _saved_on_cpu(twin: Any) -> Iterator[Twin]:
    """What autograd saves goes to pinned memory; refused where the host has no room for it."""

    def saving(t: Tensors, *inputs: Any) -> Any:
        graph, cuda = t.torch.autograd.graph, t.device == "cuda"
        if cuda:
            _check_room(t, twin, inputs)
        with graph.save_on_cpu(pin_memory=cuda):
            return twin(t, *inputs)

    yield saving


def _check_room(t: Tensors, twin: Any, inputs: tuple[Any, ...]) -> None:
    """Raise `Unavailable` where pinning what is saved would leave the host too little."""
    images, needed = len(inputs[0]), 0
    sample = [each[:SAMPLE] for each in inputs]

    def count(tensor: Any) -> Any:
        nonlocal needed
        times = images // SAMPLE if tensor.ndim and len(tensor) == SAMPLE else 1
        needed += pinned_bytes(tensor.nbytes * times)
        return tensor

    with t.torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        twin(t, *sample)
    free = available_host_bytes()
    if needed > free - HOST_RESERVE_BYTES:
        raise Unavailable(
            f"would pin {format_bytes(needed)} of host memory for saved tensors; "
            f"{format_bytes(free)} are free, of which {format_bytes(HOST_RESERVE_BYTES)} must stay"
        )


def pinned_bytes(nbytes: int) -> int:
    """Return what PyTorch's pinned memory takes for a tensor: the next power of two.

    Examples
    --------
    >>> pinned_bytes(1000), pinned_bytes(1024), pinned_bytes(1025), pinned_bytes(0)
    (1024, 1024, 2048, 0)
    """
    return 1 << (nbytes - 1).bit_length() if nbytes else 0


@contextlib.contextmanager
def _compiled(twin: Any, budget: float = 1.0) -> Iterator[Twin]:
    """`torch.compile`, which chooses what to make again where it may keep a share alone."""
    torch = importlib.import_module("torch")
    config = importlib.import_module("torch._functorch.config")
    dynamo = importlib.import_module("torch._dynamo")
    with config.patch(activation_memory_budget=budget):
        try:
            yield torch.compile(twin, dynamic=False)
        except dynamo.exc.BackendCompilerFailed as error:
            raise Unavailable(f"torch.compile failed: {' '.join(str(error).split())}") from error
        finally:
            dynamo.reset()


WAYS = {
    "in core": Way("torch_in_core", "all of it on the card", _in_core),
    "checkpoint": Way("torch_checkpoint", "checkpoint of each block", _by_block),
    "compile": Way("torch_compile", "torch.compile", _compiled),
    **{
        f"compile, budget {budget}": Way(
            f"torch_compile_{budget}",
            f"torch.compile, activation memory budget {budget}",
            functools.partial(_compiled, budget=budget),
        )
        for budget in BUDGETS
    },
    "save_on_cpu": Way("torch_save_on_cpu", "save_on_cpu, pinned", _saved_on_cpu),
}
