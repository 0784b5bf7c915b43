"""`torch.cov` and `torch.corrcoef` in forward: PyTorch's own look at numbers, to warn of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._dynamo.variables import (
    TensorVariable,
    TorchInGraphFunctionVariable,
    UserFunctionVariable,
)

from ooc_cudnn.torch.thread_patches import patched_in_this_thread, rules_in_this_thread


def _cov(x: torch.Tensor, *, correction: int = 1) -> torch.Tensor:
    """Covariances of rows, as of `torch.cov` without weights. TorchDynamo traces this.

    Raises
    ------
    RuntimeError
        If it has more than two axes.
    """
    if x.ndim > 2:
        raise RuntimeError(f"cov(): expected at most two axes, not the {x.ndim} of {x.shape}")
    rows = x.reshape(1, -1) if x.ndim < 2 else x
    count = rows.shape[1]
    rows = rows - rows.sum(1, keepdim=True) / count
    return (rows @ rows.mT / max(count - correction, 0)).squeeze()


def _corrcoef(x: torch.Tensor) -> torch.Tensor:
    """Correlations of rows, as of `torch.corrcoef`. TorchDynamo traces this."""
    found = _cov(x)
    if found.ndim == 0:
        return found / found
    deviations = found.diag().sqrt()
    return (found / deviations[:, None] / deviations).clip(-1, 1)


_OURS: dict[Any, Any] = {torch.cov: _cov, torch.corrcoef: _corrcoef}


class _Statistic(TorchInGraphFunctionVariable):
    """A function of PyTorch's in whose place ours is traced; with weights it is PyTorch's."""

    def call_function(self, tx: Any, args: Any, kwargs: Any) -> Any:
        """Trace ours."""
        if kwargs.keys() <= {"correction"} and len(args) == 1:
            return UserFunctionVariable(_OURS[self.value]).call_function(tx, args, kwargs)
        return super().call_function(tx, args, kwargs)


@contextmanager
def covariances_followed() -> Iterator[None]:
    """Let Dynamo follow them, as functions and as methods of tensors."""
    methods = [(TensorVariable, f"method_{each.__name__}", _method(each)) for each in _OURS]
    with (
        rules_in_this_thread(dict.fromkeys(_OURS, _Statistic)),
        patched_in_this_thread(*methods, are_new=True),
    ):
        yield


def _method(function: Any) -> Callable[..., Any]:
    """A method of a tensor as the function of it."""

    def call(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        return _Statistic(function).call_function(tx, [self, *args], kwargs)

    return call
