"""PyTorch for a contender: whether it is there, its precision, and what its errors mean here."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ooc_cudnn.bench.contender import Unavailable


def load_torch(*, cuda: bool) -> Any:
    """Return PyTorch, or raise `Unavailable` where it is missing or sees no card."""
    try:
        torch = importlib.import_module("torch")
    except ModuleNotFoundError as error:
        raise Unavailable(f"PyTorch is not installed: {error}") from error
    if cuda and not torch.cuda.is_available():
        raise Unavailable(f"PyTorch {torch.__version__} sees no GPU")
    return torch


@contextmanager
def precision(torch: Any, *, tf32: bool) -> Iterator[None]:
    """Allow TF32 or enforce strict float32; let cuDNN time its engines, as for fixed shapes."""
    wanted = (
        (torch.backends.cudnn, "allow_tf32", tf32),
        (torch.backends.cuda.matmul, "allow_tf32", tf32),
        (torch.backends.cudnn, "benchmark", True),
    )
    before = [getattr(flags, name) for flags, name, _ in wanted]
    try:
        for flags, name, value in wanted:
            setattr(flags, name, value)
        yield
    finally:
        for (flags, name, _), value in zip(wanted, before, strict=True):
            setattr(flags, name, value)


@contextmanager
def out_of_memory_as(torch: Any, kind: type[Exception]) -> Iterator[None]:
    """Turn PyTorch's out-of-memory error into one of another kind.

    The frames that it passed are emptied: they hold tensors, and the next contender needs their
    memory while the error is still being looked at.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        traceback.clear_frames(error.__traceback__)
        raise kind(" ".join(str(error).split())) from error
