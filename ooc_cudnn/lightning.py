"""Lightning: a callback that puts a module, or a part of it, under a memory limit.

    from ooc_cudnn.lightning import MemoryLimit
    trainer = Trainer(callbacks=[MemoryLimit("8GiB")])

It is a callback of ``lightning.pytorch``, or of ``pytorch_lightning`` where that is imported, or
alone installed. Needs the extra ``lightning``.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from typing import Any

from ooc_cudnn.extras import brought_by

with brought_by("lightning", "lightning", "torch"):
    import torch

    _names = ("lightning.pytorch", "pytorch_lightning")
    _there = [name for name in _names if sys.modules.get(name)]
    _there += [name for name in _names if find_spec(name.partition(".")[0])]
    Callback: Any = importlib.import_module([*_there, *_names][0]).Callback

from ooc_cudnn.network.ir.plan import NetworkPlan
from ooc_cudnn.network.runtime.constraints_here import Limit
from ooc_cudnn.torch.errors import UnsupportedModelError
from ooc_cudnn.torch.limit import Limited, limit, limited_forward
from ooc_cudnn.torch.options import Options
from ooc_cudnn.torch.runtime.ranks import STATISTICS
from ooc_cudnn.torch.stored import check_scale
from ooc_cudnn.units import parse_limit

__all__ = ["MemoryLimit"]


class MemoryLimit(Callback):
    """Put a LightningModule, or a part of it, under a memory limit when the trainer starts.

    It calls `ooc_cudnn.torch.limit` once the module is where it will be, for fit, validate, test
    and predict. Checkpoints, optimizers and precision stay as they are. The module is under the
    limit afterwards, too: `ooc_cudnn.torch.release` undoes it.

    Parameters
    ----------
    memory_limit : int, float or str, optional
        As for `ooc_cudnn.torch.limit`.
    module : str, optional
        The part that has the limit, as `torch.nn.Module.get_submodule` names it: "net". When left
        out it is the LightningModule itself where that has a ``forward``, or else its one part
        that has parameters.
    strict, statistics, scale
        As for `ooc_cudnn.torch.limit`.

    Attributes
    ----------
    plan : NetworkPlan or None
        Of the last call under the limit.

    Raises
    ------
    TypeError, ValueError
        If `memory_limit`, `statistics` or `scale` is none.
    AttributeError
        When the trainer starts, if the LightningModule has no part of that name.
    UnsupportedModelError
        When the trainer starts, if it is not clear which part is meant; before the first backward,
        or after the first batch where there is none, if the step did not call that part; and as
        for `ooc_cudnn.torch.limit`.

    Examples
    --------
    >>> from ooc_cudnn.lightning import MemoryLimit
    >>> callback = MemoryLimit("8GiB", module="net")
    >>> callback.memory_limit, callback.plan
    ('8GiB', None)
    """

    def __init__(
        self,
        memory_limit: Limit = None,
        *,
        module: str | None = None,
        strict: bool = False,
        statistics: str = "rank",
        scale: float | None = None,
    ) -> None:
        super().__init__()
        if memory_limit is not None:
            parse_limit(memory_limit, name="memory_limit")
        check_scale(scale)
        if statistics not in STATISTICS:
            raise ValueError(f"statistics must be rank or global, not {statistics!r}")
        self.memory_limit, self.module = memory_limit, module
        self._options = Options(memory_limit, strict, statistics, scale)
        self._limited: Limited | None = None

    @property
    def plan(self) -> NetworkPlan | None:
        """Plan of the last call."""
        return None if self._limited is None else self._limited.plan

    def _begin(self, trainer: Any, pl_module: torch.nn.Module) -> None:
        """Put the part under the limit, unless it is so already."""
        part, options = self._part(pl_module), self._options
        own = limited_forward(part)
        if own is None or own.options != options:
            limit(
                part,
                self.memory_limit,
                strict=options.strict,
                statistics=options.statistics,
                scale=options.scale,
            )
        self._limited = limited_forward(part)

    def _check_called(self, trainer: Any, pl_module: torch.nn.Module, *_: Any, **__: Any) -> None:
        """Refuse a step that went past the part under the limit."""
        limited = self._limited
        if limited is not None and limited.last is None:
            name = type(pl_module).__name__
            part = f"{name}.{self.module}" if self.module else "its forward"
            raise UnsupportedModelError(
                f"a step of {name} did not call {part}, which has the limit, so nothing was "
                "limited: name the part that it calls, "
                f"MemoryLimit(..., module={self._hint(pl_module)})"
            )

    on_fit_start = on_validation_start = on_test_start = on_predict_start = _begin
    on_before_backward = on_train_batch_end = _check_called
    on_validation_batch_end = on_test_batch_end = on_predict_batch_end = _check_called

    def _part(self, pl_module: torch.nn.Module) -> torch.nn.Module:
        """The module that is to be limited."""
        if self.module is not None:
            return pl_module.get_submodule(self.module)
        if not _is_lightnings(next(k for k in type(pl_module).__mro__ if "forward" in vars(k))):
            return pl_module
        parts = _parts(pl_module)
        if len(parts) != 1:
            raise UnsupportedModelError(
                f"{type(pl_module).__name__} has no forward, and {len(parts)} parts with "
                f"parameters: name one, MemoryLimit(..., module={self._hint(pl_module)})"
            )
        return parts[next(iter(parts))]

    def _hint(self, pl_module: torch.nn.Module) -> str:
        """Names that may be given as `module`."""
        return " or ".join(map(repr, _parts(pl_module))) or "'...'"


def _is_lightnings(kind: type) -> bool:
    """True of a class of Lightning's own, whose forward does nothing; and of `Module`."""
    return kind.__module__.partition(".")[0] in ("lightning", "pytorch_lightning", "torch")


def _parts(pl_module: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The direct parts that have parameters."""
    children = pl_module.named_children()
    return {name: part for name, part in children if next(part.parameters(), None) is not None}
