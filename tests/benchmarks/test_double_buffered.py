"""The best loop by hand: what its pieces cover, in which order lanes work, and that it is right."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest

import ooc_cudnn
from benchmarks.contenders import double_buffered
from benchmarks.contenders.double_buffered import (
    DoubleBufferedCupy,
    DoubleBufferedTorch,
    pieces,
    take_turns,
)
from ooc_cudnn.bench.attempt import reason_of
from ooc_cudnn.bench.contents import Images, filters
from ooc_cudnn.bench.convolution_contender import Operands
from ooc_cudnn.bench.placing import allocate_pinned
from tests.support import numpy_as_cupy


@pytest.mark.parametrize("shape", [(12, 8, 24, 32), (7, 3, 9, 8), (1, 4, 50, 8), (3, 2, 5, 4)])
@pytest.mark.parametrize("piece_bytes", [1, 1000, 2**25])
def test_pieces_cover_every_row_once(shape, piece_bytes):
    covered = np.zeros((shape[0], shape[2]), int)
    found = pieces(shape, piece_bytes)
    for band in found:
        covered[band.first : band.last, band.top : band.bottom] += 1
    assert (covered == 1).all()
    assert len(found) >= 4


def operands(shape, *, channels=5, cuda, pageable=False):
    """x in pinned memory, or in pages, and what else a loop takes."""
    of = Images.of(shape)
    w, b = filters(channels, shape[1])
    make = (lambda s: np.empty(s, np.float32)) if pageable else allocate_pinned
    return Operands(
        images=of, w=w, b=b, x=of.fill(make(shape)), y=make((shape[0], channels, *shape[2:])),
        limit="1MiB", tf32=False, cuda=cuda, pageable=pageable,
    )  # fmt: skip


def bytes_of(shape, images):
    """Of a piece of so many images; of 0, of a part of one."""
    return images * 4 * math.prod(shape[1:]) or 400


@pytest.mark.parametrize("pageable", [False, True])
@pytest.mark.parametrize(
    ("shape", "lanes", "images"),
    [((8, 4, 12, 10), 2, 1), ((9, 4, 12, 10), 3, 2), ((1, 3, 33, 8), 3, 0)],
)
def test_the_loop_in_pytorch_is_right(shape, lanes, images, pageable):
    pytest.importorskip("torch")
    with ooc_cudnn.settings(device="host"):
        given = operands(shape, cuda=False, pageable=pageable)
        loop = DoubleBufferedTorch(given)
        loop.lanes, loop.piece_bytes = lanes, bytes_of(shape, images)
        loop.prepare()
        try:
            found = loop.check()
            assert found["ok"], found
            assert loop.details()["pinned"] == ("buffers" if pageable else "x and y")
        finally:
            loop.release()


def test_a_lane_ends_its_piece_before_it_begins_another_and_all_end_in_order():
    log = []

    class Logged:
        def __init__(self, name):
            self.name = name

        def start(self, band):
            log.append(f"{self.name} starts {band}")

        def finish(self):
            log.append(f"{self.name} ends")

    take_turns([Logged("a"), Logged("b"), Logged("c")], range(4))
    assert log == ["a starts 0", "b starts 1", "c starts 2", "a starts 3",
                   "b ends", "c ends", "a ends"]  # fmt: skip


@pytest.mark.parametrize("pageable", [False, True])
@pytest.mark.parametrize(("shape", "images"), [((9, 4, 12, 10), 2), ((1, 3, 33, 8), 0)])
def test_the_loop_in_cupy_copies_the_right_rows(monkeypatch, shape, images, pageable):
    cupy = numpy_as_cupy.module()
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(double_buffered, "ConvolutionPlan", numpy_as_cupy.Convolution)
    monkeypatch.setattr(double_buffered, "DirectBiasActivation", numpy_as_cupy.BiasActivation)
    with ooc_cudnn.settings(device="host"):
        given = operands(shape, cuda=True, pageable=pageable)
        loop = DoubleBufferedCupy(given)
        loop.piece_bytes = bytes_of(shape, images)
        loop.prepare()
        found = loop.check()
        assert found["ok"], found
        details = loop.details()
        loop.release()
    assert details["engines"] == ["NumPy"]
    # To pinned memory, rows of an image are copied with a pitch, all channels at once.
    form = "1-D" if images or pageable else "2-D"
    assert cupy.cuda.runtime.copies.count((form, 2)) == details["pieces"]
    assert len(cupy.cuda.runtime.copies) == 2 * details["pieces"]


def test_cupys_form_needs_a_card():
    with ooc_cudnn.settings(device="host"):
        given = operands((4, 2, 8, 8), channels=2, cuda=False)
        with pytest.raises(ooc_cudnn.OocError, match="NVIDIA GPU") as raised:
            DoubleBufferedCupy(given).prepare()
    assert "NVIDIA GPU" in str(reason_of(raised.value, baseline=True))
