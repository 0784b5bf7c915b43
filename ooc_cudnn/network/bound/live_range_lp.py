"""LP variables and constraints for each tensor's live range (held, refetched, rematerialized).

`relaxation.py` says what the letters mean, and makes rows of what is gathered here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ooc_cudnn.network.bound.coarse_step import CoarseStep, TensorSummary
from ooc_cudnn.network.solver.model import ONE, LinearProgram, Sum


class LiveRangeLp(LinearProgram):
    """The variables of all things, and what they add up to, group by group.

    Bytes are shares of the budget.
    """

    def __init__(self, coarse: CoarseStep, budget_bytes: int, repeated: int = 1) -> None:
        super().__init__()
        self.coarse, self.budget = coarse, budget_bytes
        self.repeated = repeated
        self.group_of = coarse.group_of()
        self.count = count = len(coarse.groups)
        #: By the end of each group: what must have come in, can have left, must leave some time.
        self.wanted, self.made, self.gone = ([Sum() for _ in range(count + 1)] for _ in range(3))
        #: Of each group, what is held of things that it does not use.
        self.held, self.moving = ([Sum() for _ in range(count)] for _ in range(2))
        #: Of each thing and group: what is there where phases run again; and of a group that uses
        #: it, what is held before, in and after it.
        self.there: dict[tuple[int, int], Sum] = {}
        self.used: dict[tuple[int, int], tuple[Sum, int, Sum]] = {}
        #: What is held of a thing from forward to backward, and what is fetched at its next use.
        self.kept: dict[int, int] = {}
        self.fetched: dict[int, int] = {}
        #: Of each phase that may run again, the share of it that does, by group.
        self.again, self.asked = _runs(coarse, self.group_of)
        self.m = {at: {s: self.variable(1.0) for s in found} for at, found in self.again.items()}
        for index, thing in enumerate(coarse.things):
            if thing.uses:
                _TensorVariables(self, index, thing)


class _TensorVariables:
    """The variables of one thing: use, gap, use, ..."""

    def __init__(self, program: LiveRangeLp, index: int, thing: TensorSummary) -> None:
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
        self.left = Sum()
        #: What is there from the step before, and stays for the next one.
        around = Sum.of([program.variable(thing.shared)] if thing.shared else [])
        before = around
        for group in range(groups[0]) if around else ():
            program.held[group].add(around, self.size)
        for number, (use_group, stop) in enumerate(zip(groups, stops, strict=True)):
            reads, _ = uses[use_group]
            share, fetch = self._comes(use_group, before, asks=reads, first=number == 0)
            held = program.variable(1.0)
            is_last = number == len(groups) - 1
            after = Sum.of([program.variable(1.0)])
            if is_last and trail <= use_group:
                after = around
            gone = self.left
            if after and not thing.is_given:
                x = program.variable(1.0)
                program.at_least({x: 1, **dict.fromkeys(gone, -1)})
                self.left = Sum.of([x])
            if reads and fetch is not None:
                program.at_least({held: 1, fetch: 1}, 1)
            elif not reads and after and not (thing.is_result and use_group == written[-1]):
                program.at_least(Sum.of([held]) + self.left, 1)  # made, or leaves at once
            if after:
                program.at_least(Sum.of([held]) - after)
            program.used[index, use_group] = before, held, after
            program.there[index, use_group] = share
            if gone:
                program.gone[use_group].add(gone, self.size)
            if after and after is not around:
                before = self._gap(use_group, stop, after)
                if use_group < program.coarse.forward_groups <= stop and not is_last:
                    (program.kept[index],) = after
        end = range(groups[-1] + 1 if not after else stop, program.count)
        for group in end:
            if self.left:
                program.gone[group].add(self.left, self.size)
        if around:
            if after is not around:
                program.at_least(before - around)
            for group in end:
                program.held[group].add(around, self.size)
        if written and not thing.shared:
            program.made[written[0]].add(self.left, self.size)
            if thing.is_result:
                program.made[written[-1]][ONE] += self.size
                for group in range(groups[-1] + 1, program.count):
                    program.gone[group][ONE] += self.size

    def _comes(self, group: int, before: Sum, *, asks: bool, first: bool) -> tuple[Sum, int | None]:
        """Expression for the live share at a use, and the fetch variable."""
        program, thing = self.program, self.thing
        share = Sum(before)
        again = {} if thing.maker is None or first else program.m.get(thing.maker, {})
        if group in again:
            share[again[group]] = 1
        fetch = None
        if asks and (thing.is_given or not first):
            fetch = program.variable(1.0)
            share[fetch] = 1
            # what a step before may have fetched for this one has no group of its own
            early = first and program.repeated > 1
            program.wanted[-1 if early else group][fetch] += self.size
            if not thing.is_given:
                program.at_least({**self.left, fetch: -1})
            changed = early and any(use.writes for use in thing.uses)  # the first step makes it
            program.at_least(share, 1 - changed / program.repeated)
            if (
                first is False
                and group >= program.coarse.forward_groups
                and self.index not in program.fetched
            ):
                program.fetched[self.index] = fetch
        return share, fetch

    def _gap(self, start: int, stop: int, after: Sum) -> Sum:
        """Hold a share in the groups between two uses; return what is there in the end."""
        program, thing, size = self.program, self.thing, self.size
        again = {} if thing.maker is None else program.m.get(thing.maker, {})
        asked = program.asked[self.index] | set(again)
        events = [group for group in range(start + 1, stop) if group in asked]
        first = events[0] if events else stop
        leaves, came = self.left, Sum()
        if events and not thing.is_given:
            # held to make others, then sent away, then fetched: that leaves later
            late = program.variable(1.0)
            leaves = self.left - Sum.of([late])
            (x,) = self.left
            program.at_least({x: 1, late: -1})
            came[late] = -1
        held = after
        for group in range(start + 1, stop):
            if group >= first:
                share = Sum(held)
                if group in again:
                    share[again[group]] = came[again[group]] = 1
                if group in program.asked[self.index]:
                    fetch = program.variable(1.0)
                    share[fetch] = came[fetch] = 1
                    program.wanted[group][fetch] += size
                    if not thing.is_given:
                        program.at_least({**self.left, fetch: -1})
                program.there[self.index, group] = share
                held = Sum.of([program.variable(1.0)])
                program.at_least(share - held)
            (program.held if held is after else program.moving)[group].add(held, size)
            if leaves:
                program.gone[group].add(leaves, size)
        if len(came) and not thing.is_given:
            program.at_least(after + came - held)
        return held


def _runs(
    coarse: CoarseStep, group_of: Sequence[int]
) -> tuple[dict[int, list[int]], dict[int, set[int]]]:
    """The groups in which each phase may run again; and in which each thing may be asked for.

    Where a phase reads what it makes; and where others run again that do.
    """
    makes = defaultdict[int, list[int]](list)
    for index, thing in enumerate(coarse.things):
        if thing.maker is not None:
            makes[thing.maker].append(index)
    runs, asked = defaultdict[int, set[int]](set), defaultdict[int, set[int]](set)
    for maker in sorted(makes, reverse=True):
        for index in makes[maker]:
            for use in coarse.things[index].uses:
                if use.reads and group_of[use.phase] >= coarse.forward_groups:
                    runs[maker].add(group_of[use.phase])
        for parent in coarse.parents[maker]:
            asked[parent] |= runs[maker]
            other = coarse.things[parent].maker
            if other is not None:
                runs[other] |= runs[maker]
    return {maker: sorted(runs[maker]) for maker in makes}, asked
