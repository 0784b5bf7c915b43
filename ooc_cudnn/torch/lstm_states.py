"""States of an LSTM without data, as PyTorch before 2.13 does not make them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._decomp import decompositions


@contextmanager
def lstm_states_of_their_shape() -> Iterator[None]:
    """Let fake tensors of an LSTM's last states have the shape of the real ones.

    PyTorch before 2.13 drops the wrong axis of them, so that they have one too many.
    """
    if torch.__version__ >= "2.13":  # a TorchVersion, which compares so
        yield
        return
    module: Any = decompositions
    one_layer = module.one_layer_lstm

    def mended(*args: Any, **kwargs: Any) -> Any:
        outputs, states = one_layer(*args, **kwargs)
        return outputs, tuple(each.reshape(each.shape[-2:]) for each in states)

    module.one_layer_lstm = mended
    try:
        yield
    finally:
        module.one_layer_lstm = one_layer
