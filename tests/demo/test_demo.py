import dataclasses

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.demo import run as demo
from ooc_cudnn.demo.check import PATCH_SIDE, PATCHES, Problem, check_patches, reference
from ooc_cudnn.demo.photograph import (
    DIRECTIONS,
    enlarge,
    enlarged_size,
    filter_bank,
    photograph,
)
from ooc_cudnn.demo.pictures import shrink
from ooc_cudnn.errors import VerificationError

pytest.importorskip("matplotlib")

MEGAPIXELS = 0.2


@pytest.fixture
def on_host():
    with ooc_cudnn.settings(device="host", machine="host"):
        yield


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder, said = tmp_path_factory.mktemp("demo"), []
    with ooc_cudnn.settings(device="host", machine="host"):
        result = demo.run_demo(
            megapixels=MEGAPIXELS, output=folder / "new", keep=True, say=said.append
        )
    return result, folder / "new", "\n".join(said)


def test_the_limit_is_a_tenth_of_the_data_and_respected(ran):
    result, _, _ = ran
    assert result.limit_bytes <= result.data_bytes // 10
    assert 0 < result.call.peak_device_bytes <= result.limit_bytes
    assert result.call.plan.pieces > 1
    assert result.data_bytes >= 28 * MEGAPIXELS * 1e6 * 0.99


def test_the_report_has_plan_limit_peak_speed_and_comparison(ran):
    result, folder, said = ran
    assert f"{result.call.plan.pieces} pieces" in said
    for words in (
        "peak device memory",
        "GB/s",
        "agree",
        str(folder / "feature_maps.png"),
        "100 %",
    ):
        assert words in said


def test_words_and_timeline_agree_on_whether_streams_overlap(ran):
    result, _, said = ran
    steps = sorted(result.call.steps, key=lambda step: step.start_seconds)
    computed = [step for step in steps if step.stream == "compute"]
    meanwhile = [
        copy
        for copy in steps
        if copy.stream == "copy_in"
        and any(
            copy.start_seconds < step.stop_seconds and step.start_seconds < copy.stop_seconds
            for step in computed
        )
    ]
    assert result.call.plan.takes_turns == ("streams take turns" in said)
    assert result.call.plan.takes_turns == ("one bar after the other" in said)
    if result.call.plan.takes_turns:
        assert not meanwhile


def test_the_pictures_are_pictures(ran):
    from matplotlib.image import imread

    result, folder, _ = ran
    assert {path.name for path in result.pictures} == {"feature_maps.png", "timeline.png"}
    sheet = imread(folder / "feature_maps.png")[..., :3]
    assert sheet.shape[0] > 1000
    assert sheet.shape[1] > 1500
    assert sheet.std() > 0.1
    assert imread(folder / "timeline.png").std() > 0.05


def test_the_data_that_was_kept_is_the_result(ran):
    result, folder, _ = ran
    x = np.load(folder / "photograph.npy", mmap_mode="r")
    y = np.load(folder / "feature_maps.npy", mmap_mode="r")
    assert x.shape[0:2] == (1, 3)
    assert y.shape[0:2] == (1, 16)
    assert x.nbytes + y.nbytes == result.data_bytes
    torch = pytest.importorskip("torch")
    w, b = filter_bank()
    expected = torch.relu(
        torch.nn.functional.conv2d(
            torch.tensor(x[:]), torch.tensor(w), torch.tensor(b), stride=2, padding=5
        )
    )
    np.testing.assert_allclose(y, expected.numpy(), atol=1e-6)
    assert y.max() > 0.05


def test_nothing_but_the_pictures_is_left(on_host, tmp_path):
    demo.run_demo(megapixels=0.1, memory_limit="200kB", output=tmp_path, say=lambda line: None)
    assert {path.name for path in tmp_path.iterdir()} == {"feature_maps.png", "timeline.png"}


def test_nothing_is_left_after_ctrl_c(on_host, tmp_path, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "convolution_add_activation_forward", interrupted)
    with pytest.raises(KeyboardInterrupt):
        demo.run_demo(megapixels=0.1, output=tmp_path, say=lambda line: None)
    assert not list(tmp_path.iterdir())


def test_a_limit_above_a_tenth_is_refused(tmp_path):
    with pytest.raises(ValueError, match="memory_limit='1GiB' is more than a tenth"):
        demo.run_demo(megapixels=0.2, memory_limit="1GiB", output=tmp_path)


