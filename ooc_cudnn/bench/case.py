"""A case of the suite: what is computed, how large, under which limit, compared with what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

#: The contender that every other is compared with.
OURS = "ooc_cudnn"


@dataclass(frozen=True)
class Case:
    """One problem: at the size that claims are about, and at one that takes any machine a second.

    Attributes
    ----------
    name : str
        As given to ``ooc-cudnn bench --case``: lower case, words joined by hyphens.
    about : str
        One line for ``--list``.
    source : str
        The paper's figure or table, or the network, that the sizes are from.
    workload : str
        What is computed: a key of its suite's workloads (`runner.Suite`).
    sizes, tiny : mapping of str to int
        The workload's sizes, and those that the tiny form replaces.
    memory_limit, tiny_memory_limit : str
        Device memory that the library may hold; less than the data, which makes it out of core.
    baselines : tuple of str
        What the library is compared with: keys of the workload's contenders.
    allow_tf32 : bool
        Whether products may be rounded to TF32, by the library and by every baseline.
    repeats : int
        Timed repeats of each contender, after a warm-up.
    paper : mapping of str to float
        What the paper reports for this case, as ``{"GFLOPS": 2574.0}``; empty where it is silent.
    """

    name: str
    about: str
    source: str
    workload: str
    sizes: Mapping[str, int]
    tiny: Mapping[str, int]
    memory_limit: str
    tiny_memory_limit: str
    baselines: tuple[str, ...]
    allow_tf32: bool = True
    repeats: int = 5
    paper: Mapping[str, float] = field(default_factory=dict)

    def at_tiny_size(self) -> Case:
        """Return the form that any machine runs in a second; its times mean nothing."""
        sizes = {**self.sizes, **self.tiny}
        return replace(self, sizes=sizes, memory_limit=self.tiny_memory_limit, repeats=2)

    def to_json(self) -> dict[str, Any]:
        """Return the case as plain values."""
        return {name: value for name, value in asdict(self).items() if "tiny" not in name}
