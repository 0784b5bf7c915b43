"""Autocast around a call: the network computes in the dtypes of its parameters, and says so."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch


@contextmanager
def without_autocast(model: torch.nn.Module) -> Iterator[None]:
    """Leave autocast while a model is captured and runs: torch.export shows no casts of it.

    Outputs have the parameters' dtype then, so losses and a GradScaler around them work; what
    autocast saves of memory and time is not saved. A warning says so.
    """
    kinds = {parameter.device.type for parameter in model.parameters()} - {"meta"}
    entered = sorted(kind for kind in kinds if torch.is_autocast_enabled(kind))
    if entered:
        warnings.warn(
            f"autocast has no effect on {type(model).__name__} under a limit yet: it computes in "
            "the dtype of its parameters",
            stacklevel=4,
        )
    with ExitStack() as stack:
        for kind in entered:
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield
