"""Any spatial axis may be the one that is cut: the planner chooses, and errors name what works."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn import PlanInfeasibleError, TensorSpec
from ooc_cudnn.call_planner.planner import make_plan
from ooc_cudnn.functions.call.plan_api import plan_request
from ooc_cudnn.operations import Activation, Convolution, Pooling
from tests.support.sampling import number

torch = pytest.importorskip("torch")

WINDOW = TensorSpec((32, 32, 3, 3, 3), placement="device")


def plan(function, memory_limit, **arguments):
    return ooc_cudnn.plan(function, machine="h200", memory_limit=memory_limit, **arguments)


def test_a_volume_of_large_planes_is_cut_along_them():
    """Cut along the first axis, channels would have to be cut too: x would be read three times."""
    x = TensorSpec((1, 32, 64, 4096, 4096))
    found = plan("convolution_forward", "16GiB", x=x, w=WINDOW, padding=1)
    assert found.row_axis in (3, 4)
    assert found.bytes_in < 1.1 * x.nbytes
    request = plan_request(
        "convolution_forward", machine="h200", memory_limit="16GiB", x=x, w=WINDOW, padding=1
    )
    first = make_plan(replace(request, chain=request.chain.along(2)))
    assert found.seconds < 0.5 * first.seconds


@pytest.mark.parametrize(
    ("x", "w"),
    [((1, 64, 16, 16384, 16384), (64, 64, 3, 3, 3)), ((1, 1, 4, 2**31), (1, 1, 3, 3))],
    ids=["planes of 2**28", "rows of 2**31"],
)
def test_planes_and_rows_beyond_one_piece_have_a_plan(x, w):
    found = plan("convolution_forward", "16GiB", x=TensorSpec(x), w=TensorSpec(w), padding=1)
    assert found.row_axis > 2
    assert plan("activation_forward", "16GiB", x=TensorSpec(x)).seconds < 1.1 * found.seconds


def test_an_error_says_that_no_limit_would_do():
    with pytest.raises(
        PlanInfeasibleError, match="whatever the memory limit: its smallest"
    ) as caught:
        plan("softmax_forward", "16GiB", x=TensorSpec((1, 2**31, 4, 2)))
    assert caught.value.smallest_bytes is None


def test_where_the_first_axis_is_as_good_it_is_the_one():
    x, w = TensorSpec((512, 64, 256, 256)), TensorSpec((64, 64, 3, 3), placement="device")
    assert plan("convolution_forward", "2GiB", x=x, w=w, padding=1).row_axis == 2


def test_a_plan_says_which_axis_it_cuts_and_survives_json():
    x = TensorSpec((1, 32, 64, 4096, 4096))
    found = plan("convolution_forward", "16GiB", x=x, w=WINDOW, padding=1)
    assert f"hY is axis {found.row_axis}" in found.explain()
    assert type(found).from_json(found.to_json()) == found


# What runs ------------------------------------------------------------------------------------

CASES = {
    "convolution": lambda x, w: ooc_cudnn.convolution_forward(x, w, padding=1),
    "chain": lambda x, w: ooc_cudnn.chain_forward(
        x, [Convolution(w, padding=1), Activation("tanh"), Convolution(w, padding=1)]
    ),
    "pooling": lambda x, w: ooc_cudnn.pooling_forward(x, window=3, stride=2, padding=1),
}
REFERENCES = {
    "convolution": lambda x, w: torch.conv3d(x, w, padding=1),
    "chain": lambda x, w: torch.conv3d(torch.tanh(torch.conv3d(x, w, padding=1)), w, padding=1),
    "pooling": lambda x, w: torch.max_pool3d(x, 3, 2, 1),
}


@pytest.mark.parametrize(
    ("name", "limit"), [("convolution", 60_000), ("chain", 60_000), ("pooling", 20_000)]
)
def test_a_few_thick_planes_under_a_limit_below_one_plane(name, limit):
    generator = np.random.default_rng(5)
    x = generator.standard_normal((1, 2, 3, 40, 48))
    w = generator.standard_normal((2, 2, 3, 3, 3))
    expected = REFERENCES[name](torch.from_numpy(x), torch.from_numpy(w)).numpy()
    with ooc_cudnn.settings(device="host", memory_limit=limit), ooc_cudnn.profile() as p:
        actual = CASES[name](x, w)
    assert np.allclose(actual, expected, rtol=1e-12, atol=1e-12)
    (call,) = p.calls
    assert any(part.row_axis > 2 for part in call.plan.parts or (call.plan,))
    assert call.peak_device_bytes <= limit


def drawn(seed):
    """A problem of a few sizes, by its seed: function and arguments for `plan`."""
    draw = random.Random(seed)
    spatial = tuple(draw.choice((1, 3, 8, 17, 40)) for _ in range(draw.choice((1, 2, 3))))
    n, c_x, c_y = draw.choice((1, 2, 5)), draw.choice((1, 3, 8)), draw.choice((1, 4, 9))
    place = lambda: draw.choice(("pinned", "pageable", "device"))  # noqa: E731
    dtype = draw.choice(("float16", "float32", "float64"))
    window = tuple(min(draw.choice((1, 2, 3)), extent) for extent in spatial)
    geometry = {"stride": draw.choice((1, 2)), "padding": draw.choice((0, 1))}
    sites = tuple(
        (extent + 2 * geometry["padding"] - k) // geometry["stride"] + 1
        for extent, k in zip(spatial, window, strict=True)
    )
    x = TensorSpec((n, c_x, *spatial), dtype, place())
    w = TensorSpec((c_y, c_x, *window), dtype, place())
    dy = TensorSpec((n, c_y, *sites), dtype, place())
    return draw.choice([
        ("convolution_forward", {"x": x, "w": w, **geometry}),
        ("convolution_backward_data", {"w": w, "dy": dy, "input_shape": x.shape, **geometry}),
        ("convolution_backward_filter", {"x": x, "dy": dy, "filter_shape": w.shape, **geometry}),
        ("convolution_add_activation_backward", {"x": x, "w": w, "y": dy, "dy": dy, **geometry}),
        ("softmax_forward", {"x": x}),
        ("softmax_forward", {"x": x, "mode": "instance"}),
        ("activation_forward", {"x": x}),
        ("pooling_forward", {"x": x, "window": window}),
        ("chain_forward", {"x": x, "operations": (
            Convolution(w, **geometry), Activation("relu"), Pooling(1))}),
    ])  # fmt: skip


@pytest.mark.parametrize("seed", range(number(40, of=120)))
def test_the_least_that_an_error_names_works(seed):
    function, arguments = drawn(seed)
    with ooc_cudnn.settings(device="host"):
        with pytest.raises(PlanInfeasibleError) as caught:
            ooc_cudnn.plan(function, memory_limit=1, **arguments)
        least = caught.value.smallest_bytes
        found = ooc_cudnn.plan(function, memory_limit=least, **arguments)
        assert found.device_bytes <= least
        ooc_cudnn.plan(function, memory_limit=2 * least, **arguments)


@pytest.mark.parametrize("strides", [(558, 186, 0), (3, 1, 0), (0, 1, 2)])
@pytest.mark.parametrize("mode", ["channel", "instance"])
def test_an_operand_that_is_broadcast_along_its_rows_has_a_plan(strides, mode):
    """The width of its rows is no line in the size of the pieces: it came out as 0."""
    x = TensorSpec((3, 2, 93), "float16", "pinned", strides)
    for memory_limit in (1024, 1500, 2048, 4096, 10**6):
        found = plan("softmax_forward", memory_limit, x=x, mode=mode)
        assert found.device_bytes <= memory_limit
