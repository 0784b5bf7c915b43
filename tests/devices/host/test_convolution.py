"""Columns and a matrix product: any shape, in blocks of any size, within its workspace."""

from __future__ import annotations

import os

import numpy as np
import pytest

from ooc_cudnn.devices.host import convolution as host_convolution
from ooc_cudnn.operations.convolution.forward import Convolution
from tests.support import reference

CASES = [
    ((2, 3, 20), (4, 3, 3), {"padding": 2, "stride": 3}),
    ((2, 3, 7, 6), (4, 3, 3, 2), {"padding": ((1, 0), (0, 2)), "dilation": (2, 1)}),
    ((1, 4, 7, 6), (6, 2, 3, 3), {"padding": 1, "groups": 2}),
    ((1, 3, 5, 6), (6, 1, 3, 3), {"padding": 4, "groups": 3}),
    ((1, 2, 5, 4, 3), (2, 2, 2, 2, 2), {"padding": 1, "stride": (1, 2, 1)}),
    ((1, 1, 3, 3), (1, 1, 1, 1), {"padding": ((9, 0), 0), "stride": 4}),
]


@pytest.mark.parametrize("worth", [1, 10**7], ids=["every core", "one thread"])
@pytest.mark.parametrize("block_bytes", [1, 64, 300, 2000, 2**21])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_blocks_of_any_size(monkeypatch, random, case, block_bytes, worth):
    monkeypatch.setattr(host_convolution, "WORTH_A_WORKER_FLOPS", worth)
    monkeypatch.setattr(host_convolution, "BLOCK_BYTES", block_bytes)
    x_shape, w_shape, geometry = CASES[case]
    x = random.standard_normal(x_shape).astype("f4")
    w = random.standard_normal(w_shape).astype("f4")
    operation = Convolution.of(x_shape, w_shape, **geometry)
    needed = host_convolution.workspace_bytes(operation)
    guard = np.full(needed + 64, 77, "u1")
    y = np.full(operation.output_shape, np.nan, "f4")
    host_convolution.convolve(operation, x, w, y, guard[:needed])
    reference.assert_close(
        y, reference.convolution(x, w, **geometry), reference.bound(x, w, **geometry)
    )
    assert (guard[needed:] == 77).all()


@pytest.mark.parametrize("block_bytes", [64, 2**21])
def test_strided_operands(monkeypatch, random, block_bytes):
    monkeypatch.setattr(host_convolution, "BLOCK_BYTES", block_bytes)
    x = random.standard_normal((9, 7, 3, 2)).astype("f4").transpose(3, 2, 0, 1)
    w = random.standard_normal((3, 3, 3, 4)).astype("f4").transpose(3, 2, 1, 0)[::-1]
    operation = Convolution.of(x.shape, w.shape, padding=1)
    y = np.full((9, 2, 14, 4), np.nan, "f4").transpose(1, 3, 0, 2)[..., ::2]
    host_convolution.convolve(
        operation, x, w, y, np.empty(host_convolution.workspace_bytes(operation), "u1")
    )
    reference.assert_close(
        y, reference.convolution(x, w, padding=1), reference.bound(x, w, padding=1)
    )


def test_float64_and_half_types(random):
    for dtype, wide in (("float64", "f8"), ("float16", "f4")):
        x, w = random.standard_normal((1, 8, 6, 5)), random.standard_normal((4, 8, 3, 3))
        x, w = x.astype(dtype), w.astype(dtype)
        operation = Convolution.of(x.shape, w.shape, dtype=dtype)
        scratch = np.empty(host_convolution.workspace_bytes(operation), "u1")
        y = np.full(operation.output_shape, np.nan, wide)
        host_convolution.convolve(operation, x, w, y, scratch)
        reference.assert_close(y, reference.convolution(x, w), reference.bound(x, w, dtype=dtype))


def test_no_rows_of_x_give_zeros():
    operation = Convolution.of((2, 1, 4, 3), (1, 1, 2, 1), padding=((2, 0), 0)).on_piece(
        2, Convolution.of((2, 1, 4, 3), (1, 1, 2, 1), padding=((2, 0), 0)).input_rows((0, 1)), 1
    )
    assert operation.x_shape[2] == 0
    y = np.full(operation.output_shape, np.nan, "f4")
    host_convolution.convolve(
        operation, np.empty(operation.x_shape, "f4"), np.ones((1, 1, 2, 1), "f4"), y,
        np.empty(host_convolution.workspace_bytes(operation), "u1"),
    )  # fmt: skip
    assert (y == 0).all()


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "groups"),
    [((4096, 4, 14, 14), (16, 4, 3, 3), 1), ((64, 256, 32, 32), (256, 1, 3, 3), 256)],
    ids=["small images", "small groups"],
)
def test_small_products_are_made_by_one_thread(monkeypatch, x_shape, w_shape, groups):
    """However many there are: in Python, threads would wait for each other."""
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    small = Convolution.of(x_shape, w_shape, padding=1, groups=groups)
    assert host_convolution._workers(small) == 1
    large = Convolution.of((8, 64, 128, 128), (64, 64, 3, 3), padding=1)
    assert host_convolution._workers(large) == 8


def test_workspace_stays_near_a_block_for_each_worker():
    operation = Convolution.of((1, 64, 4096, 4096), (64, 64, 3, 3), padding=1)
    needed = host_convolution.workspace_bytes(operation)
    workers = min(os.cpu_count(), host_convolution.MOST_WORKERS)
    assert needed <= workers * host_convolution.BLOCK_BYTES + 4 * 64 * 64 * 9
