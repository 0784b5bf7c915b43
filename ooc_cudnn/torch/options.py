"""What a plan of a captured model is made by, beside the model."""

from __future__ import annotations

from dataclasses import dataclass

from ooc_cudnn.network.runtime.constraints_here import Limit


@dataclass(frozen=True)
class Options:
    """What a plan is made by, beside the model.

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
