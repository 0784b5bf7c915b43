"""What a policy, or `best`, compares before one plan is the fastest."""

from __future__ import annotations

from collections.abc import Iterator

from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.ir.step import Step
from ooc_cudnn.network.lowering.lower import most_touched
from ooc_cudnn.network.passes.fuse_gradient_sums import summed
from ooc_cudnn.network.passes.inplace_gradients import in_place
from ooc_cudnn.network.passes.microbatch import WholeBatchError, images_of, split_into_microbatches
from ooc_cudnn.network.search.by_policy import MOST_IN_VAIN, StandalonePolicy
from ooc_cudnn.network.search.by_remat import searched
from ooc_cudnn.network.search.incumbent import Incumbent
from ooc_cudnn.network.search.refine_prefetch import in_time
from ooc_cudnn.network.search.remat_candidates import ALL, INPUTS
from ooc_cudnn.network.search.strategies import (
    MICRO_BATCHES,
    WAITING,
    WAYS,
    by_search_in_slabs,
    has_room_for_shared,
    waits,
)

#: What `best` chooses from, in the order in which equals are taken; and beside them plans whose
#: events a search found (`SEARCHED`), which tell early what cannot be the fastest.
BEST_OF = ("keep", "remake", "checkpoint", "offload", "mixed")
#: And of other steps than those.
VDNN = ("vdnn_all", "vdnn_conv", "vdnn_dyn")
#: Where the fastest plan takes less than so many times its computing, nothing is streamed call by
#: call to compare with it: that only copies more.
WAITING_A_LITTLE = 1.05


class Comparison:
    """Plans of a step by one policy, or by all that `best` has; `incumbent` holds the fastest.

    Each method tries some more, in the order in which they stand here.

    Parameters
    ----------
    step, terms
        As the policy takes them.
    micro_batches : int, optional
        How many are asked for; chosen when left out.
    """

    def __init__(
        self, name: str, step: Step, terms: PlanConstraints, policy: str, micro_batches: int | None
    ) -> None:
        self._name, self._step, self._terms, self._asked = name, step, terms, micro_batches
        self._is_best = policy == "best"
        self.fastest = Incumbent(terms, step)
        # as `by_host_memory` does
        self.fastest.skips = self._is_best and micro_batches in (None, 1)
        self._ready = in_place(summed(step))
        policies = BEST_OF if self._is_best else (policy,)
        self._alone = [self._of(each, step, self._ready, terms) for each in policies]
        #: Micro-batches of what is streamed.
        self._parts = micro_batches or 1

    def _of(self, policy: str, step: Step, ready: Step, terms: PlanConstraints) -> StandalonePolicy:
        return StandalonePolicy(step, ready, terms, policy, self.fastest.computing)

    def by_policies(self) -> None:
        """Compare plans by each policy, and for `best` by the search, in more and more parts."""
        in_vain = 0
        for parts in micro_batches_of(self._step, self._asked, self._terms):
            taken = split_into_microbatches(self._ready, parts)
            if not self.fastest.can_beat_incumbent(taken):
                break  # nor may more micro-batches, which compute longer still
            if self._is_best and most_touched(taken, self._terms) > self._terms.target.room_bytes:
                continue  # no policy has what a phase touches there
            searches = self._is_best and in_vain < MOST_IN_VAIN
            if not searches and all(each.has_ended for each in self._alone):
                break
            is_faster = self._in_parts(parts, searches=searches)
            in_vain = 0 if self.fastest.best is None or is_faster else in_vain + 1

    def _in_parts(self, parts: int, *, searches: bool) -> bool:
        """Compare plans in so many micro-batches; return whether one was the fastest then."""
        is_faster = False
        for each in self._alone:
            made = each.planned(self._name, parts, self.fastest)
            is_faster = self.fastest.take(made) or is_faster
            if made is None and each.policy == "keep" and searches:
                is_faster = self._by_search(parts) or is_faster
        return is_faster

    def _by_search(self, parts: int) -> bool:
        ways = (INPUTS, ALL) if parts == 1 else (INPUTS,)
        plans = searched(self._name, self._ready, self._terms, self.fastest, ways, parts=parts)
        is_faster = self.fastest.compare(plans)
        if parts == 1:  # the faster it is, the fewer others may be
            in_time(self._name, self._terms, self.fastest)
        return is_faster

    def try_strategies(self) -> None:
        """Compare plans of `strategies`, each where the fastest so far is slow."""
        in_time(self._name, self._terms, self.fastest)
        asked = self._name, self._step, self._terms, self._asked, self.fastest
        if self.fastest.is_slow(WAITING):
            self.fastest.compare(by_search_in_slabs(*asked))
        for way in WAYS:
            if self.fastest.best is None or waits(self.fastest.best.plan):
                self.fastest.compare(way(*asked))

    def by_vdnn(self, step: Step, terms: PlanConstraints) -> None:
        """Compare plans by vDNN's policies, which take another step."""
        ready = in_place(summed(step))
        copying = [self._of(each, step, ready, terms) for each in VDNN]
        for each in copying:
            self.fastest.take(each.planned(self._name, self._parts, self.fastest))
        self._alone += copying

    def by_streaming(self) -> None:
        """Stream what is too large, call by call: for policies that have no plan without that."""
        for each in self._alone:
            if each.fits_nowhere:
                self._stream(each)
        if self.fastest.best is None and self.fastest.least is None and self.fastest.skips:
            self.fastest.skips = False  # all was passed over: what is streamed says what it wants
            for each in self._alone:
                self._stream(each)

    def _stream(self, each: StandalonePolicy) -> None:
        for made in each.streamed(self._name, self._parts, self.fastest):
            self.fastest.take(made)

    def by_streaming_for_comparison(self) -> None:
        """Stream by every policy, where the fastest so far waits for the link."""
        for each in self._alone if waits(self.fastest.found().plan, WAITING_A_LITTLE) else ():
            self.fastest.compare(each.streamed(self._name, self._parts, self.fastest))
        in_time(self._name, self._terms, self.fastest)


def micro_batches_of(step: Step, asked: int | None, terms: PlanConstraints) -> Iterator[int]:
    """Numbers of micro-batches to try, while the next one may be better."""
    if asked is not None:
        yield asked
        return
    yield 1
    if step.pauses or not has_room_for_shared(step, terms):
        return  # `by_halves_of_parts` has those of a step that pauses
    images = images_of(step)
    try:
        for parts in (count for count in MICRO_BATCHES if count <= images):
            split_into_microbatches(step, parts)
            yield parts
    except WholeBatchError:
        return
