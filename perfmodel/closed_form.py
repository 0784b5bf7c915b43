"""Seconds of whole calls in the paper's closed form (section 4.3): one function, of arrays.

A call is a row of numbers: what its stages take, alone and at their ends. Comments have the paper's
symbols: T_pre is `copy_in`, T_conv `compute`, T_off `copy_out`. The formula knows nothing of
schedules, so it prices a hundred thousand splits at once; `replay` runs the steps of one.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import numpy as np

from .slowdown import Slowdown

Stage = Literal["copy_in", "compute", "copy_out"]
STAGES: tuple[Stage, ...] = get_args(Stage)
#: Roads that do not slow each other down.
INDEPENDENT = Slowdown()


@dataclass(frozen=True, slots=True)
class Stages:
    """Seconds of calls by stage, each direction of the link as if it were alone.

    Numbers, or arrays that are broadcast against each other.

    Parameters
    ----------
    copy_in, compute, copy_out : float or array
        Totals over all pieces; what computing loses to the issuing of steps is in `compute`.
    first_in, first_compute, last_compute, last_out : float or array
        Of the first and of the last piece alone; parts of the totals.
    setup : float or array
        Before the first step is issued.
    issue : float or array
        What the host takes to issue all steps, while the device works on those issued before.
    turning : float or array
        What the slots of the slowest ring of plain memory take to be staged and copied, all of them
        side by side, as often as it needs: where staging takes long, a short ring binds.
    filing : float or array
        The same of files. A call takes as long as the longer of this and of all else, not more:
        the lines of files are of copies that had to turn, too.
    lost : float or array
        What computing takes longer because copies run beside it.
    one_slot : bool or array
        Whether rings have one slot: then nothing is copied beside computing.
    waiting, before : float or array
        Pieces go several times through what stays in a ring. Where the ring is full of it, this
        share of the copies in finds no slot before they do so for the last time; and this share of
        all computing comes before that.
    meeting_in, meeting_out : float or array
        Of the copies in and out, what runs beside the other direction where rings have one slot: a
        piece comes in while the one before leaves, or not beside anything.
    """

    copy_in: Any
    compute: Any
    copy_out: Any
    first_in: Any = 0.0
    first_compute: Any = 0.0
    last_compute: Any = 0.0
    last_out: Any = 0.0
    setup: Any = 0.0
    issue: Any = 0.0
    turning: Any = 0.0
    filing: Any = 0.0
    lost: Any = 0.0
    one_slot: Any = False
    waiting: Any = 0.0
    before: Any = 0.0
    meeting_in: Any = 0.0
    meeting_out: Any = 0.0

    def at(self, *place: int) -> Stages:
        """Return one row as numbers."""
        return Stages(*(number_at(getattr(self, field.name), *place) for field in fields(self)))


def number_at(values: Any, *place: int) -> float:
    """Return the number at a place of arrays that are broadcast against each other.

    Examples
    --------
    >>> number_at([[1.0], [2.0]], 1, 5), number_at(3.0, 1, 5)
    (2.0, 3.0)
    """
    found = np.asarray(values)
    own = zip(place[len(place) - found.ndim :], found.shape, strict=True)
    return float(found[tuple(min(at, extent - 1) for at, extent in own)])


def closed_form(stages: Stages, slowdown: Slowdown = INDEPENDENT, overlap: bool = True) -> Any:
    """Return the predicted seconds of calls (paper, section 4.3).

    Parameters
    ----------
    stages : Stages
    slowdown : Slowdown
        How much the two directions of the link slow each other down in this call.
    overlap : bool
        False for the same steps one after the other.

    Examples
    --------
    Four equal pieces, 1 s in, 2 s of computing, 1 s out: fill, four times the largest, drain.

    >>> call = Stages(4.0, 8.0, 4.0, 1.0, 2.0, 2.0, 1.0)
    >>> float(closed_form(call))
    10.0
    >>> float(closed_form(call, overlap=False))
    16.0
    """
    s = stages
    # T = T_setup + T_pre + T_conv + T_off
    in_turn = s.copy_in + s.compute + s.copy_out
    waits = np.maximum(s.issue, s.filing)
    if not overlap:
        return s.setup + np.maximum(np.maximum(in_turn, waits), s.turning)
    copy_in, copy_out = _both_ways(s, slowdown)
    # T = T_setup + max over stages of (fill before it + all of it + drain after it);
    # for N equal pieces this is
    # T_setup + (N - 1) * max(t_pre, t_conv, t_off) + t_pre + t_conv + t_off;
    # and the last copy out cannot start before it is issued
    overlapped = np.maximum(
        np.maximum(copy_in + s.last_compute, s.first_in + s.compute + s.lost),
        s.first_in + s.first_compute + copy_out - s.last_out,
    )
    # what is copied into a full ring waits until what stays there has been gone through
    waited = s.waiting * copy_in + s.before * (s.compute + s.lost)
    overlapped = np.maximum(overlapped, waited)
    # T = T_setup + T_pre + T_conv + T_off - what the directions do at once;
    # for N equal pieces t_pre + N * t_conv + (N - 1) * max(t_pre, t_off) + t_off
    together = np.maximum(*slowdown.together(s.meeting_in, s.meeting_out))
    taking_turns = in_turn - s.meeting_in - s.meeting_out + together
    longest = np.maximum(np.where(s.one_slot, taking_turns, overlapped), waits)
    drain = np.where(s.one_slot, 0.0, s.last_out)
    return s.setup + with_turning(longest, s.turning) + drain


def binding_stage(stages: Stages, slowdown: Slowdown = INDEPENDENT) -> Stage:
    """Return the stage with the most seconds when all overlap; the earlier one of equals.

    Examples
    --------
    >>> binding_stage(Stages(4.0, 8.0, 4.0, 1.0, 2.0, 2.0, 1.0))
    'compute'
    """
    copy_in, copy_out = _both_ways(stages, slowdown)
    seconds = (float(copy_in), float(stages.compute + stages.lost), float(copy_out))
    return STAGES[seconds.index(max(seconds))]


def link_alone(stages: Stages) -> Stages:
    """Return the same calls with nothing but their copies, for which nothing waits."""
    s = stages
    return Stages(
        s.copy_in, 0.0, s.copy_out, first_in=s.first_in, last_out=s.last_out, setup=s.setup
    )


def _both_ways(s: Stages, slowdown: Slowdown) -> tuple[Any, Any]:
    """Return when all copies in are done and how long all copies out take, slowing each other down.

    The first copy in has the link alone, since nothing is computed yet, and so has the last copy
    out, since everything has arrived: with a single piece the directions never meet.
    """
    copy_in, copy_out = slowdown.together(
        np.maximum(s.copy_in - s.first_in, 0.0), np.maximum(s.copy_out - s.last_out, 0.0)
    )
    return s.first_in + copy_in, copy_out + s.last_out


def with_turning(seconds: Any, turning: Any) -> Any:
    """Return the seconds of a call that would take `seconds` if it never waited for its rings.

    That is the longer of both where one is far less than the other. Where they are about equal, now
    the one is waited for and now the other: the cube root of the sum of cubes. (Chosen by the
    measured splits of problem 10 of `model_accuracy` on six H200s: this norm, and that of fourth
    powers, put them in the right order, and the longer of both did not.)

    Examples
    --------
    >>> round(float(with_turning(3.0, 0.3)), 3), round(float(with_turning(1.0, 1.0)), 3)
    (3.001, 1.26)
    """
    if not np.any(turning):
        return seconds
    # powers of arrays take five times as long as products and cube roots
    return np.cbrt(seconds * seconds * seconds + turning * turning * turning)
