"""Seconds of a whole split by the paper's closed form (section 4.3).

It needs ten numbers and no schedule, so it prices a split during the search. What it cannot see,
`replay` does: short rings and uneven pieces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from .record import Record, number, whole
from .slowdown import Slowdown

Stage = Literal["copy_in", "compute", "copy_out"]
STAGES: tuple[Stage, ...] = get_args(Stage)


@dataclass(frozen=True, slots=True)
class Split(Record):
    """The piece sizes d_n, d_cY, d_cX and d_hY: what one piece holds of each axis.

    Examples
    --------
    >>> Split(n=2, c_y=64, c_x=64, h_y=128)
    Split(n=2, c_y=64, c_x=64, h_y=128)
    """

    n: int
    c_y: int
    c_x: int
    h_y: int

    def __post_init__(self) -> None:
        for axis in ("n", "c_y", "c_x", "h_y"):
            size = getattr(self, axis)
            if type(size) is not int or size < 1:
                object.__setattr__(self, axis, whole(axis, size, at_least=1))


@dataclass(frozen=True, slots=True)
class PipelineCost(Record):
    """Seconds of one call by stage, each direction of the link counted as if it were alone.

    Parameters
    ----------
    setup_seconds : float
        Before the pipeline starts: weights that go to the device once.
    copy_in_seconds, compute_seconds, copy_out_seconds : float
        Totals over all pieces.
    first_copy_in, first_compute, last_compute, last_copy_out : float
        Of the first and of the last piece alone; parts of the totals.
    issue_seconds : float
        What the host takes to issue all steps, while the device works on those issued before.
    waiting_seconds : float
        For how long no copy in may start, because the data that its slot holds is still needed.
    turning_seconds : float
        What the slots of the slowest ring of plain memory take to be staged and copied, all of them
        side by side, as often as it needs: where staging takes long, a short ring binds
        (`with_turning`).
    filing_seconds : float
        The same of files. Such a call takes as long as the longer of both: the lines of files are
        of copies that had to turn, too.
    lost_seconds : float
        What computing takes longer because copies run beside it.
    meeting_in, meeting_out : float
        Of the copies in and out, what runs beside the other direction where rings have one slot:
        there a piece comes in while the one before leaves, or not beside anything.
    """

    setup_seconds: float
    copy_in_seconds: float
    compute_seconds: float
    copy_out_seconds: float
    first_copy_in: float
    first_compute: float
    last_compute: float
    last_copy_out: float
    issue_seconds: float = 0.0
    waiting_seconds: float = 0.0
    turning_seconds: float = 0.0
    meeting_in: float = 0.0
    meeting_out: float = 0.0
    filing_seconds: float = 0.0
    lost_seconds: float = 0.0

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            object.__setattr__(self, name, number(name, getattr(self, name)))
        for part, total in (
            ("first_copy_in", "copy_in_seconds"),
            ("first_compute", "compute_seconds"),
            ("last_compute", "compute_seconds"),
            ("last_copy_out", "copy_out_seconds"),
            ("meeting_in", "copy_in_seconds"),
            ("meeting_out", "copy_out_seconds"),
        ):
            # a total added up piece by piece may differ in its last digits
            if getattr(self, part) > getattr(self, total) * (1.0 + 1e-6):
                raise ValueError(
                    f"{part} is {getattr(self, part)!r}, more than its total "
                    f"{total} = {getattr(self, total)!r}"
                )


def with_turning(seconds: Any, turning: Any) -> Any:
    """Return what a call takes that takes so long without waiting for its rings to turn.

    That is the longer of both where one is far less than the other. Where they are about equal, now
    the one is waited for and now the other: the cube root of the sum of cubes, numbers or arrays.
    (Chosen by the measured splits of problem 10 of `model_accuracy` on six H200s: this norm, and
    that of fourth powers, put them in the right order, and the longer of both did not.)

    Examples
    --------
    >>> round(float(with_turning(3.0, 0.3)), 3), round(float(with_turning(1.0, 1.0)), 3)
    (3.001, 1.26)
    >>> with_turning(2.0, 0.0)
    2.0
    """
    if isinstance(turning, float) and not turning:
        return seconds
    # powers of arrays take five times as long as products and cube roots
    return np.cbrt(seconds * seconds * seconds + turning * turning * turning)


#: Roads that do not slow each other down.
INDEPENDENT = Slowdown()


def _link_totals(cost: PipelineCost, slowdown: Slowdown) -> tuple[float, float]:
    """Return when all copies in are done and how long all copies out take, slowing each other down.

    The first copy in has the link alone, since nothing is computed yet, and so has the last copy
    out, since everything has arrived: with a single piece the directions never meet.
    """
    copy_in, copy_out = slowdown.together(
        max(cost.copy_in_seconds - cost.first_copy_in, 0.0),
        max(cost.copy_out_seconds - cost.last_copy_out, 0.0),
    )
    return cost.first_copy_in + copy_in + cost.waiting_seconds, copy_out + cost.last_copy_out


def closed_form(
    cost: PipelineCost,
    slowdown: Slowdown = INDEPENDENT,
    overlap: bool = True,
    one_slot: bool = False,
) -> float:
    """Return the predicted seconds of a call (paper, section 4.3).

    Parameters
    ----------
    cost : PipelineCost
    slowdown : Slowdown
        How much the two directions of the link slow each other down in this call.
    overlap : bool
        False for the same steps one after the other.
    one_slot : bool
        Whether rings have one slot: nothing is copied beside computing, and the directions meet
        only for `meeting_in` and `meeting_out`.

    Examples
    --------
    Four equal pieces, 1 s in, 2 s of computing, 1 s out: fill, four times the largest, drain.

    >>> cost = PipelineCost(0.0, 4.0, 8.0, 4.0, 1.0, 2.0, 2.0, 1.0)
    >>> closed_form(cost)
    10.0
    >>> closed_form(cost, overlap=False)
    16.0

    In rings of one slot each piece leaves while the next one comes.

    >>> from dataclasses import replace
    >>> closed_form(replace(cost, meeting_in=3.0, meeting_out=3.0), one_slot=True)
    13.0
    """
    if not overlap:
        # T = T_setup + T_in + T_compute + T_out
        stages = cost.copy_in_seconds + cost.compute_seconds + cost.copy_out_seconds
        return cost.setup_seconds + max(
            stages, cost.issue_seconds, cost.turning_seconds, cost.filing_seconds
        )
    if one_slot:
        # T = T_setup + T_compute + T_in + T_out - what the directions do at once;
        # for N equal pieces t_in + N * t_c + (N - 1) * max(t_in, t_out) + t_out
        apart = cost.copy_in_seconds - cost.meeting_in + cost.copy_out_seconds - cost.meeting_out
        meeting: float = max(slowdown.together(cost.meeting_in, cost.meeting_out))
        stages = cost.compute_seconds + apart + meeting
        longest = max(stages, cost.issue_seconds, cost.filing_seconds)
        return cost.setup_seconds + float(with_turning(longest, cost.turning_seconds))
    copy_in, copy_out = _link_totals(cost, slowdown)
    # T = T_setup + max over stages of (fill before it + all of it + drain after it);
    # for N equal pieces this is T_setup + (N - 1) * max(t_in, t_c, t_out) + t_in + t_c + t_out;
    # and the last copy out cannot start before it is issued
    longest = max(
        copy_in + cost.last_compute,
        cost.first_copy_in + cost.compute_seconds + cost.lost_seconds,
        cost.first_copy_in + cost.first_compute + copy_out - cost.last_copy_out,
        cost.issue_seconds,
        cost.filing_seconds,
    )
    turned = float(with_turning(longest, cost.turning_seconds))
    return cost.setup_seconds + turned + cost.last_copy_out


def binding_stage(cost: PipelineCost, slowdown: Slowdown = INDEPENDENT) -> Stage:
    """Return the stage with the most seconds when all overlap; the earlier one of equals.

    Examples
    --------
    >>> cost = PipelineCost(0.0, 4.0, 8.0, 4.0, 1.0, 2.0, 2.0, 1.0)
    >>> binding_stage(cost)
    'compute'
    """
    copy_in, copy_out = _link_totals(cost, slowdown)
    seconds = (copy_in, cost.compute_seconds + cost.lost_seconds, copy_out)
    return STAGES[seconds.index(max(seconds))]
