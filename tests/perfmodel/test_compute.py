"""Convolutions are priced by arithmetic in steps of 32 channels, the rest by bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel import ComputeModel, Line, Work, convolution_work, pass_work

MODEL = ComputeModel(
    {
        "convolution/tf32/channels_last": Line(1 / 400e12, 2e-5),
        "convolution/tf32/channels_first": Line(1 / 200e12, 2e-5),
        "convolution/float64/channels_first": Line(1 / 30e12, 2e-5),
        "pointwise/float32": Line(1 / 4.2e12, 5e-6),
    }
)


def convolution_flops(n, c_x, c_y, output_sites, window_sites, groups=1):
    return convolution_work(
        "convolution", n=n, c_x=c_x, c_y=c_y, output_sites=output_sites, window_sites=window_sites,
        groups=groups, x_bytes=0, w_bytes=0, y_bytes=0,
    ).flops  # fmt: skip


def test_the_papers_first_problem():
    # Table 4: n=1, 64 -> 64 channels, 8192 x 4096, 3 x 3
    assert convolution_flops(1, 64, 64, 8192 * 4096, 9) == 2 * 64 * 64 * 8192 * 4096 * 9


@given(st.integers(1, 200), st.integers(1, 8))
def test_output_channels_count_in_steps_for_each_group(per_group, groups):
    flops = convolution_flops(2, 5 * groups, per_group * groups, 7, 9, groups)
    stepped = next(step for step in range(32, 1000, 32) if step >= per_group)
    assert flops == 2 * 2 * 7 * 9 * 5 * stepped * groups


def test_convolutions_go_by_flops_and_the_rest_by_bytes():
    work = Work("convolution/tf32/channels_last", flops=4e12, device_bytes=1e15)
    assert MODEL.seconds(work) == pytest.approx(0.01 + 2e-5)
    work = Work("pointwise/float32", flops=1e15, device_bytes=4.2e9)
    assert MODEL.seconds(work) == pytest.approx(1e-3 + 5e-6)


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("pointwise/float32", "pointwise/float32"),
        ("pointwise/float16", "pointwise/float32"),
        ("pointwise", "pointwise/float32"),
        ("convolution/float64/channels_last", "convolution/float64/channels_first"),
        ("convolution/float16/channels_last", "convolution/tf32/channels_last"),
        # equally near: the slower one
        ("convolution/float16/channels_first", "convolution/float64/channels_first"),
        ("convolution/tf32", "convolution/tf32/channels_first"),
    ],
)
def test_an_unknown_key_falls_back_on_the_nearest(key, nearest):
    assert MODEL.nearest_key(key) == nearest


@pytest.mark.parametrize("key", ["pooling/float32", "convolutions/tf32", "point"])
def test_nothing_near_names_the_known_keys(key):
    with pytest.raises(KeyError, match=r"it has some for .*pointwise/float32.*calibrate"):
        MODEL.seconds(Work(key, 1.0, 1.0))


def test_bad_work_and_keys_are_refused():
    with pytest.raises(ValueError, match="flops"):
        Work("pointwise", -1.0, 0.0)
    with pytest.raises(ValueError, match="key"):
        ComputeModel({"": Line(0, 0)})


def test_json_there_and_back():
    assert ComputeModel.from_json(MODEL.to_json()) == MODEL


def test_features_add_their_terms():
    model = ComputeModel({"pointwise/float32": Line(1e-12, 1e-6, {"elements": 2e-12})})
    work = Work("pointwise/float32", 0.0, 1e9, {"elements": 1e9, "taps": 1e9})
    assert model.seconds(work) == pytest.approx(1e-3 + 2e-3 + 1e-6)
    with pytest.raises(ValueError, match="elements"):
        Work("pointwise", 0.0, 1.0, {"elements": -1.0})


def test_what_was_tried_corrects_all_of_its_kind_and_nothing_else():
    tried = Work("pointwise/float32", 0.0, 4.2e9, problem="3x3")
    corrected = MODEL.corrected({tried.kind: 2.0})
    assert corrected.seconds(tried) == pytest.approx(2 * MODEL.seconds(tried))
    larger = Work("pointwise/float32", 0.0, 8.4e9, problem="3x3")
    assert corrected.seconds(larger) == pytest.approx(2 * MODEL.seconds(larger))
    other = Work("pointwise/float32", 0.0, 4.2e9, problem="2x2")
    assert corrected.seconds(other) == MODEL.seconds(other)
    assert corrected.corrected({other.kind: 3.0}).corrections == {tried.kind: 2.0, other.kind: 3.0}
    # they hold for one process: a stored model has none
    assert ComputeModel.from_json(corrected.to_json()) == MODEL


@pytest.mark.parametrize(("extent", "share"), [(1, 0.0), (3, 0.0), (5, 1.0)])
def test_the_arithmetic_of_a_wide_window_counts_apart(extent, share):
    sizes = {"n": 2, "c_x": 6, "c_y": 300, "output_sites": 7, "window_sites": extent**2}
    work = convolution_work(
        "convolution", x_bytes=10, w_bytes=20, y_bytes=30, window_extent=extent, **sizes
    )
    assert work.features["flops_wide_window"] == share * work.flops


def test_the_features_of_a_convolution():
    sizes = {"n": 2, "c_x": 6, "c_y": 300, "output_sites": 7, "window_sites": 9, "groups": 2}
    work = convolution_work("convolution", x_bytes=10, w_bytes=20, y_bytes=30, **sizes)
    sites = 2 * 2 * 7 * 9
    # 3 input and 150 output channels a group: in steps of 32 that is 160, in steps of 128 256
    assert work.flops == sites * 3 * 320
    assert work.features == {
        "flops_y128": sites * 3 * 512,
        "flops_x128": sites * 128 * 320,
        "flops_wide_window": 0.0,
        "x_bytes": 10,
        "y_bytes": 30,
        "sites": 2 * 7,
        "products": 2 * 2,  # of each image and group
        "columns": 2 * 7 * 9 * 6,
        # 1 by 2 tiles in both groups, on 132 multiprocessors
        "wave_flops": 2 * (128 * 128) * 9 * 3 * 132,
    }
    assert work.device_bytes == 60


@pytest.mark.parametrize(
    ("direction", "tiles", "summed"),
    [("forward", 2 * 3 * 2, 9 * 20), ("backward_data", 2 * 3 * 1, 9 * 150)],
)
def test_a_wave_is_as_many_tiles_as_there_are_multiprocessors(direction, tiles, summed):
    """Tiles of 128 sites and 128 channels of the result: 3 by 2 in both groups, for dx 3 by 1."""
    sizes = {"c_x": 40, "c_y": 300, "output_sites": 300, "window_sites": 9, "groups": 2}
    bytes_ = {"x_bytes": 0.0, "w_bytes": 0.0, "y_bytes": 0.0}
    for n in (1, 7, 50, 99):  # images whose sites fill tiles to the end, or nearly so
        work = convolution_work("convolution", n=n, direction=direction, **sizes, **bytes_)
        rows = -(-n * 300 // 128)
        waves = -(-rows * tiles // 3 // 132)
        assert work.features["wave_flops"] == waves * 132 * 2 * 128 * 128 * summed


def test_the_gradient_of_filters_has_no_waves():
    sizes = {"n": 2, "c_x": 6, "c_y": 300, "output_sites": 7, "window_sites": 9}
    work = convolution_work(
        "convolution", x_bytes=1, w_bytes=1, y_bytes=1, direction="backward_filter", **sizes
    )
    assert "wave_flops" not in work.features


def test_the_features_of_a_pass():
    work = pass_work("pointwise/float16/pooling", device_bytes=6, elements=3, taps=27)
    assert (work.flops, work.device_bytes) == (0, 6)
    assert work.features == {"elements": 3, "taps": 27}
    assert pass_work("pointwise", device_bytes=6, elements=3).features == {"elements": 3}
    tanh = pass_work("pointwise", device_bytes=6, elements=3, exponentials=3)
    assert tanh.features == {"elements": 3, "exponentials": 3}


def test_what_a_cache_does_not_hold_of_a_pass_is_a_feature_of_its_own():
    held, beyond = (
        pass_work("pointwise", device_bytes=size, elements=3) for size in (2**25, 2**26)
    )
    assert "uncached_bytes" not in held.features
    assert beyond.features["uncached_bytes"] == 2**26 - 48 * 2**20


def test_a_plain_key_stands_in_for_its_parts_before_a_sibling_does():
    model = ComputeModel({"pointwise/float32": Line(1, 0), "pointwise/float32/pooling": Line(9, 0)})
    assert model.nearest_key("pointwise/float32/softmax") == "pointwise/float32"


def test_what_was_tried_stands_for_its_family_until_more_is_known():
    tried = Work("pointwise/float32", 0.0, 4.2e9, problem="3x3; 64 to 64")
    cut = Work("pointwise/float32", 0.0, 4.2e9, problem="3x3; 32 to 64")
    corrected = MODEL.corrected({tried.kind: 0.5, tried.family: 2.0})
    assert corrected.seconds(tried) == pytest.approx(MODEL.seconds(tried) / 2)
    assert corrected.seconds(cut) == pytest.approx(MODEL.seconds(cut) * 2)


def test_what_launching_takes_is_by_line_and_by_problem():
    model = ComputeModel(
        {"convolution/tf32": Line(1e-12, 0.0), "pointwise": Line(1e-12, 0.0)},
        launching={"convolution/tf32": 4e-5},
    )
    work = Work("convolution/tf32/channels_last", flops=1.0, device_bytes=1.0, problem="3x3")
    passed = Work("pointwise", flops=0.0, device_bytes=1.0)
    assert model.launching_seconds(work, 1e-5) == 4e-5  # of the line that stands in for it
    assert model.launching_seconds(passed, 1e-5) == 1e-5  # nothing is known
    tried = model.corrected({work.kind: 2.0}, {work.kind: 9e-5})
    assert tried.launching_seconds(work, 1e-5) == 9e-5
    assert ComputeModel.from_json(model.to_json()) == model
    with pytest.raises(ValueError, match="launching"):
        ComputeModel({}, launching={"pointwise": -1.0})


def test_the_nearest_size_that_was_tried_counts():
    """In strict float32 a convolution of 28 x 28 was predicted by the engine of 14 x 14."""

    def work(images, sites):
        features = {"sites": float(images * sites), "products": float(images)}
        return Work("convolution/tf32", 1e6 * images * sites, 0.0, features, "3x3; 512 to 512")

    small, large = work(64, 196), work(64, 784)
    for tried in ([(small, 3.0), (large, 0.5)], [(large, 0.5), (small, 3.0)]):
        corrected = MODEL.corrected({small.kind: 7.0}, tried=tried)
        for images in (16, 64, 256):
            for sites, factor in ((196, 3.0), (784, 0.5), (700, 0.5)):
                asked = work(images, sites)
                assert corrected.seconds(asked) == pytest.approx(factor * MODEL.seconds(asked))
    again = MODEL.corrected({}, tried=[(small, 3.0)]).corrected({}, tried=[(large, 0.5)])
    assert again.seconds(large) == pytest.approx(0.5 * MODEL.seconds(large))
    assert again.knows(small)
    assert not MODEL.knows(small)
    assert ComputeModel.from_json(again.to_json()) == MODEL
