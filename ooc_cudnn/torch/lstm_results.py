"""Results of an LSTM without data, as PyTorch does not make them by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._decomp import decompositions


@contextmanager
def lstm_results_as_computed() -> Iterator[None]:
    """Let fake results of an LSTM have the dtype and the shape of those that are computed.

    On the CPU PyTorch computes by oneDNN, whose results are halves under autocast; for fake tensors
    it does not where the input has a gradient. Before 2.13 it drops the wrong axis of the last
    states, so that they have one too many.
    """
    module: Any = decompositions
    select, one_layer = module.select_one_layer_lstm_function, module.one_layer_lstm

    def selected(sequence: Any, *others: Any) -> Any:
        return select(sequence.detach(), *others)

    def mended(*args: Any, **kwargs: Any) -> Any:
        outputs, states = one_layer(*args, **kwargs)
        return outputs, tuple(each.reshape(each.shape[-2:]) for each in states)

    module.select_one_layer_lstm_function = selected
    if torch.__version__ < "2.13":  # a TorchVersion, which compares so
        module.one_layer_lstm = mended
    try:
        yield
    finally:
        module.select_one_layer_lstm_function, module.one_layer_lstm = select, one_layer
