"""Unified Memory where there is none: refusals, prefetches and pieces, on memory of the host's.

Arrays that stand for managed memory are NumPy's, cuDNN's place is taken by PyTorch or a sum of
products, and every prefetch is written down. What only a card can tell is in `tests/gpu`.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.contenders import managed, unified_memory
from benchmarks.contenders.bands import Band, bands, byte_ranges
from ooc_cudnn.bench import guards
from ooc_cudnn.bench.contender import Unavailable
from ooc_cudnn.bench.contents import Images, filters
from ooc_cudnn.bench.convolution_contender import Operands
from ooc_cudnn.bench.placing import allocate_pinned

GIB = 2**30
CARD = 0


@pytest.fixture
def card(monkeypatch):
    """Sets how much a card has free."""

    def has_free(free):
        runtime = SimpleNamespace(memGetInfo=lambda: (free, 141 * GIB))
        cuda = SimpleNamespace(runtime=runtime)
        monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))

    return has_free


def test_managed_memory_beyond_what_is_free_is_refused(card):
    card(20 * GIB)
    with pytest.raises(Unavailable, match="over-subscription is therefore not exercised"):
        guards.take_managed(17 * GIB)
    guards.take_managed(16 * GIB)
    guards.return_managed(16 * GIB)


def test_managed_memory_that_is_not_on_the_card_yet_counts(card):
    card(40 * GIB)
    guards.take_managed(16 * GIB)
    try:
        card(39 * GIB)
        with pytest.raises(Unavailable, match=r"20\.00 GiB of managed memory"):
            guards.take_managed(21 * GIB - GIB)
        card(40 * GIB)
        with pytest.raises(Unavailable, match=r"x and y would take 30\.00 GiB of device memory"):
            guards.need_device(30 * GIB, "x and y")
        guards.need_device(23 * GIB, "x and y")
    finally:
        guards.return_managed(16 * GIB)
    card(5)
    assert guards.free_device_bytes() == 5


def test_more_cannot_be_returned_than_was_taken():
    with pytest.raises(ValueError, match="1 bytes returned, 0 taken"):
        guards.return_managed(1)


def test_host_memory_is_refused_with_numbers(monkeypatch):
    monkeypatch.setattr(guards, "available_host_bytes", lambda: 10 * GIB)
    guards.need_host(6 * GIB, "x")
    with pytest.raises(Unavailable, match=r"x would take 7\.00 GiB .*; 6\.00 GiB can be had"):
        guards.need_host(7 * GIB, "x")


def test_a_prefetch_hands_the_driver_its_arguments(monkeypatch):
    seen = []
    monkeypatch.setattr(managed, "_prefetch_function", lambda: lambda *given: seen.append(given))
    managed.prefetch(4096, 512, managed.HOST, SimpleNamespace(ptr=7))
    assert seen == [(4096, 512, -1, 7)]
    monkeypatch.setattr(managed, "_prefetch_function", lambda: lambda *given: 101)
    with pytest.raises(RuntimeError, match="512 bytes to 3: CUresult 101"):
        managed.prefetch(4096, 512, 3, SimpleNamespace(ptr=7))


def test_every_page_is_read():
    array = np.zeros((3, 5, 1024), np.float32)
    array[:, :, 0] = 1
    assert managed.read_every_page(array) == 15


@pytest.mark.parametrize(("images", "d_n"), [(1, 1), (5, 2), (4, 4)])
@pytest.mark.parametrize(("height", "d_h"), [(1, 1), (7, 1), (7, 3), (8, 4), (8, 8), (5, 9)])
def test_bands_cover_everything_once_and_gather_what_a_window_reads(images, height, d_n, d_h):
    x = np.random.default_rng(0).standard_normal((images, 2, height, 6))
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (0, 0)))
    y = np.full(x.shape, np.nan)
    for band in bands(images, height, d_n, d_h):
        rows = band.bottom - band.top
        buffer = np.full((band.last - band.first, 2, rows + 2, 6), np.nan)
        band.gather(x, buffer)
        mine = padded[band.first : band.last]
        np.testing.assert_array_equal(buffer, mine[:, :, band.top : band.bottom + 2])
        there = y[band.first : band.last, :, band.top : band.bottom]
        assert np.isnan(there).all()  # nobody wrote it before
        band.scatter(buffer[:, :, 1:-1], y)
    np.testing.assert_array_equal(y, x)


def test_byte_ranges_are_those_of_the_array():
    array = np.arange(3 * 2 * 5 * 4, dtype=np.float32).reshape(3, 2, 5, 4)
    raw = array.tobytes()
    for first, last, top, bottom in [(0, 3, 0, 5), (1, 2, 0, 5), (1, 3, 2, 4), (0, 1, 4, 5)]:
        found = b"".join(
            raw[at : at + size] for at, size in byte_ranges(array.shape, first, last, top, bottom)
        )
        assert found == array[first:last, :, top:bottom].tobytes()


# A card that is not there ------------------------------------------------------------------------


class OnCard(np.ndarray):
    """A NumPy array with the one attribute of CuPy's that is used."""

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data)


class Managed:
    """Managed memory on the host, with its prefetches written down."""

    log: list[tuple[str, int, int, int]] = []  # noqa: RUF012
    alive: set[int] = set()  # noqa: RUF012

    def __init__(self, shape):
        self.host = np.full(shape, np.nan, np.float32)
        self.device = self.host.view(OnCard)
        self.nbytes, self.pointer = self.host.nbytes, self.host.ctypes.data
        Managed.alive.add(id(self))

    def prefetch(self, place, stream):
        Managed.log.append((stream.name, self.pointer, self.nbytes, place))

    def release(self):
        Managed.alive.discard(id(self))


