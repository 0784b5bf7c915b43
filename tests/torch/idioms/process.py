"""What a run may leave changed in the process: modes of PyTorch, streams of Python."""

from __future__ import annotations

import sys
from contextlib import contextmanager

import torch
from torch._C import _functorch as functorch
from torch.backends import cuda
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

KERNELS = ("flash", "mem_efficient", "math", "cudnn")


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
        "deterministic algorithms": torch.get_deterministic_debug_mode(),
        "hooks of saved tensors": torch._C._autograd._saved_tensors_hooks_is_enabled(),
        "the kernels of attention": _kernels(),
        "the number of threads": torch.get_num_threads(),
        "sys.stdout": id(sys.stdout),
        "sys.stderr": id(sys.stderr),
    }


def _kernels():
    return tuple(getattr(cuda, f"{name}_sdp_enabled")() for name in KERNELS)


def _level():
    return len(functorch.get_interpreter_stack() or ())


@contextmanager
def watched():
    """Gives a list; at the end, the names of all that the block has left changed are in it.

    What would spoil later runs is put right: switches, levels of torch.func, streams.
    """
    before, streams, left = state(), (sys.stdout, sys.stderr), []
    try:
        yield left
    finally:
        left += [name for name, value in state().items() if value != before[name]]
        torch.set_grad_enabled(before["whether gradients are on"])
        torch.set_default_dtype(before["the default dtype"])
        torch.set_deterministic_debug_mode(before["deterministic algorithms"])
        torch._C._autograd._saved_tensors_hooks_enable()
        for name, was in zip(KERNELS, before["the kernels of attention"], strict=True):
            getattr(cuda, f"enable_{name}_sdp")(was)
        sys.stdout, sys.stderr = streams
        while _level() > before["the levels of torch.func"]:
            functorch.pop_dynamic_layer_stack()
