"""What the notebooks' figures are: measured here, recorded on a card, or simulated.

Without a card, figures of one come from `benchmarks/results`, with the machine, commit and date
that they were recorded at. With a card the same cases are measured anew. With
``OOC_NOTEBOOK_QUICK=1``, as the tests run the notebooks, sizes are small and nothing is measured
anew.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import ooc_cudnn
from ooc_cudnn.devices import get_device
from perfmodel import shipped

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
QUICK_VARIABLE = "OOC_NOTEBOOK_QUICK"

Size = TypeVar("Size")

# Examples and benchmarks, which are no part of the package, are imported from a checkout.
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))

from benchmarks.contenders.cases import CASES  # noqa: E402
from benchmarks.contenders.suite import run_case  # noqa: E402


def is_quick() -> bool:
    """Whether sizes are to be small: `OOC_NOTEBOOK_QUICK` is set, and not to 0."""
    return os.environ.get(QUICK_VARIABLE, "0") not in ("", "0")


def sized(full: Size, quick: Size) -> Size:
    """Return a size of this story, or several: `full`, or `quick` where sizes are to be small."""
    return quick if is_quick() else full


def device() -> str:
    """Name the device that calls run on: "cuda" where one works, else "host"."""
    return str(get_device("auto").kind)


def begin() -> str:
    """Settle the settings for a notebook, and say where its calls run.

    Without a card, plans are made with the shipped model of the host device, so that nobody is
    asked to calibrate first.

    Returns
    -------
    str
        A sentence.
    """
    where = device()
    if where == "host":
        ooc_cudnn.settings(device="host", machine="host", progress=False)
        return "No card here: calls run on the host device, the same engine on NumPy and threads."
    ooc_cudnn.settings(device=where, progress=False)
    return f"Calls run on the card: {get_device(where).identity()['gpu']}."


def calibrated() -> tuple[ooc_cudnn.MachineModel, str]:
    """Calibrate this machine quickly, without keeping the result.

    Returns
    -------
    model : MachineModel
    source : str
        "measured here", or why it is the H200's recorded model instead: a machine that others use
        at the same time may be too noisy to be calibrated.
    """
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model = ooc_cudnn.calibrate(quick=True, save=False)
    if told:
        return shipped("h200"), f"recorded on an H200, since {told[0].message}"
    return model, "measured here"


@dataclass(frozen=True)
class Record:
    """One case of ``python -m benchmarks.contenders``, as it writes it to a file.

    Attributes
    ----------
    data : dict
        The record.
    fresh : bool
        Whether it was measured just now.
    """

    data: Mapping[str, Any]
    fresh: bool = False

    @property
    def source(self) -> str:
        """Where the figures are from, for people."""
        return source_of(self.data, fresh=self.fresh)

    @property
    def verified(self) -> bool:
        """Whether the library's results were checked, and right."""
        return bool(self.data["verified"])

    @property
    def seconds(self) -> dict[str, float]:
        """Median seconds of every contender that ran."""
        return {
            name: float(found["seconds"]["median"])
            for name, found in self.data["contenders"].items()
            if found["status"] == "measured"
        }

    @property
    def ratios(self) -> dict[str, float]:
        """Seconds of every contender that ran over the library's, as they took turns."""
        return {
            name: float(found["ratio"]["of_medians"])
            for name, found in self.data["contenders"].items()
            if found["status"] == "measured" and found["ratio"]
        }

    @property
    def not_run(self) -> dict[str, str]:
        """Contenders that could not run, each with the reason."""
        return {
            name: str(found["reason"])
            for name, found in self.data["contenders"].items()
            if found["status"] != "measured"
        }

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of the case."""
        return dict(self.data["case"]["sizes"])

    def details(self, contender: str = "ooc_cudnn") -> dict[str, Any]:
        """What a contender said about its run; empty where it did not run.

        Parameters
        ----------
        contender : str
        """
        return dict(self.data["contenders"].get(contender, {}).get("details") or {})


def source_of(data: Mapping[str, Any], *, fresh: bool = False) -> str:
    """Say where the figures of a results file are from.

    Parameters
    ----------
    data : mapping
        With an ``environment``, as ``ooc-cudnn bench`` and the benchmarks write it.
    fresh : bool
        Whether they were measured just now.
    """
    where = data["environment"]
    machine = (where.get("gpu") or {}).get("name") or "the host device"
    how = "measured here" if fresh else "recorded"
    tiny = ", at a tiny size: the times mean nothing" if data["quick"] else ""
    return f"{how} on {machine} at {where['commit'][:7]}, {where['date'][:10]}{tiny}"


def records(names: Iterable[str], folder: Path = RESULTS / "bench") -> dict[str, Record]:
    """Cases of the benchmark suite: measured here on a card, else as they were recorded.

    A case that there is no record of is named, with the command that makes one, and left out.

    Parameters
    ----------
    names : iterable of str
        As ``python -m benchmarks.contenders --list`` has them.
    folder : Path
        Where ``python -m benchmarks.contenders --output`` wrote records.

    Raises
    ------
    KeyError
        For a name that is no case.
    """
    found, missing = {}, []
    measure = device() != "host" and not is_quick()
    for name in names:
        case, path = CASES[name], folder / f"{name}.json"
        if measure:
            data = run_case(case, quick=False, device=device())
            if data["status"] == "measured":
                found[name] = Record(data, fresh=True)
            else:
                print(f"{name} could not run here: {data['reason']}")
        elif path.exists():
            found[name] = Record(json.loads(path.read_text(encoding="utf-8")))
        else:
            missing.append(name)
    if missing:
        print(
            f"Not recorded yet: {', '.join(missing)}. On a machine with a card, "
            "`python -m benchmarks.contenders --case NAME --output benchmarks/results/bench` makes "
            "a record."
        )
    return found


def sources(found: Mapping[str, Record]) -> str:
    """Say where the figures of some records are from.

    Parameters
    ----------
    found : mapping of str to Record
        As `records` returns them.
    """
    machines: dict[tuple[str, str], list[str]] = {}
    for record in found.values():
        machine, _, when = record.source.partition(" at ")
        commit, _, rest = when.partition(", ")
        commits = machines.setdefault((machine, rest), [])
        if commit not in commits:
            commits.append(commit)
    said = (
        f"{machine} at {' and '.join(commits)}, {rest}"
        for (machine, rest), commits in machines.items()
    )
    return "; ".join(said) or "no record yet"


def result(name: str) -> dict[str, Any]:
    """Read a file of `benchmarks/results`.

    Parameters
    ----------
    name : str
        Without the suffix.
    """
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found