class Stream:
    """Remembers what it was told to wait for."""

    def __init__(self, *, non_blocking):
        assert non_blocking
        self.name, self.ptr = f"stream {id(self)}", id(self)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def record(self, event):
        event.stream = self
        return event

    def wait_event(self, event):
        assert event.stream is not self

    def synchronize(self):
        pass


class Plan:
    """A convolution on raw memory, by its definition."""

    engine, workspace_bytes = "by hand", 0

    def __init__(self, x_shape, w_shape, *, tf32, row_padding=1):
        self.x_shape, self.w_shape, self.row_padding = tuple(x_shape), tuple(w_shape), row_padding
        rows = x_shape[2] - 2 + 2 * row_padding
        self.y_shape = (x_shape[0], w_shape[0], rows, x_shape[3])

    def launch(self, x, w, y):
        assert all(isinstance(pointer, int) for pointer in (x, w, y))
        padding = ((0, 0), (0, 0), (self.row_padding,) * 2, (1, 1))
        padded = np.pad(memory(x, self.x_shape).astype(np.float64), padding)
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
        result = np.einsum("nchwrs,kcrs->nkhw", windows, memory(w, self.w_shape), optimize=True)
        memory(y, self.y_shape)[...] = result


def memory(pointer, shape):
    raw = (ctypes.c_float * math.prod(shape)).from_address(pointer)
    return np.ctypeslib.as_array(raw).reshape(shape)


class Pointwise:
    def __init__(self, y, b):
        self.y, self.b = y, b

    def __call__(self):
        np.maximum(self.y + self.b[:, None, None], 0, out=self.y)


@pytest.fixture
def no_card(monkeypatch):
    cuda = SimpleNamespace(
        Stream=Stream,
        Event=lambda disable_timing: SimpleNamespace(),
        runtime=SimpleNamespace(getDevice=lambda: CARD),
    )
    pool = SimpleNamespace(free_all_blocks=lambda: None)
    cupy = SimpleNamespace(
        cuda=cuda,
        empty=lambda shape, kind: np.full(shape, np.nan, kind).view(OnCard),
        get_default_memory_pool=lambda: pool,
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    for name, stand_in in {
        "ManagedArray": Managed,
        "ConvolutionPlan": Plan,
        "DirectBiasActivation": Pointwise,
        "need_managed_memory": lambda: None,
        "prefetch": lambda *given: Managed.log.append((given[3].name, *given[:3])),
    }.items():
        monkeypatch.setattr(unified_memory, name, stand_in)
    monkeypatch.setattr(Managed, "log", [])
    monkeypatch.setattr(Managed, "alive", set())


@contextlib.contextmanager
def prepared(kind, shape, limit):
    images = Images.of(shape)
    w, b = filters(5, shape[1])
    x, y = images.fill(allocate_pinned(shape)), allocate_pinned((shape[0], 5, *shape[2:]))
    operands = Operands(images, w, b, x, y, limit, tf32=False, cuda=False)
    operands.cuda = True  # its filters are where the plan may see them
    contender = kind(operands)
    contender.prepare()
    try:
        yield contender
    finally:
        contender.release()


FORMS = (
    unified_memory.UnifiedMemory,
    unified_memory.UnifiedMemoryPrefetch,
    unified_memory.UnifiedMemoryPrefetchSplit,
)


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize(
    ("shape", "limit"), [((7, 4, 6, 8), "7kB"), ((1, 4, 48, 24), "15kB"), ((3, 4, 40, 24), "20kB")]
)
def test_each_form_computes_the_same(no_card, kind, shape, limit):
    with prepared(kind, shape, limit) as contender:
        for _ in range(2):
            contender.rest()
            contender.run()
        found = contender.check()
        assert found["ok"], found
        assert contender.details()["managed_bytes"] > 0
        assert len(Managed.alive) == 4
    assert not Managed.alive


@pytest.mark.parametrize(("shape", "limit"), [((7, 4, 6, 8), "7kB"), ((1, 4, 48, 24), "15kB")])
def test_the_split_form_moves_every_byte_of_the_result_once_each_way(no_card, shape, limit):
    with prepared(FORMS[2], shape, limit) as contender:
        contender.rest()
        Managed.log.clear()
        contender.run()
        arrays = contender._arrays
        moved = {
            (name, place): [
                (pointer - array.pointer, nbytes)
                for _, pointer, nbytes, to in Managed.log
                if to == place and 0 <= pointer - array.pointer < array.nbytes
            ]
            for name, array in arrays.items()
            for place in (CARD, managed.HOST)
        }
        assert contender.details()["pieces"] > 1
        for place in (CARD, managed.HOST):
            covered = np.zeros(arrays["y"].nbytes, int)
            for offset, nbytes in moved["y", place]:
                covered[offset : offset + nbytes] += 1
            assert (covered == 1).all()
        covered = np.zeros(arrays["x"].nbytes, int)
        for offset, nbytes in moved["x", CARD]:
            covered[offset : offset + nbytes] += 1
        assert (covered >= 1).all()  # rows of a halo are asked for twice
        assert moved["x", managed.HOST] == []
        streams = {(place == managed.HOST): name for name, _, _, place in Managed.log}
        assert streams[True] != streams[False]


def test_without_a_card_each_form_says_so():
    operands = SimpleNamespace(cuda=False)
    for kind in FORMS:
        contender = kind(operands)
        with pytest.raises(Unavailable, match="NVIDIA GPU"):
            contender.prepare()
        contender.release()


def test_a_band_knows_its_rows():
    assert Band(0, 1, 0, 8).read_rows(8) == (0, 8)
    assert Band(0, 1, 2, 4).read_rows(8) == (1, 5)
