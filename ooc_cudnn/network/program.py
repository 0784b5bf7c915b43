"""The linear program over fates and copies: what no plan of a step can beat, and what is worth it.

See docs/planning-networks.md. Of every thing (`outline.py`), in every gap between two groups of
phases that use it, a share k is held; what comes back is fetched (f) or made again (m). Phases of
backward may make again what is only wanted for making others again: in a gap the share held (c)
changes from group to group. Bytes cross the link in prefix sums: D out and Q in, by the end of each
group. A group takes T seconds: what it computes, or copies.

    c(i, s) <= c(i, s-1) + f(i, s) + m(maker of i, s)          what is held was there, or came
    m(j, s) <= the same sum of each thing that phase j reads   parents are there when j runs again
    what is held + what is still to leave + what came early <= budget
    minimise the sum of T
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ooc_cudnn.network.outline import Outline, Thing
from perfmodel import MachineModel

#: Terms of a sum: the coefficient of each variable; of none is a constant.
Sum = dict[int, float]
#: The number of the constant in a sum.
ONE = -1
METHOD = "highs-ds"


@dataclass(frozen=True)
class Link:
    """Seconds a byte each way, what both ways lose to each other, and computing to a copy."""

    in_seconds: float
    out_seconds: float
    in_factor: float = 1.0
    out_factor: float = 1.0
    loss: float = 0.0

    @classmethod
    def of(cls, machine: MachineModel) -> Link:
        """Pinned memory's: the fastest there is."""
        transfer = machine.transfer
        slower = transfer.slowdown("pinned", "pinned")
        return cls(
            transfer.copy_in["pinned"].alpha,
            transfer.copy_out["pinned"].alpha,
            slower.copy_in,
            slower.copy_out,
            machine.losses.get("copies", 0.0),
        )


@dataclass(frozen=True)
class Optimum:
    """A solution.

    Attributes
    ----------
    seconds : float
        The sum of T.
    kept : mapping
        Of each thing (by number) that backward reads, the share that is held all the time between
        forward and backward.
    offloaded : mapping
        And the share that comes from the host; the rest is made again.
    """

    seconds: float
    kept: Mapping[int, float]
    offloaded: Mapping[int, float]


def solved(
    outline: Outline,
    link: Link,
    budget_bytes: int,
    *,
    margin: Mapping[int, int] | None = None,
    issued: Sequence[float] = (),
    repeated: int = 1,
    most_iterations: int = 200_000,
) -> Optimum | None:
    """Solve the program of a step; None where no such step fits, or no optimum was found.

    Parameters
    ----------
    margin : mapping, optional
        Bytes that phases take beside all things; none in a bound.
    issued : tuple of float, optional
        When the host can have issued each phase.
    repeated : int
        How often the step follows itself: what it is given may be there from before, or come in
        while the one before runs. The seconds are those of one, in the mean.
    """
    made = _Program(outline, link, budget_bytes, margin or {}, issued, repeated)
    return made.solved(most_iterations)


