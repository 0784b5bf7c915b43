"""Results of an LSTM without data, as PyTorch does not make them by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._decomp import decompositions

from ooc_cudnn.torch.thread_patches import patched_in_this_thread


@contextmanager
def lstm_results_as_computed() -> Iterator[None]:
    """Let fake results of an LSTM have the dtype and the shape of those that are computed.

    On the CPU PyTorch computes by oneDNN, whose results are halves under autocast; for fake tensors
    it does not where the input has a gradient. Before 2.13 it drops the wrong axis of the last
    states, so that they have one too many.
    """

    def selected(was: Any, sequence: Any, *others: Any) -> Any:
        return was(sequence.detach(), *others)

    def mended(was: Any, *args: Any, **kwargs: Any) -> Any:
        outputs, states = was(*args, **kwargs)
        return outputs, tuple(each.reshape(each.shape[-2:]) for each in states)

    places = [(decompositions, "select_one_layer_lstm_function", selected)]
    if torch.__version__ < "2.13":  # a TorchVersion, which compares so
        places.append((decompositions, "one_layer_lstm", mended))
    with patched_in_this_thread(*places):
        yield
