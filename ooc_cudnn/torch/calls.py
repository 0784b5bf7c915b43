"""Calls of a model that are ready: captured and planned once for each kind, and kept with it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch

from ooc_cudnn.telling import warn_once
from ooc_cudnn.torch import autocast
from ooc_cudnn.torch.call import ReadyModel
from ooc_cudnn.torch.parts import Parts
from ooc_cudnn.torch.ranks import within_ddp, world_size

#: Kinds of calls that are kept ready: in training and not, of a last batch that is smaller, ...
KEPT = 16
#: Under what a model holds its calls.
_NAME = "_ooc_cudnn_calls"


class Calls:
    """What calls of a model run, by all that captures and plans depend on; the newest few kinds.

    The model holds it, so it goes with the model. Copies and pickles of the model begin anew.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.model, self._parts = model, Parts(model)
        self._ready: dict[Hashable, ReadyModel] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()

    def __len__(self) -> int:
        return len(self._ready)

    def ready(self, kind: Hashable, make: Callable[[], ReadyModel]) -> ReadyModel:
        """What runs calls of a kind.

        Parameters
        ----------
        kind : hashable
            All that it depends on beside the model as it is now, autocast, and the ranks.
        make : callable
            Makes it, where it is not there: it captures the model.
        """
        if not self._parts.are_the_same:
            self._parts = Parts(self.model)
            self._ready.clear()  # captured with other modules
        call = kind, autocast.state(), world_size()
        found = self._ready.get((call, self._parts.state()))
        if found is None:
            found = make()
            self._parts.forward_has_run()
            self._ready[call, self._parts.state()] = found
            self._forget_the_oldest()
        return found

    def _forget_the_oldest(self) -> None:
        if len(self._ready) <= KEPT:
            return
        del self._ready[next(iter(self._ready))]
        warn_once(
            f"{type(self.model).__name__} is called in more than {KEPT} ways, and each new one is "
            "captured and planned, which takes seconds: shapes of inputs, arguments that are no "
            "tensors, and numbers that are attributes of modules make a way. What changes in each "
            "step belongs outside of the model, or in a buffer"
        )


def calls_of(model: torch.nn.Module) -> Calls:
    """The calls of a model that are ready; that within DistributedDataParallel is meant.

    >>> model = torch.nn.Linear(2, 2)
    >>> calls_of(model) is calls_of(model)
    True
    """
    model = within_ddp(model)
    found = model.__dict__.get(_NAME)
    if found is None or found.model is not model:  # a shallow copy has those of another one
        found = model.__dict__[_NAME] = Calls(model)
    return found


def forget_calls(model: torch.nn.Module) -> None:
    """Drop what is ready, and what it keeps on the host."""
    within_ddp(model).__dict__.pop(_NAME, None)