class _Program:
    """The variables and rows; bytes are shares of the budget, seconds shares of all computing."""

    def __init__(
        self,
        outline: Outline,
        link: Link,
        budget_bytes: int,
        margin: Mapping[int, int],
        issued: Sequence[float],
        repeated: int = 1,
    ) -> None:
        self.outline, self.budget = outline, budget_bytes
        self.unit = sum(outline.seconds) or 1.0
        self.upper: list[float] = []
        self.low: list[float] = []
        self.is_equal: set[int] = set()  # the other rows are at least that
        self.places: list[tuple[list[int], list[float]]] = []
        self.repeated = repeated
        self.group_of = outline.group_of()
        self.count = count = len(outline.groups)
        #: By the end of each group: seconds, bytes out and bytes in. Another follows the last.
        self.E, self.D, self.Q = ([self.variable() for _ in range(count + 1)] for _ in range(3))
        #: In each group: what is gone and still to leave, and what came early.
        self.P, self.U = ([self.variable() for _ in range(count)] for _ in range(2))
        #: By the end of each group: what must have come in, can have left, must leave some time.
        self.wanted, self.made, self.gone = (
            [defaultdict[int, float](float) for _ in range(count + 1)] for _ in range(3)
        )
        #: Of each group, what is held of things that it does not use.
        self.held, self.moving = (
            [defaultdict[int, float](float) for _ in range(count)] for _ in range(2)
        )
        #: Of each thing and group: what is there where phases run again; and of a group that uses
        #: it, what is held before, in and after it.
        self.there: dict[tuple[int, int], Sum] = {}
        self.used: dict[tuple[int, int], tuple[Sum, int, Sum]] = {}
        #: What is held of a thing from forward to backward, and what is fetched at its next use.
        self.kept: dict[int, int] = {}
        self.fetched: dict[int, int] = {}
        #: Of each phase that may run again, the share of it that does, by group.
        self.again, self.asked = _runs(outline, self.group_of)
        self.m = {at: {s: self.variable(1.0) for s in found} for at, found in self.again.items()}
        for index, thing in enumerate(outline.things):
            if thing.uses:
                _Life(self, index, thing)
        self._parents()
        self._memory(margin)
        self._copies()
        self._seconds(link, issued)

    def variable(self, upper: float = np.inf) -> int:
        """Another variable, from 0 to `upper`."""
        self.upper.append(upper)
        return len(self.upper) - 1

    def levels(self, sums: Sequence[Mapping[int, float]]) -> list[int]:
        """Variables that are so many sums, which differ little from one to the next."""
        found, before = list[int](), dict[int, float]()
        for each in sums:
            row = _sum(each, before, -1)
            before = dict(each)
            if found:
                row[found[-1]] = 1.0
            found.append(self.variable())
            row[found[-1]] = -1.0
            self.at_least(row)
            self.is_equal.add(len(self.low) - 1)
        return found

    def at_least(self, row: Mapping[int, float], least: float = 0.0) -> None:
        """Another row: the sum is at least so much."""
        at = [variable for variable in row if variable != ONE and row[variable]]
        self.places.append((at, [row[variable] for variable in at]))
        self.low.append(least - row.get(ONE, 0.0))

    def _parents(self) -> None:
        """What a phase reads is there when it runs again."""
        for maker, runs in self.m.items():
            for parent in self.outline.parents[maker]:
                for at, variable in runs.items():
                    if (parent, at) not in self.used:
                        self.at_least(_sum(self.there[parent, at], {variable: -1}))

    def _memory(self, margin: Mapping[int, int]) -> None:
        """What is held in each phase fits; of a group, in those that use most."""
        touched = defaultdict[int, set[int]](set)
        for index, thing in enumerate(self.outline.things):
            for use in thing.uses:
                touched[use.phase].add(index)
        kept = self.levels(self.held)
        for group, (start, settled, stop) in enumerate(self.outline.groups):
            held = self.variable()
            self.at_least(_sum({held: 1, kept[group]: -1}, self.moving[group], -1))
            own = sorted({index for at in range(start, stop) for index in touched[at]})
            spans = {
                index: [
                    use.phase
                    for use in self.outline.things[index].uses
                    if start <= use.phase < stop
                ]
                for index in own
            }
            rows = set[tuple[frozenset[int], int]]()
            for at in range(start, stop):
                if at < settled and group >= self.outline.forward_groups:
                    continue  # what is made again in the group need not be there
                if any(touched[at] < touched[other] for other in range(start, stop)):
                    continue
                if (key := (frozenset(touched[at]), margin.get(at, 0))) in rows:
                    continue
                rows.add(key)
                row = _sum({}, dict.fromkeys((self.P[group], self.U[group], held), 1.0), -1)
                for index in own:
                    before, used, after = self.used[index, group]
                    size = self.outline.things[index].nbytes / self.budget
                    if spans[index][0] <= at <= spans[index][-1]:
                        if index in touched[at]:
                            _add(row, {used: 1}, -size)
                    elif at > spans[index][-1]:
                        _add(row, after, -size)
                    elif group not in self.asked[index]:  # else it may be gone once it served
                        _add(row, before, -size)
                self.at_least(row, margin.get(at, 0) / self.budget - 1)

    def _copies(self) -> None:
        """Prefix sums of copies: nothing leaves before it is made, all comes before it is read."""
        wanted, made = self.levels(_summed(self.wanted)), self.levels(_summed(self.made))
        gone = self.levels(self.gone)
        for group in range(self.count + 1):
            self.at_least({self.Q[group]: 1, wanted[group]: -1})
            self.at_least({made[group]: 1, self.D[group]: -1})
            if group < self.count:
                self.at_least({self.P[group]: 1, self.D[group]: 1, gone[group]: -1})
            if 0 < group < self.count:
                self.at_least({self.U[group]: 1, self.Q[group - 1]: -1, wanted[group]: 1})
        self.at_least({self.D[-1]: 1, made[-1]: -1})

    def _seconds(self, link: Link, issued: Sequence[float]) -> None:
        """A group lasts as long as what it computes, or copies."""
        each_in = link.in_seconds * self.budget / self.unit
        each_out = link.out_seconds * self.budget / self.unit
        beside_in = link.in_factor * (1 - 1 / link.out_factor)
        beside_out = link.out_factor * (1 - 1 / link.in_factor)
        for group in range(self.count + 1):
            lasts = {self.E[group]: 1.0}
            out, back = {self.D[group]: 1.0}, {self.Q[group]: 1.0}
            if group:
                lasts[self.E[group - 1]] = out[self.D[group - 1]] = back[self.Q[group - 1]] = -1.0
                self.at_least(out)
                self.at_least(back)
            self.at_least(_sum(_sum(lasts, back, -each_in), out, -each_out * beside_out))
            self.at_least(_sum(_sum(lasts, out, -each_out), back, -each_in * beside_in))
            start, _, stop = self.outline.groups[group] if group < self.count else (0, 0, 0)
            for maker, runs in self.m.items():
                if group in runs:
                    lasts[runs[group]] = -self.outline.seconds[maker] / self.unit
            lasts = _sum(_sum(lasts, back, -each_in * link.loss), out, -each_out * link.loss)
            self.at_least(lasts, sum(self.outline.seconds[start:stop]) / self.unit)
            if issued and 0 < group < self.count:
                self.at_least({self.E[group - 1]: 1.0}, issued[start] / self.unit)

    def solved(self, most_iterations: int) -> Optimum | None:
        """Solve it by HiGHS."""
        from scipy.optimize import linprog  # takes a while to import
        from scipy.sparse import csr_array

        costs = np.zeros(len(self.upper))
        costs[self.E[-1]] = 1.0
        at = [variable for variables, _ in self.places for variable in variables]
        values = [value for _, found in self.places for value in found]
        starts = np.cumsum([0, *(len(variables) for variables, _ in self.places)])
        low, equal = np.array(self.low), np.zeros(len(self.low), bool)
        equal[list(self.is_equal)] = True
        shape = len(self.places), len(self.upper)
        matrix = csr_array((values, at, starts), shape)
        found = linprog(
            costs,
            A_ub=-matrix[~equal],
            b_ub=-low[~equal],
            A_eq=matrix[equal],
            b_eq=low[equal],
            bounds=np.column_stack([np.zeros(len(self.upper)), self.upper]),
            method=METHOD,
            options={"maxiter": most_iterations},
        )
        self.found = found
        if found.x is None or found.status:
            return None
        x = found.x
        return Optimum(
            float(found.fun * self.unit),
            {index: float(x[at]) for index, at in self.kept.items()},
            {index: float(x[at]) for index, at in self.fetched.items()},
        )


