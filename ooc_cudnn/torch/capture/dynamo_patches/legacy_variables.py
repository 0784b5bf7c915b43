"""`torch.autograd.Variable` in forward: tensors by the name that they had before PyTorch 0.4."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._dynamo.utils import tensortype_to_dtype
from torch._dynamo.variables import UserDefinedClassVariable, UserFunctionVariable

from ooc_cudnn.torch.thread_patches import patched_in_this_thread


def _variable(
    data: torch.Tensor,
    requires_grad: bool = False,
    volatile: Any = None,  # it does nothing any more
) -> torch.Tensor:
    """A tensor without a history that shares memory, as PyTorch's. TorchDynamo traces this."""
    made = data.detach()
    return made.requires_grad_() if requires_grad else made


@contextmanager
def variables_followed() -> Iterator[None]:
    """Let Dynamo follow it; by itself it takes no tensor for an instance."""

    def called(was: Any, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if self.value is torch.autograd.Variable:
            ours: Any = _variable
            return UserFunctionVariable(ours).call_function(tx, args, kwargs)
        return was(self, tx, args, kwargs)

    kind: Any = torch.autograd.Variable
    dtypes = [each for each in vars(torch).values() if isinstance(each, torch.dtype)]
    with (
        patched_in_this_thread((UserDefinedClassVariable, "call_function", called)),
        patch.dict(tensortype_to_dtype, {kind: tuple(dtypes)}),
    ):
        yield
