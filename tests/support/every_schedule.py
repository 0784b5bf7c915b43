"""The fastest schedule of a tiny problem of MO-SOS, by looking at every one: stage by stage.

It shares nothing with the program but the problem. What is known when a stage begins: which maps
are on the device, which are on the host, and what the link is busy with, until when.
"""

from __future__ import annotations

import itertools
import math

NOTHING = ("", -1, -1)


def least_seconds(problem, budget, *, offload=True, algorithms=True):
    """Seconds of the fastest schedule; infinity where none fits."""
    return _Search(problem, budget, offload, algorithms).least()


class _Search:
    def __init__(self, problem, budget, offload, algorithms):
        self.maps, self.stages = problem.maps, problem.stages
        self.rates = {"out": problem.bytes_out, "in": problem.bytes_in}
        self.budget, self.offload, self.algorithms = budget, offload, algorithms
        self.may_make = [self._ancestors(s.reads) if s.is_backward else set() for s in self.stages]
        self.first_wanted = [self._first_wanted(j) for j in range(len(self.maps))]

    def least(self):
        """Go through the stages, from every state to every other."""
        states = {(frozenset(), frozenset(), NOTHING): 0.0}
        for t in range(len(self.stages)):
            found = {}
            for (there, host, link), seconds in states.items():
                for started in self._links(t, there, host, link):
                    for after, took in self._ways(t, there, host, started):
                        total = seconds + took
                        if total < found.get(after, math.inf):
                            found[after] = total
            states = found
        return min(states.values(), default=math.inf)

    def _ancestors(self, of):
        found, left = set(), list(of)
        while left:
            j = left.pop()
            if self.maps[j].choices and j not in found:
                found.add(j)
                left += self.maps[j].parents
        return found

    def _first_wanted(self, j):
        """The first stage of backward that may want a map."""
        for t, stage in enumerate(self.stages):
            parents = {p for k in self.may_make[t] for p in self.maps[k].parents}
            if stage.is_backward and j in {*stage.reads, *self.may_make[t], *parents}:
                return t
        return len(self.stages)

    def _links(self, t, there, host, link):
        """What the link may do in a stage: go on, start a copy, or rest."""
        if link != NOTHING:
            yield link
            return
        yield NOTHING
        if not self.offload:
            return
        is_back = self.stages[t].is_backward
        for j, each in enumerate(self.maps):
            for kind, may in (
                ("out", j in there and j not in host),
                ("in", is_back and j in host - there),
            ):
                end, left = t, each.nbytes / self.rates[kind]
                while end < len(self.stages):
                    left -= min(c.seconds for c in self.stages[end].choices)
                    if left <= 0:
                        break
                    end += 1
                limit = self.first_wanted[j] if kind == "out" else len(self.stages)
                if may and end < limit:
                    yield kind, j, end

    def _ways(self, t, there, host, link):
        """Every way to run a stage: what is made again, and what stays."""
        stage = self.stages[t]
        kind, copied, end = link
        coming = {copied} if kind == "in" else set()
        leaving = {copied} if kind == "out" else set()
        for size in range(len(self.may_make[t]) + 1):
            for again in itertools.combinations(sorted(self.may_make[t] - there), size):
                had = there | set(again)
                if not set(stage.reads) <= had:
                    continue
                if any(not set(self.maps[k].parents) <= had for k in again):
                    continue
                for stays in _subsets(had | set(stage.makes)):
                    took = self._seconds(t, there, again, stays, coming, leaving)
                    if took == math.inf:
                        continue
                    after, on_host, busy = set(stays) | leaving, set(host), link
                    if kind and end == t:
                        after = set(stays) | coming
                        on_host |= leaving
                        busy = NOTHING
                    yield (frozenset(after), frozenset(on_host), busy), took

    def _seconds(self, t, there, again, stays, coming, leaving):
        """Of the fastest algorithms that fit; infinity where none do."""
        stage, total = self.stages[t], 0.0
        for k in again:
            wanted = set(stage.reads) | stays | leaving
            wanted |= {p for later in again if later >= k for p in self.maps[later].parents}
            made = there | {each for each in again if each < k}
            total += self._fastest(t, (made & wanted) | {k} | coming, self.maps[k].choices)
        held = set(stage.reads) | stays | leaving | set(stage.makes) | coming
        return total + self._fastest(t, held, stage.choices)

    def _fastest(self, t, held, choices):
        room = self.budget - self.stages[t].fixed_bytes - sum(self.maps[j].nbytes for j in held)
        if room < 0:
            return math.inf
        if not self.algorithms:
            return min(choice.seconds for choice in choices)
        return min((c.seconds for c in choices if c.workspace_bytes <= room), default=math.inf)


def _subsets(of):
    items = sorted(of)
    for size in range(len(items) + 1):
        yield from map(set, itertools.combinations(items, size))