class _Life:
    """The variables of one thing: use, gap, use, ..."""

    def __init__(self, program: _Program, index: int, thing: Thing) -> None:
        self.program, self.index, self.thing = program, index, thing
        self.size = thing.nbytes / program.budget
        uses: dict[int, tuple[bool, bool]] = {}
        for use in thing.uses:
            group = program.group_of[use.phase]
            reads, writes = uses.get(group, (use.reads, False))
            uses[group] = reads, writes or use.writes
        groups = list(uses)
        trail = max(program.asked[index], default=-1)
        stops = [*groups[1:], max(trail, groups[-1]) + 1]
        written = [group for group, (_, writes) in uses.items() if writes]
        #: What has left, all in all, so that it can come again; of a result the last version apart.
        self.left: Sum = {}
        #: What is there from the step before, and stays for the next one.
        around: Sum = {program.variable(thing.shared): 1} if thing.shared else {}
        before = around
        for group in range(groups[0]) if around else ():
            _add(program.held[group], around, self.size)
        for number, (at, stop) in enumerate(zip(groups, stops, strict=True)):
            reads, _ = uses[at]
            there, fetch = self._comes(at, before, asks=reads, first=number == 0)
            held = program.variable(1.0)
            is_last = number == len(groups) - 1
            after: Sum = {program.variable(1.0): 1}
            if is_last and trail <= at:
                after = around
            gone = self.left
            if after and not thing.is_given:
                x = program.variable(1.0)
                program.at_least({x: 1, **dict.fromkeys(gone, -1)})
                self.left = {x: 1}
            if reads and fetch is not None:
                program.at_least({held: 1, fetch: 1}, 1)
            elif not reads and after and not (thing.is_result and at == written[-1]):
                program.at_least(_sum({held: 1}, self.left), 1)  # made, or leaves at once
            if after:
                program.at_least(_sum({held: 1}, after, -1))
            program.used[index, at] = before, held, after
            program.there[index, at] = there
            if gone:
                _add(program.gone[at], gone, self.size)
            if after and after is not around:
                before = self._gap(at, stop, after)
                if at < program.outline.forward_groups <= stop and not is_last:
                    (program.kept[index],) = after
        end = range(groups[-1] + 1 if not after else stop, program.count)
        for group in end:
            if self.left:
                _add(program.gone[group], self.left, self.size)
        if around:
            if after is not around:
                program.at_least(_sum(before, around, -1))
            for group in end:
                _add(program.held[group], around, self.size)
        if written and not thing.shared:
            _add(program.made[written[0]], self.left, self.size)
            if thing.is_result:
                program.made[written[-1]][ONE] += self.size
                for group in range(groups[-1] + 1, program.count):
                    program.gone[group][ONE] += self.size

    def _comes(self, at: int, before: Sum, *, asks: bool, first: bool) -> tuple[Sum, int | None]:
        """What is there in a group, and the variable of what is fetched for it."""
        program, thing = self.program, self.thing
        there = dict(before)
        again = {} if thing.maker is None or first else program.m.get(thing.maker, {})
        if at in again:
            there[again[at]] = 1
        fetch = None
        if asks and (thing.is_given or not first):
            fetch = program.variable(1.0)
            there[fetch] = 1
            # what a step before may have fetched for this one has no group of its own
            early = first and program.repeated > 1
            program.wanted[-1 if early else at][fetch] += self.size
            if not thing.is_given:
                program.at_least({**self.left, fetch: -1})
            changed = early and any(use.writes for use in thing.uses)  # the first step makes it
            program.at_least(there, 1 - changed / program.repeated)
            if (
                first is False
                and at >= program.outline.forward_groups
                and self.index not in program.fetched
            ):
                program.fetched[self.index] = fetch
        return there, fetch

    def _gap(self, at: int, stop: int, after: Sum) -> Sum:
        """What is held in the groups between two uses; returned is what is there in the end."""
        program, thing, size = self.program, self.thing, self.size
        again = {} if thing.maker is None else program.m.get(thing.maker, {})
        asked = program.asked[self.index] | set(again)
        events = [group for group in range(at + 1, stop) if group in asked]
        first = events[0] if events else stop
        leaves, came = self.left, dict[int, float]()
        if events and not thing.is_given:
            # held to make others, then sent away, then fetched: that leaves later
            late = program.variable(1.0)
            leaves = _sum(self.left, {late: -1})
            (x,) = self.left
            program.at_least({x: 1, late: -1})
            came[late] = -1
        held = after
        for group in range(at + 1, stop):
            if group >= first:
                there = dict(held)
                if group in again:
                    there[again[group]] = came[again[group]] = 1
                if group in program.asked[self.index]:
                    fetch = program.variable(1.0)
                    there[fetch] = came[fetch] = 1
                    program.wanted[group][fetch] += size
                    if not thing.is_given:
                        program.at_least({**self.left, fetch: -1})
                program.there[self.index, group] = there
                held = {program.variable(1.0): 1}
                program.at_least(_sum(there, held, -1))
            _add((program.held if held is after else program.moving)[group], held, size)
            if leaves:
                _add(program.gone[group], leaves, size)
        if len(came) and not thing.is_given:
            program.at_least(_sum(_sum(after, came), held, -1))
        return held


