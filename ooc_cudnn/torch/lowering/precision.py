"""Strict float32 in what PyTorch computes on the card, where the settings ask for it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch

#: What PyTorch has a precision of its own for, of float32 on the card.
_KINDS = ("conv", "rnn", "matmul")
_lock = threading.Lock()
_users = 0
_before: dict[str, str] = {}


@contextlib.contextmanager
def strict_float32() -> Iterator[None]:
    """No TF32 within: PyTorch's precisions are of the process, and as before when all have left.

    What other threads launch meanwhile is strict, too.

    >>> before = torch.backends.cudnn.rnn.fp32_precision
    >>> with strict_float32(), strict_float32():
    ...     torch.backends.cudnn.rnn.fp32_precision
    'ieee'
    >>> torch.backends.cudnn.rnn.fp32_precision == before
    True
    """
    global _users, _before
    with _lock:
        if not _users:
            _before = {kind: torch._C._get_fp32_precision_getter("cuda", kind) for kind in _KINDS}
            for kind in _KINDS:
                torch._C._set_fp32_precision_setter("cuda", kind, "ieee")
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            for kind, precision in _before.items() if not _users else ():
                torch._C._set_fp32_precision_setter("cuda", kind, precision)
