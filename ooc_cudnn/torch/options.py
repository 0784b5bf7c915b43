"""Options of a captured model's plan."""

from __future__ import annotations

from dataclasses import dataclass

from ooc_cudnn.network.runtime.constraints_here import Limit


@dataclass(frozen=True)
class Options:
    """Options of a plan, beside the model.

    Attributes
    ----------
    memory_limit : int, float or str, optional
    strict : bool
    statistics : str
    scale : float, optional
        As for `limit`.
    labels : str
        A dtype: the one result is then the number of the largest channel of each site, (n, 1,
        spatial...), in place of the model's scores.
    """

    memory_limit: Limit = None
    strict: bool = False
    statistics: str = "rank"
    scale: float | None = None
    labels: str = ""