def _add(to: dict[int, float], other: Mapping[int, float], times: float = 1.0) -> None:
    """Add so many times a sum to another one."""
    for variable, value in other.items():
        to[variable] += times * value


def _sum(one: Mapping[int, float], other: Mapping[int, float], times: float = 1.0) -> Sum:
    """One sum and so many times another one."""
    found = defaultdict[int, float](float, one)
    _add(found, other, times)
    return found


def _summed(sums: Sequence[Mapping[int, float]]) -> list[Sum]:
    """Each with all before it."""
    found, total = list[Sum](), defaultdict[int, float](float)
    for each in sums:
        _add(total, each)
        found.append(dict(total))
    return found


def _runs(
    outline: Outline, group_of: Sequence[int]
) -> tuple[dict[int, list[int]], dict[int, set[int]]]:
    """The groups in which each phase may run again; and in which each thing may be asked for.

    Where a phase reads what it makes; and where others run again that do.
    """
    makes = defaultdict[int, list[int]](list)
    for index, thing in enumerate(outline.things):
        if thing.maker is not None:
            makes[thing.maker].append(index)
    runs, asked = defaultdict[int, set[int]](set), defaultdict[int, set[int]](set)
    for maker in sorted(makes, reverse=True):
        for index in makes[maker]:
            for use in outline.things[index].uses:
                if use.reads and group_of[use.phase] >= outline.forward_groups:
                    runs[maker].add(group_of[use.phase])
        for parent in outline.parents[maker]:
            asked[parent] |= runs[maker]
            other = outline.things[parent].maker
            if other is not None:
                runs[other] |= runs[maker]
    return {maker: sorted(runs[maker]) for maker in makes}, asked
