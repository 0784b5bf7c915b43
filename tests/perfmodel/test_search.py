"""The ordered search finds what fits, close to the best, with few questions."""

import pickle
from dataclasses import dataclass, replace
from itertools import product
from math import prod, sin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel import (
    Found,
    InfeasibleError,
    PipelineCost,
    Price,
    Slowdown,
    Split,
    closed_form,
    default_candidates,
    exhaustive_search,
    guided_search,
    local_search,
    ordered_search,
)
from perfmodel.problem import AXES
from perfmodel.search_guided import caution

LINK = Slowdown(1.1, 1.1)


def pieces_of(extents, split):
    return {axis: -(-getattr(extents, axis) // getattr(split, axis)) for axis in AXES}


@dataclass
class Convolution:
    """A 3 x 3 convolution on a made-up machine: bytes by ring of two, seconds by closed form."""

    extents: Split
    width: int = 64
    at_most: int = 24
    largest_piece: int = 2**62
    smallest_rows: int = 1
    asked: int = 0

    def candidates(self, axis):
        return default_candidates(getattr(self.extents, axis), self.at_most)

    def price(self, split):
        self.asked += 1
        counts = pieces_of(self.extents, split)
        rows = min(split.h_y + 2, self.extents.h_y)
        x_bytes = 4 * split.n * split.c_x * rows * self.width
        y_bytes = 4 * split.n * split.c_y * split.h_y * self.width
        w_bytes = 4 * 9 * split.c_x * split.c_y
        memory_bytes = 2 * (x_bytes + y_bytes + w_bytes)
        if x_bytes > self.largest_piece:
            return Price(memory_bytes, 0.0, False, "the piece is too large")
        if split.h_y < self.smallest_rows:
            return Price(memory_bytes, 0.0, False, "too few rows")
        loads, leaves = prod(counts.values()), prod(counts.values()) // counts["c_x"]
        copy_in = (x_bytes + w_bytes) / 5e6 + 1e-5
        compute = 18 * split.n * split.c_x * split.c_y * split.h_y * self.width / 1e9 + 2e-5
        copy_out = y_bytes / 5e6 + 1e-5
        cost = PipelineCost(
            0.0,
            loads * copy_in,
            loads * compute,
            leaves * copy_out,
            copy_in,
            compute,
            compute,
            copy_out,
        )
        return Price(memory_bytes, closed_form(cost, LINK))


WHOLE = Convolution(Split(n=16, c_y=32, c_x=32, h_y=64))
EVERYTHING = WHOLE.price(WHOLE.extents).memory_bytes


@given(st.integers(1, 10**7), st.integers(2, 40))
def test_default_candidates_run_from_whole_to_one(extent, at_most):
    sizes = default_candidates(extent, at_most)
    assert sizes[0] == extent
    assert sizes[-1] == 1
    assert list(sizes) == sorted(set(sizes), reverse=True)
    assert len(sizes) <= at_most
    # balanced: no size could shrink and still need as few pieces
    for size in sizes:
        count = -(-extent // size)
        assert size == -(-extent // count)


@given(st.integers(1, 10**7), st.integers(1, 10**7))
def test_default_candidates_up_to_a_size_are_even_pieces_of_the_whole(extent, largest):
    sizes = default_candidates(extent, largest=largest)
    assert sizes == tuple(s for s in sizes if s <= largest)
    assert all(size == -(-extent // -(-extent // size)) for size in sizes)
    # of few pieces, none is left out
    few = [-(-extent // count) for count in (1, 2, 3, 4, 6, 8, 12, 16)]
    least = -(-extent // largest)
    if extent >= 16 and 2 * least <= 16:
        assert {size for size in few if size <= largest} <= set(sizes)


def test_default_candidates_by_example():
    assert default_candidates(1) == (1,)
    assert default_candidates(10) == (10, 5, 4, 3, 2, 1)
    with pytest.raises(ValueError, match="extent is 0"):
        default_candidates(0)
    with pytest.raises(ValueError, match="at_most is 1"):
        default_candidates(8, at_most=1)


# under a hundredth of the data the paper's search stops where neither h_y nor c_x alone improves
@pytest.mark.parametrize(
    ("share", "within"), [(2.0, 1.1), (0.6, 1.1), (0.3, 1.1), (0.1, 1.1), (0.03, 1.15), (0.01, 2.0)]
)
def test_the_ordered_search_fits_and_is_near_the_best(share, within):
    problem = Convolution(WHOLE.extents, at_most=7)
    limit = int(share * EVERYTHING)
    found, best = ordered_search(problem, limit), exhaustive_search(problem, limit)
    assert found.price.memory_bytes <= limit
    assert best.price.seconds <= found.price.seconds <= within * best.price.seconds


@settings(max_examples=40)
@given(
    st.builds(Split, *(st.integers(1, 12) for _ in range(4))),
    st.floats(0.0, 1.2),
    st.integers(50, 20_000),
    st.integers(1, 3),
)
def test_whatever_fits_is_found_and_never_beats_the_exhaustive_best(extents, share, largest, rows):
    problem = Convolution(extents, largest_piece=largest, smallest_rows=rows)
    limit = int(share * problem.price(extents).memory_bytes)
    best, found = (
        outcome(exhaustive_search, problem, limit),
        outcome(ordered_search, problem, limit),
    )
    if isinstance(found, Found):
        assert isinstance(best, Found)
        assert found.price.legal
        assert found.price.memory_bytes <= limit
        assert found.price.seconds >= best.price.seconds * (1 - 1e-8)
    else:
        corner = problem.price(Split(1, 1, 1, 1))
        assert not corner.legal or corner.memory_bytes > limit
        if found.smallest_bytes is not None:
            assert found.smallest_bytes > limit
            assert best_bytes(best) <= found.smallest_bytes


@settings(max_examples=40)
@given(st.builds(Split, *(st.integers(1, 12) for _ in range(4))), st.floats(0.0, 1.2))
def test_the_local_search_ends_where_no_neighbour_is_better(extents, share):
    problem = Convolution(extents)
    limit = int(share * problem.price(extents).memory_bytes)
    best, found = outcome(exhaustive_search, problem, limit), outcome(local_search, problem, limit)
    assert type(found) is type(best)
    if isinstance(found, InfeasibleError):
        assert found.smallest_bytes == best.smallest_bytes
        return
    assert found.price.memory_bytes <= limit
    assert found.price.seconds >= best.price.seconds * (1 - 1e-8)
    for axis in AXES:
        sizes = problem.candidates(axis)
        at = sizes.index(getattr(found.split, axis))
        for neighbour in sizes[max(at - 1, 0) : at + 2]:
            price = problem.price(replace(found.split, **{axis: neighbour}))
            fits = price.memory_bytes <= limit
            assert not fits or price.seconds >= found.price.seconds * (1 - 1e-8)


def test_the_local_search_can_be_told_where_to_start():
    limit = EVERYTHING // 20
    starts = [Split(1, 1, 1, 1), Split(16, 32, 32, 64), Split(1, 32, 32, 4)]
    found = [local_search(WHOLE, limit, start).price for start in starts]
    assert all(price.memory_bytes <= limit for price in found)
    with pytest.raises(ValueError, match="its n must be one of"):
        local_search(WHOLE, limit, Split(5, 32, 32, 64))


@dataclass
class Estimated(Convolution):
    """The same, with estimates that are wrong by up to a fifth, and blind to what is illegal."""

    wrong: float = 0.0

    def promising(self, limit_bytes):
        """Every split that is estimated to fit."""
        found = []
        for sizes in product(*(self.candidates(axis) for axis in AXES)):
            split = Split(**dict(zip(AXES, sizes, strict=True)))
            price = Convolution.price(self, split)
            off = 1 + self.wrong * sin(prod(sizes))
            if price.memory_bytes * off <= limit_bytes:
                found.append((price.seconds * off or 1e-9, split))
        return sorted(found, key=lambda each: each[0] * caution(self.extents, each[1]))


@pytest.mark.parametrize("share", [2.0, 0.6, 0.3, 0.1, 0.03, 0.01])
def test_the_guided_search_finds_the_best_by_few_prices(share):
    limit = int(share * EVERYTHING)
    best = exhaustive_search(Convolution(WHOLE.extents, at_most=7), limit).price.seconds
    for wrong, within in ((0.0, 1.01), (0.05, 1.1), (0.2, 1.4)):
        found = guided_search(Estimated(WHOLE.extents, at_most=7, wrong=wrong), limit)
        assert found.price.memory_bytes <= limit
        assert best * (1 - 1e-8) <= found.price.seconds <= within * best
        assert found.examined <= 40


def test_without_promises_the_guided_search_is_the_ordered_one():
    class Silent(Convolution):
        def promising(self, limit_bytes):
            return ()

    limit = EVERYTHING // 10
    found, ordered = guided_search(Silent(WHOLE.extents), limit), ordered_search(WHOLE, limit)
    assert (found.split, found.price) == (ordered.split, ordered.price)
    with pytest.raises(InfeasibleError):
        guided_search(Silent(WHOLE.extents), 10)


def test_of_equally_fast_splits_the_one_with_fewer_cuts_is_taken():
    whole = Split(4, 4, 4, 4)
    splits = [Split(2, 4, 4, 4), Split(4, 4, 4, 2), Split(4, 2, 4, 4), Split(2, 2, 2, 2)]
    counted = [caution(whole, split) for split in splits]
    assert counted == sorted(counted)
    assert 1 < counted[0] < counted[-1] < 1.01


def outcome(search, problem, limit):
    """Return what is found, or the error that says nothing is."""
    try:
        return search(problem, limit)
    except InfeasibleError as error:
        return error


def best_bytes(best):
    return best.price.memory_bytes if isinstance(best, Found) else best.smallest_bytes


def test_the_first_axis_is_cut_before_the_next_is_touched():
    one_image = WHOLE.price(Split(n=1, c_y=32, c_x=32, h_y=64)).memory_bytes
    found = ordered_search(WHOLE, one_image)
    assert (found.split.n, found.split.h_y) == (1, 64)
    found = ordered_search(WHOLE, one_image, order=("h_y", "n", "c_x", "c_y"))
    assert found.split.n == 16
    assert found.split.h_y < 64


def test_an_axis_left_out_stays_whole():
    found = ordered_search(WHOLE, EVERYTHING // 20, order=("h_y",))
    assert (found.split.n, found.split.c_x, found.split.c_y) == (16, 32, 32)
    with pytest.raises(ValueError, match="order is"):
        ordered_search(WHOLE, EVERYTHING, order=("n", "n"))
    with pytest.raises(ValueError, match="order is"):
        ordered_search(WHOLE, EVERYTHING, order=("w_y",))


def test_each_split_is_priced_once_and_few_are():
    problem = Convolution(Split(n=512, c_y=1024, c_x=1024, h_y=8192))
    found = ordered_search(problem, problem.price(Split(8, 64, 64, 64)).memory_bytes)
    assert found.examined == problem.asked - 1
    assert found.examined < 300


def test_the_alternatives_fit_and_are_ranked():
    limit = EVERYTHING // 10
    found = ordered_search(WHOLE, limit)
    assert 0 < len(found.alternatives) <= 5
    seconds = [price.seconds for _, price in found.alternatives]
    assert seconds == sorted(seconds)
    for split, price in found.alternatives:
        assert split != found.split
        assert price == WHOLE.price(split)
        assert price.memory_bytes <= limit


def test_pieces_too_large_to_be_legal_are_cut_whatever_the_memory():
    problem = Convolution(Split(n=1, c_y=32, c_x=32, h_y=64), largest_piece=100_000)
    found = ordered_search(problem, 10 * EVERYTHING)
    assert found.price.legal
    assert found.split.h_y < 64


@dataclass
class Table:
    """A problem written down by hand."""

    extents: Split
    sizes: dict
    prices: object

    def candidates(self, axis):
        return self.sizes.get(axis, (1,))

    def price(self, split):
        return self.prices(split)


def test_equal_seconds_prefer_the_larger_piece():
    # the last digits differ, as sums of pieces do
    problem = Table(Split(8, 1, 1, 1), {"n": (1, 2, 4, 8)}, lambda s: Price(s.n, 1.0 + 1e-14 * s.n))
    assert ordered_search(problem, 4).split.n == 4
    assert exhaustive_search(problem, 4).split.n == 4


def test_a_dead_end_falls_back_on_the_smallest_pieces():
    # cutting n alone costs memory, so the greedy search keeps it whole and stays above the limit
    def price(split):
        if split.n == 1 and split.h_y == 1:
            return Price(10, 9.0)
        return Price(50 + 10 * (split.n == 1) + 10 * (split.h_y == 1), 1.0)

    problem = Table(Split(4, 1, 1, 4), {"n": (4, 1), "h_y": (4, 1)}, price)
    assert ordered_search(problem, 20).split == Split(1, 1, 1, 1)


def test_the_smallest_legal_split_is_reported():
    smallest = WHOLE.price(Split(1, 1, 1, 1)).memory_bytes
    for search in (ordered_search, exhaustive_search, local_search):
        with pytest.raises(InfeasibleError, match=f"needs {smallest} bytes") as caught:
            search(WHOLE, smallest - 1)
        assert caught.value.smallest_bytes == smallest
        assert search(WHOLE, smallest).split == Split(1, 1, 1, 1)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.limit_bytes, again.smallest_bytes) == (smallest - 1, smallest)


def test_nothing_legal_says_why():
    problem = Table(Split(1, 1, 1, 1), {}, lambda s: Price(1, 0.0, False, "no engine"))
    for search in (ordered_search, exhaustive_search, local_search):
        with pytest.raises(InfeasibleError, match="whatever the limit: no engine") as caught:
            search(problem, 100)
        assert caught.value.smallest_bytes is None


@pytest.mark.parametrize("sizes", [(), (0, 1), (9,)])
def test_candidates_outside_the_extent_are_refused(sizes):
    problem = Table(Split(8, 1, 1, 1), {"n": sizes}, lambda s: Price(1, 1.0))
    with pytest.raises(ValueError, match="candidates of n"):
        ordered_search(problem, 100)


def test_a_price_is_legal_or_has_a_reason():
    with pytest.raises(ValueError, match="has a reason"):
        Price(1, 1.0, False)
    with pytest.raises(ValueError, match="has a reason"):
        Price(1, 1.0, True, "but")
    with pytest.raises(ValueError, match="memory_bytes is -1"):
        Price(-1, 1.0)


def test_found_goes_to_json_and_back():
    found = ordered_search(WHOLE, EVERYTHING // 10)
    assert Found.from_json(found.to_json()) == found
