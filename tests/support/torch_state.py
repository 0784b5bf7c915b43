"""What a call of a model must leave as it was: PyTorch's and Python's switches and stacks."""

from __future__ import annotations

import sys

import torch
from torch._C import _functorch


def global_state():
    """Each of them by name."""
    return {
        "sys.stdout": id(sys.stdout),
        "sys.stderr": id(sys.stderr),
        "sys.excepthook": sys.excepthook,
        "torch function modes": torch._C._len_torch_function_stack(),
        "torch dispatch modes": torch._C._len_torch_dispatch_stack(),
        "torch functions are enabled": torch._C._is_torch_function_enabled(),
        "level of functorch": _functorch.maybe_current_level(),
        "functorch's stack": _functorch.peek_interpreter_stack() is None,
        "forward mode": torch.autograd.forward_ad._current_level,
        "gradients": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "anomaly mode": torch.is_anomaly_enabled(),
        "autocast on the CPU": torch.is_autocast_enabled("cpu"),
        "autocast on the card": torch.is_autocast_enabled("cuda"),
        "autocast's dtype": torch.get_autocast_dtype("cpu"),
        "autocast's cache": torch.is_autocast_cache_enabled(),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "compiling": torch.compiler.is_compiling(),
        "exporting": torch.compiler.is_exporting(),
    }


def mend_functorch():
    """Leave transformations that were never left, so that they do not spoil what comes next."""
    while _functorch.peek_interpreter_stack() is not None:
        _functorch.pop_dynamic_layer_stack()


def changed_state(before):
    """What is another than it was, a line each."""
    return [
        f"{name} was {before[name]} and is {value}"
        for name, value in global_state().items()
        if value != before[name]
    ]
