"""Calls of a model: captured and planned once for each kind, and kept with it."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Any

import torch

from ooc_cudnn.network.runtime.larger_plans import LargerPlans
from ooc_cudnn.torch.capture.capture import Call, Captures
from ooc_cudnn.torch.runtime.ranks import unwrap_ddp, world_size
from ooc_cudnn.warnings_once import warn_once

#: Captures that are kept: in training and not, with other attributes, ... Sizes of arguments make
#: none once a second one has come; how many of them are kept, the backend says.
KEPT = 16
#: Under what a model holds its calls.
_NAME = "_ooc_cudnn_calls"


class Calls:
    """Runs of a model's calls, by all that its guards do not see; the newest few.

    The model holds it, so it goes with the model. Copies and pickles of the model begin anew.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self._kinds: dict[Hashable, Captures] = {}
        self._larger: dict[Hashable, LargerPlans] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()

    def __len__(self) -> int:
        return sum(each.count for each in self._kinds.values())

    def of(self, kind: Hashable, call: Call) -> Captures:
        """The captures of a kind of call: what is not seen by guards is part of the kind."""
        key = kind, call.options, world_size()
        with self._lock:
            captures = self._kinds.pop(key, None)
            if captures is None:
                captures = Captures(self._larger.setdefault(key[1:], LargerPlans()))
            elif captures.count > KEPT:
                captures.keep(KEPT)
                self._tell()
            self._kinds[key] = captures  # the last used is the last to go
            self._forget_the_oldest()
        return captures

    def _forget_the_oldest(self) -> None:
        kept = sum(map(len, self._kinds.values()))
        while kept > KEPT and len(self._kinds) > 1:
            oldest = next(iter(self._kinds))
            kept -= len(self._kinds.pop(oldest))
            self._tell()

    def _tell(self) -> None:
        warn_once(
            f"{type(self.model).__name__} is called in more than {KEPT} ways, and each new one is "
            "captured and planned, which takes seconds: sizes that forward looks into, arguments "
            "that are no tensors, and numbers that are attributes of modules make a way. What "
            "changes in each step belongs outside of the model, or in a buffer"
        )


def calls_of(model: torch.nn.Module) -> Calls:
    """The calls of a model that are ready; that within DistributedDataParallel is meant.

    >>> model = torch.nn.Linear(2, 2)
    >>> calls_of(model) is calls_of(model)
    True
    """
    model = unwrap_ddp(model)
    found = model.__dict__.get(_NAME)
    if found is None or found.model is not model:  # a shallow copy has those of another one
        found = model.__dict__[_NAME] = Calls(model)
    return found


def forget_calls(model: torch.nn.Module) -> None:
    """Drop what is ready, and what it keeps on the host."""
    unwrap_ddp(model).__dict__.pop(_NAME, None)
