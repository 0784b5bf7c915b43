"""`benchmarks.whole`: its cases at a tiny size, what pages show of them, what it copies."""

import json
from importlib.util import find_spec

import pytest

pytest.importorskip("torch")
import torch

from benchmarks import card, whole
from benchmarks.pages import whole as page
from benchmarks.pages.blocks import NOT_MEASURED
from benchmarks.whole_networks import Decoder

pytestmark = pytest.mark.usefixtures("fewest_plans")


def run(case, folder):
    given = ["--quick", "--device", "host", "--output", str(folder), "--case", case]
    assert whole.main(given) == 0
    path = folder / f"whole_{case}.json"
    record = json.loads(path.read_text())
    assert record["verified"]
    assert any("contents" in check for check in record["checks"])
    path.write_text(json.dumps(record | {"quick": False}))  # pages show none of tiny sizes
    return record


def check_table(record, case, folder):
    ways = [name for name in record["measurements"] if name.startswith(("ours", "PyTorch"))]
    lines = page.table(case, folder).splitlines()
    assert len(lines) == 2 + len(ways) > 3
    assert "limit" in "".join(lines)


def test_every_case_is_shown():
    assert set(card.WHOLE) == set(page.CASES) == set(whole.CASES)


@pytest.mark.every_case
@pytest.mark.parametrize("case", whole.CASES)
def test_a_case_is_measured_and_shown(case, tmp_path):
    check_table(run(case, tmp_path), case, tmp_path)


def test_what_does_not_fit_is_a_row_that_says_so(tmp_path, monkeypatch):
    def refuse(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 13 GiB.")

    monkeypatch.setattr(whole, "windowed", refuse)
    record = run("labels", tmp_path)
    assert "13 GiB" in record["measurements"]["PyTorch, windows of 16"]["reason"]
    assert "does not fit" in page.table("labels", tmp_path)


def test_seams_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    record = run("windows", tmp_path)
    check_table(record, "windows", tmp_path)
    slices = page.drawn(tmp_path)
    assert slices == record["measurements"]["pictures"]
    assert len(page.figure_of(slices).axes) == len(slices) + 1
    assert "wrong labels" in page.seams(tmp_path)


def test_without_a_record_pages_say_so(tmp_path):
    assert NOT_MEASURED[1:] in page.table("seismic", tmp_path)
    assert page.drawn(tmp_path) is None


@pytest.mark.parametrize("is_gaussian", [False, True])
@pytest.mark.filterwarnings("ignore:::monai")
def test_windows_are_those_of_monai(is_gaussian):
    inferers = pytest.importorskip("monai.inferers")
    image, model = torch.randn(1, 1, 20, 16, 24), torch.nn.Conv3d(1, 2, 3, padding=1)
    mode = "gaussian" if is_gaussian else "constant"
    theirs = inferers.SlidingWindowInferer(8, overlap=0.4, mode=mode)
    with torch.no_grad():
        expected = theirs(image, model)
    found = whole.windowed(model, image, 8, 0.4, is_gaussian=is_gaussian)
    torch.testing.assert_close(found, expected)


@pytest.mark.filterwarnings("ignore")
def test_the_decoder_is_that_of_diffusers():
    pytest.importorskip("diffusers")
    if find_spec("torchvision"):
        from benchmarks.library_models import torchvision_models

        torchvision_models()
    from diffusers import AutoencoderKL

    theirs = AutoencoderKL(
        up_block_types=("UpDecoderBlock2D",) * 4, block_out_channels=(8, 8, 16, 16),
        down_block_types=("DownEncoderBlock2D",) * 4, layers_per_block=2, norm_num_groups=4,
    ).decoder.eval()  # fmt: skip
    ours = Decoder((8, 8, 16, 16), groups=4)
    ours.load_state_dict(theirs.state_dict())
    latents = torch.randn(1, 4, 8, 12)
    with torch.no_grad():
        torch.testing.assert_close(ours(latents), theirs(latents))


def test_the_real_decoder_has_the_parameters_of_stable_diffusion():
    with torch.device("meta"):
        assert sum(each.numel() for each in Decoder().parameters()) == 49_490_179
