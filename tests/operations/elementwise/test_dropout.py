"""Dropout: the numbers are Philox's, the mask the same however a tensor is cut and laid."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ooc_cudnn.operations.core.subcall import SubCall
from ooc_cudnn.operations.elementwise.dropout import AdvanceCall, DropoutCall, philox, random_words
from tests.support.every_split import check_every_split, rounded
from tests.support.forced import Forced, legal_splits

pytest.importorskip("ml_dtypes")
STATE = np.array([0x1234_5678_9ABC, 7], np.int64)

#: Of Random123, kat_vectors: counter, key, words.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
     (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]  # fmt: skip


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_known_words(counter, key, words):
    found = philox(tuple(np.array([word], np.uint64) for word in counter), key)
    assert tuple(int(word[0]) for word in found) == words


def plain_words(indices):
    """The words of indices, one by one: of `STATE`."""
    seed, offset = (int(number) for number in STATE)
    found = []
    for index in np.ravel(indices).tolist():
        block = index // 4
        halves = (block & 0xFFFFFFFF, block >> 32, offset & 0xFFFFFFFF, offset >> 32)
        counter = tuple(np.array([half], np.uint64) for half in halves)
        found.append(int(philox(counter, (seed & 0xFFFFFFFF, seed >> 32))[index % 4][0]))
    return np.array(found, np.uint64).reshape(np.shape(indices))


def test_words_of_runs_are_those_of_their_indices():
    for start, length in itertools.product((0, 1, 3, 6, 2**34 - 2), (1, 2, 5, 8)):
        found = random_words(np.array([start, start + 5]), length, *map(int, STATE))
        for row, first in zip(found, (start, start + 5), strict=True):
            np.testing.assert_array_equal(row, plain_words(np.arange(first, first + length)))


def expected_factors(shape, p, per_channel):
    """From the definition: an index per element, or per channel of an image."""
    indices = np.arange(np.prod(shape[:2] if per_channel else shape))
    kept = plain_words(indices) >= round(p * 2**32)
    grid = (*shape[:2], *[1] * (len(shape) - 2)) if per_channel else shape
    return np.broadcast_to(kept.reshape(grid) / (1 - p), shape)


@pytest.mark.parametrize("per_channel", [False, True], ids=["elements", "channels"])
@pytest.mark.parametrize("shape", [(2, 3, 5, 3), (3, 5, 7), (2, 2, 3, 2, 3), (4, 9)], ids=str)
def test_the_mask_is_the_same_under_every_split(random, shape, per_channel):
    factors = expected_factors(shape, 0.3, per_channel)
    scales = [("float64", 1, 0), ("float32", 1, 1), ("float16", 2, 0.5), ("bfloat16", 1, 0)]
    for dtype, alpha, beta in scales[per_channel::2]:
        (x, x64), (old, _) = (rounded(random.standard_normal(shape), dtype) for _ in range(2))
        call = DropoutCall(shape, 0.3, dtype, per_channel, alpha=alpha, beta=beta)
        check_every_split(call, {"x": x, "state": STATE}, {"y": x64 * factors},
                          old={"y": old} if beta else None, most=20)  # fmt: skip


def test_a_part_of_the_batch_has_its_own_part_of_the_mask():
    factors = expected_factors((6, 2, 5), 0.5, False)
    x = np.ones((3, 2, 5), "f4")
    call = SubCall.of_images(DropoutCall((6, 2, 5), 0.5, "float32"), (2, 5))
    for split in legal_splits(call):
        y = np.full_like(x, np.nan)
        Forced(call, {"x": x, "state": STATE, "y": y}).run(split)
        np.testing.assert_array_equal(y, factors[2:5])


@pytest.mark.parametrize("p", [0.1, 0.5, 1.0])
def test_how_much_is_dropped(p):
    x, y = np.ones((10, 20, 500)), np.empty((10, 20, 500))
    Forced(DropoutCall(x.shape, p, "float64"), {"x": x, "state": STATE, "y": y}).run()
    assert abs((y == 0).mean() - p) < 0.005
    if p < 1:
        assert set(np.unique(y)) == {0, 1 / (1 - p)}


def test_nan_is_not_dropped():
    x, y = np.full((1, 1, 100), np.nan), np.zeros((1, 1, 100))
    Forced(DropoutCall(x.shape, 0.5, "float64"), {"x": x, "state": STATE, "y": y}).run()
    assert np.isnan(y).all()


def test_the_next_offset():
    state = STATE.copy()
    Forced(AdvanceCall(), {"state": state}).run()
    assert state.tolist() == [STATE[0], STATE[1] + 1]
