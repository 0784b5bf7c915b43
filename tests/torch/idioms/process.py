"""What a run may leave changed in the process: modes of PyTorch, streams of Python."""

from __future__ import annotations

import sys
from contextlib import contextmanager

import torch
from torch._C import _functorch as functorch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack


def state():
    """All of it that is looked at, by name."""
    return {
        "the levels of torch.func": _level(),
        "the dispatch modes": tuple(map(id, _get_current_dispatch_mode_stack())),
        "the function modes": tuple(map(id, _get_current_function_mode_stack())),
        "whether gradients are on": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "the default dtype": torch.get_default_dtype(),
        "the number of threads": torch.get_num_threads(),
        "sys.stdout": id(sys.stdout),
        "sys.stderr": id(sys.stderr),
    }


def _level():
    within = functorch.peek_interpreter_stack()
    return 0 if within is None else within.level()


@contextmanager
def watched():
    """Gives a list; at the end, the names of all that the block has left changed are in it.

    What would spoil later runs is put right: gradients, levels of torch.func, streams.
    """
    before, streams, left = state(), (sys.stdout, sys.stderr), []
    try:
        yield left
    finally:
        left += [name for name, value in state().items() if value != before[name]]
        torch.set_grad_enabled(before["whether gradients are on"])
        sys.stdout, sys.stderr = streams
        while _level() > before["the levels of torch.func"]:
            functorch.pop_dynamic_layer_stack_and_undo_to_depth(_level() - 1)
