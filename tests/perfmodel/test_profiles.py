"""Profiles of cards that nobody here has hold what their sources say, and what follows from it."""

import pytest

from perfmodel import Slowdown, convolution_work, shipped

GIB = 2**30
LAYOUTS = ("channels_first", "channels_last")


def rate(line):
    """Work a second, without what each launch or copy costs."""
    return 1 / line.alpha


@pytest.mark.parametrize(
    ("name", "device_bytes"), [("p100", 16 * GIB), ("titanx", 12 * GIB), ("p40", 24 * GIB)]
)
def test_the_memory_is_the_cards(name, device_bytes):
    assert shipped(name).device_bytes == device_bytes


@pytest.mark.parametrize(
    ("name", "gflops"), [("p100", 7629), ("titanx", 7000 * 0.82), ("p40", 11800 * 0.82)]
)
def test_the_arithmetic_is_what_cudnn_reaches(name, gflops):
    for layout in LAYOUTS:
        line = shipped(name).compute.lines[f"convolution/float32/{layout}"]
        assert rate(line) == pytest.approx(gflops * 1e9, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "copy_in", "copy_out"),
    [("p100", 9.31, 9.31), ("titanx", 12.8, 12.8), ("p40", 11.0, 12.0)],
)
def test_the_link_is_as_published(name, copy_in, copy_out):
    transfer = shipped(name).transfer
    assert rate(transfer.copy_in["pinned"]) == pytest.approx(copy_in * 1e9, rel=1e-3)
    assert rate(transfer.copy_out["pinned"]) == pytest.approx(copy_out * 1e9, rel=1e-3)


def test_the_p100s_link_moves_table_4_in_its_time():
    # n=512 images of 64 x 256 x 256 floats each way, at 2681 GFLOPS
    sites = 512 * 256 * 256
    seconds = 2 * 64 * 64 * 9 * sites / 2681e9
    transfer = shipped("p100").transfer
    assert transfer.slowdown("pinned", "pinned") == Slowdown(1.0, 1.0)
    for line in (transfer.copy_in["pinned"], transfer.copy_out["pinned"]):
        assert line.alpha * 4 * 64 * sites == pytest.approx(seconds, rel=1e-4)


@pytest.mark.parametrize(
    ("channels", "least", "most"), [(64, 4320e9, 4340e9), (1024, 7590e9, 7629e9)]
)
def test_the_p100_is_slow_where_channels_are_few(channels, least, most):
    sites = 1024 * 1024
    work = convolution_work(
        "convolution/float32/channels_first", n=1, c_x=channels, c_y=channels, output_sites=sites,
        window_sites=9, x_bytes=0, w_bytes=0, y_bytes=0,
    )  # fmt: skip
    seconds = shipped("p100").compute.seconds(work)
    assert least < 2 * channels**2 * 9 * sites / seconds < most


@pytest.mark.parametrize("name", ["p100", "titanx", "p40"])
def test_what_the_cards_lack_is_no_faster_than_float32(name):
    lines = shipped(name).compute.lines
    for layout in LAYOUTS:
        single = lines[f"convolution/float32/{layout}"]
        for kind in ("tf32", "float16", "bfloat16"):
            assert lines[f"convolution/{kind}/{layout}"] == single
        double = lines[f"convolution/float64/{layout}"]
        expected = 2 if name == "p100" else 32
        assert double.alpha / single.alpha == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "bandwidth"), [("p100", 732e9), ("titanx", 336e9), ("p40", 346e9)]
)
def test_pointwise_functions_stay_below_the_memorys_bandwidth(name, bandwidth):
    line = shipped(name).compute.lines["pointwise/float32"]
    assert 0.6 * bandwidth < rate(line) < bandwidth


@pytest.mark.parametrize("name", ["p100", "titanx", "p40"])
def test_the_note_says_that_nothing_was_measured(name):
    note = shipped(name).identity["note"]
    assert "Not measured" in note
    assert "Assumed" in note
