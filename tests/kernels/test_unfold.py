"""The kernel of unfolded columns, against NumPy's windows, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from ooc_cudnn.devices.kernels.unfold import plan_unfold, unfold_columns
from ooc_cudnn.devices.view import DeviceView
from tests.support.device_operand import Operand, random

CASES = [
    # x, window, stride, zeros before and behind
    ((2, 3, 5, 11), 7, 2, 3, 3),
    ((1, 1, 4, 3, 9), 3, 1, 1, 1),
    ((2, 5, 17), 4, 3, 0, 2),
    ((1, 3, 2, 8), 8, 8, 0, 0),
    ((3, 2, 1, 6), 5, 1, 4, 0),
    ((1, 3, 300, 130), 3, 1, 1, 1),
]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_site_has_the_columns_of_its_window(case, dtype):
    shape, window, stride, before, after = case
    x = Operand(shape, dtype, "last", data=random(shape))
    pad = [(0, 0)] * (len(shape) - 1) + [(before, after)]
    seen = np.lib.stride_tricks.sliding_window_view(np.pad(x.wide, pad), window, -1)
    seen = np.moveaxis(seen[..., ::stride, :], -1, 1).reshape(
        shape[0], window * shape[1], *shape[2:-1], -1
    )
    count = 4 if dtype == "float32" else 8
    channels = -(-seen.shape[1] // count) * count
    y = Operand((shape[0], channels, *seen.shape[2:]), dtype, "last")
    unfold_columns(y.view, x.view, window=window, stride=stride, before=before)
    result = y.result().astype(float)
    assert np.array_equal(result[:, : seen.shape[1]], seen)
    assert not result[:, seen.shape[1] :].any()


def test_what_does_not_fit_is_refused():
    def view(dtype, shape, strides, pointer=4096):
        return DeviceView(pointer, dtype, shape, strides)

    x = view("float16", (1, 3, 4, 8), (96, 1, 24, 3))
    y = view("float16", (1, 16, 4, 6), (384, 1, 96, 16))
    assert plan_unfold(y, x, 3, 1, 0).expression == "unfold_columns<unsigned short, 8>"
    for window, wrong in ((6, y), (3, view("bfloat16", y.shape, y.strides)),
                          (3, view("float16", (1, 16, 5, 6), y.strides))):  # fmt: skip
        with pytest.raises(ValueError, match="does not hold windows"):
            plan_unfold(wrong, x, window, 1, 0)
    with pytest.raises(ValueError, match="not packed channels-last"):
        plan_unfold(y, view("float16", x.shape, (96, 32, 8, 1)), 3, 1, 0)
    with pytest.raises(ValueError, match="no whole packs"):
        plan_unfold(view("float16", (1, 12, 4, 6), (288, 1, 72, 12)), x, 3, 1, 0)
    assert plan_unfold(view("float16", (0, 16, 4, 6), y.strides),
                       view("float16", (0, 3, 4, 8), x.strides), 3, 1, 0) is None  # fmt: skip
