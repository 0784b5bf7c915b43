"""Verdicts on engines: which of them were checked for wrong results, and which are barred.

cuDNN 9.19 was searched (`devices.cuda.cudnn_engines`). With any other version each engine that a
call is about to use is checked once for each kind of problem (`engine_kinds`), and the verdict is
stored (`engine_check_database`). `ooc-cudnn doctor --engines` checks all of them at once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import NamedTuple

from ooc_cudnn.devices.cuda.frontend import cudnn_version
from ooc_cudnn.devices.engine_kinds import CheckedKind
from ooc_cudnn.devices.engines import Engine
from ooc_cudnn.operations.convolution.gradients import AnyConvolution

#: Versions of cuDNN that were searched, without their last figure.
SEARCHED = ("9.19",)


class Verdict(NamedTuple):
    """Verdict on an engine, for one kind.

    Attributes
    ----------
    is_right : bool, optional
        None where it could not be checked: it is used where there is no engine that is right.
    error : float, optional
        The largest that was found, as a share of the largest result, where there is one.
    """

    is_right: bool | None
    error: float | None = None


def describe_verdict(verdict: Verdict) -> str:
    """Return what a verdict says of an error, in words.

    >>> describe_verdict(Verdict(False, 0.25)), describe_verdict(Verdict(False))
    ('off by 0.25 of the largest result', 'it fails, or its result is not finite')
    """
    if verdict.error is None or not math.isfinite(verdict.error):
        return "it fails, or its result is not finite"
    return f"off by {verdict.error:.2g} of the largest result"


class UncheckedEngine(NamedTuple):
    """An engine that is about to be used, and has no verdict yet.

    Attributes
    ----------
    kind : CheckedKind
    engine : str
        By the beginning of its plans' names: "eng50".
    operation : AnyConvolution
        What it is to compute: of a form with copies, what it computes on these.
    asked : Engine, optional
        How it is set, where that can be said.
    """

    kind: CheckedKind
    engine: str
    operation: AnyConvolution
    asked: Engine | None = None


#: A kind, and an engine by the beginning of its plans' names ("eng50").
Key = tuple[str, str]

_versions = itertools.count()


class Verdicts:
    """The verdicts on the engines of one device.

    Parameters
    ----------
    is_searched : bool
        Whether this version of cuDNN was searched here, by `ooc-cudnn doctor --engines`.
    is_built_in : bool
        Whether it was by the authors: nothing is to be checked.
    stored : iterable
        What earlier processes found out.
    """

    def __init__(
        self,
        *,
        is_searched: bool,
        stored: Iterable[tuple[Key, Verdict]] = (),
        is_built_in: bool = False,
    ) -> None:
        self.is_searched, self.is_built_in = is_searched, is_built_in
        self._known: dict[Key, Verdict] = {}
        #: No other verdicts ever have the same; it changes with what is known.
        self.version = next(_versions)
        for key, verdict in stored:
            self._merge(key, verdict)

    def of(self, kind: CheckedKind, engine: str) -> Verdict | None:
        """Return the verdict on an engine; None where there is none yet."""
        return self._known.get((str(kind), engine))

    def add(self, kind: CheckedKind, engine: str, verdict: Verdict) -> None:
        """Take a verdict, in place of an earlier one."""
        self._known[str(kind), engine] = verdict
        self.version = next(_versions)

    def finish_search(self) -> None:
        """Note that every engine was checked."""
        self.is_searched, self.version = True, next(_versions)

    def items(self) -> list[tuple[Key, Verdict]]:
        """Every verdict, in order."""
        return sorted(self._known.items(), key=lambda item: item[0])

    def merge(self, others: Verdicts) -> None:
        """Take what another process found out. What one of them found wrong is wrong."""
        for key, verdict in others.items():
            self._merge(key, verdict)
        self.is_searched |= others.is_searched

    def _merge(self, key: Key, verdict: Verdict) -> None:
        known = self._known.get(key)
        if known is None or _severity(verdict) > _severity(known):
            self._known[key] = verdict
            self.version = next(_versions)


def _severity(verdict: Verdict) -> int:
    return {None: 0, True: 1, False: 2}[verdict.is_right]


def was_searched(cudnn: str) -> bool:
    """True if a version of cuDNN, as `cudnnGetVersion` says it, was searched by the authors.

    >>> was_searched("91900"), was_searched("91902"), was_searched("92800"), was_searched("")
    (True, True, False, False)
    """
    return cudnn.isdigit() and cudnn_version(int(cudnn)).rpartition(".")[0] in SEARCHED