@pytest.mark.parametrize("megapixels", [0, -1, float("nan"), float("inf"), 1e9])
def test_a_senseless_size_is_refused(megapixels, tmp_path):
    with pytest.raises(ValueError, match="megapixels="):
        demo.run_demo(megapixels=megapixels, output=tmp_path)


def test_a_full_disk_is_seen_before_anything_is_written(tmp_path):
    with pytest.raises(OSError, match="free; free some, choose another place with --output"):
        demo.run_demo(megapixels=9e4, output=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def problem_with_result():
    source = photograph()
    problem = Problem.of(source, 0.02)
    x = np.empty(problem.x_shape, np.float32)
    enlarge(source, x[0], lambda rows: None)
    with ooc_cudnn.settings(device="host", machine="host"):
        y = ooc_cudnn.convolution_add_activation_forward(x, problem.w, problem.b, **problem.options)
    return problem, x, y


def test_the_comparison_accepts_the_result(problem_with_result):
    problem, x, y = problem_with_result
    values, error = check_patches(problem, x, y)
    assert values == PATCHES * PATCH_SIDE**2 * 16
    assert error < 1e-6


@pytest.mark.parametrize("wrong", [np.nan, 0.5])
def test_the_comparison_finds_one_wrong_value(problem_with_result, wrong):
    problem, x, y = problem_with_result
    y[0, 3, 0, -1] = wrong
    with pytest.raises(VerificationError, match="rows 0:16"):
        check_patches(problem, x, y)


@pytest.mark.parametrize("dilation", [1, 3])
def test_the_reference_spreads_the_taps(dilation):
    torch = pytest.importorskip("torch")
    problem = Problem.of(photograph(), 0.02)
    problem = dataclasses.replace(problem, dilation=dilation, padding=5 * dilation)
    x = np.random.default_rng(0).random(problem.x_shape)
    expected = torch.nn.functional.conv2d(
        torch.tensor(x),
        torch.tensor(problem.w.astype(float)),
        torch.tensor(problem.b.astype(float)),
        stride=2,
        padding=problem.padding,
        dilation=dilation,
    ).relu()
    rows, columns = slice(0, 20), slice(40, 60)
    found = reference(problem, x, rows, columns)
    np.testing.assert_allclose(found, expected.numpy()[0, :, rows, columns], atol=1e-12)


def test_the_filters_ignore_flat_colour_and_look_in_all_directions():
    w, b = filter_bank()
    assert w.shape == (2 * DIRECTIONS, 3, 11, 11)
    assert b.shape == (16,)
    np.testing.assert_allclose(w.sum((2, 3)), 0, atol=1e-6)
    np.testing.assert_allclose(np.abs(w).sum((1, 2, 3)), 1, rtol=1e-5)
    # Turned by half a circle, a filter is its negative; its neighbour is another.
    np.testing.assert_allclose(w[:4], -w[4:8], atol=1e-7)
    assert np.abs(w[0] - w[1]).max() > 1e-3


def test_enlarging_by_blocks_leaves_no_seams(monkeypatch):
    source = photograph()
    whole = np.empty((3, 1300, 1100), np.float32)
    enlarge(source, whole, lambda rows: None)
    monkeypatch.setattr("ooc_cudnn.demo.photograph.BLOCK_PIXELS", 1100 * 7)
    blocks, told = np.full_like(whole, np.nan), []
    enlarge(source, blocks, told.append)
    np.testing.assert_allclose(blocks, whole, atol=1e-4)
    assert told[-1] == 1300
    assert len(told) > 100


def test_the_size_keeps_the_proportions():
    height, width = enlarged_size(600, 512, 100)
    assert height * width >= 100e6
    assert height / width == pytest.approx(600 / 512, rel=1e-3)


def test_shrinking_reads_blocks_of_rows(monkeypatch):
    monkeypatch.setattr("ooc_cudnn.demo.pictures._BLOCK_ELEMENTS", 64)
    source = np.random.default_rng(0).random((2, 33, 22), np.float32)
    found = shrink(source, 7)
    expected = source[:, :33, :21].reshape(2, 11, 3, 7, 3).mean((2, 4))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert shrink(source, 100).shape == source.shape
