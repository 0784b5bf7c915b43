"""`infer` on whole images: labels in place of scores, from stored images, in blocks."""

import numpy as np
import pytest
import torch
from torch import nn

import ooc_cudnn
import ooc_cudnn.torch as ooc
from ooc_cudnn.network.tiled import infer
from tests.support.torch_checks import close
from tests.support.torch_models import UNet

pytestmark = pytest.mark.usefixtures("fewest_plans")


@pytest.fixture(autouse=True)
def on_the_host():
    with ooc_cudnn.settings(device="host", machine="host", plan_cache=False):
        yield


class Stored(nn.Module):
    """A segmentation network of stored images."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = UNet(channels=(4, 8), norm="Batch", classes=5)

    def forward(self, x):
        return self.net(x.float() / 255)


class Does(nn.Module):
    """One function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Two(nn.Module):
    """Two results."""

    def forward(self, x):
        return 2 * x, 3 * x


class Cropped(nn.Module):
    """Scores that are cropped last; or parts of the image itself."""

    def __init__(self, *, convolves):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Conv2d(4, 3, 3) if convolves else nn.Identity()

    def forward(self, x):
        return self.layer(x)[:, :, 1:-1, ::2]


def stored(shape, dtype="uint8"):
    """Patches of noise, some brighter."""
    random = np.random.default_rng(0)
    coarse = random.integers(0, 200, (*shape[:2], *(-(-each // 16) for each in shape[2:])))
    fine = np.kron(coarse, np.ones((16, 16), int))[..., : shape[2], : shape[3]]
    return (fine + random.integers(0, 50, shape)).astype(dtype)


@pytest.fixture
def model():
    made = Stored()
    x = torch.from_numpy(stored((4, 2, 64, 64)))
    with torch.no_grad():
        for _ in range(5):  # running statistics that do something
            made(x)
        scores = made.eval()(x)
        made.net.head.bias -= scores.mean((0, 2, 3))  # every class somewhere
    return made


@pytest.fixture
def cut_in_two(monkeypatch):
    """Blocks of half an axis, whatever they take: on the host, links cost nothing."""
    monkeypatch.setattr(infer, "MUCH_HALO", 1e9)
    monkeypatch.setattr(infer, "CUTS", (2,))


def test_labels_go_from_file_to_file_in_blocks(model, tmp_path, monkeypatch, cut_in_two):
    made = []
    run = infer.TiledInference.run
    monkeypatch.setattr(
        infer.TiledInference, "run", lambda self, *args: (made.append(self), run(self, *args))[1]
    )
    image = np.lib.format.open_memmap(tmp_path / "image.npy", "w+", "uint8", (1, 2, 112, 144))
    image[...] = stored(image.shape)
    labels = np.lib.format.open_memmap(tmp_path / "labels.npy", "w+", "uint8", (1, 112, 144))
    labels[...] = 99
    found = ooc.infer(model, image, out=labels, memory_limit="384KiB", reduce="argmax")
    assert found is labels
    with torch.no_grad():
        expected = model(torch.from_numpy(np.array(image).astype("f4"))).argmax(1)
    assert (np.asarray(labels) != expected.numpy()).mean() < 1e-3  # ties but for rounding
    assert len(np.unique(labels)) > 1
    labels[...] = 99
    ooc.infer(model, image, out=labels, memory_limit="384KiB", reduce="argmax")
    assert (np.asarray(labels) != expected.numpy()).mean() < 1e-3
    blocks, again = made
    assert blocks is again  # planned once
    assert len(list(blocks.grid)) == 4
    assert blocks.plan.device_bytes <= 384 * 1024


def test_images_of_two_bytes_are_widened_too(model):
    image = stored((1, 2, 32, 32), "uint16")
    labels = np.empty((1, 1, 32, 32), "int64")  # the axis of classes may be kept
    ooc.infer(model, image, out=labels, memory_limit="64MiB", reduce="argmax")
    with torch.no_grad():
        expected = model(torch.from_numpy(image.astype("f4"))).argmax(1, keepdim=True)
    assert (labels != expected.numpy()).mean() < 1e-2


def test_scores_in_blocks_are_pytorchs(model, cut_in_two):
    x = torch.from_numpy(stored((1, 2, 96, 112))).double() / 255
    found = ooc.infer(model.net.double(), x, memory_limit="768KiB")
    with torch.no_grad():
        close(found, model.net(x), "scores")


def test_a_large_image_is_planned_at_once(model):
    fake = torch.empty((1, 2, 65536, 65536), dtype=torch.uint8, device="meta")
    plan = ooc.plan_infer(model, fake, memory_limit="1GiB", machine="h200", reduce="argmax")
    assert plan.count > 10
    assert plan.device_bytes <= 2**30
    side = plan.block[-1]
    assert (-(-65536 // side)) ** 2 * plan.plan.seconds == pytest.approx(plan.seconds, rel=0.2)
    assert plan.explain().startswith(f"{plan.count} blocks of 1 x 1 x {side} x {side}")


@pytest.mark.parametrize("convolves", [True, False])
def test_labels_of_scores_that_are_cropped_last(convolves):
    model, x = Cropped(convolves=convolves).eval(), torch.randn(2, 4, 20, 19)
    expected = model(x).argmax(1)
    out = np.empty(expected.shape, "int32")
    assert ooc.infer(model, x, out=out, memory_limit="64KiB", reduce="argmax") is out
    assert (torch.from_numpy(out) == expected).all()
    labels = ooc.infer(model, x, memory_limit="64KiB", reduce="argmax")
    assert torch.equal(labels.long(), expected)
    plan = ooc.plan_infer(model, x.shape, memory_limit="64KiB", reduce="argmax", machine="host")
    assert plan.device_bytes <= 2**16


@pytest.mark.parametrize(
    "model",
    [
        nn.Identity(),
        Does(lambda x: x.clone()),
        nn.Sequential(nn.Conv2d(3, 4, 1), nn.LayerNorm([12])),
        nn.Sequential(nn.Conv2d(3, 4, 1), Does(lambda x: x.permute(0, 3, 1, 2))),
    ],
    ids=["the input", "a copy of it", "normalized along rows", "permuted"],
)
def test_labels_of_scores_that_the_network_holds_otherwise(model):
    """They were refused as no map of scores."""
    x = torch.randn(2, 3, 10, 12)
    with torch.no_grad():
        expected = model.eval()(x).argmax(1)
    labels = ooc.infer(model, x, memory_limit="256KiB", reduce="argmax")
    assert torch.equal(labels.long(), expected)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: (x * 2, x * 3), "this model makes 2: return the scores alone"),
        (lambda x: (x * 2).transpose(0, 1), "these scores have the images on axis 1"),
        (lambda x: torch.ones(3), r"\(n, classes, \.\.\.\)$"),
        (lambda x: torch.fft.ifft(torch.fft.fft(x)), "PyTorch makes this one"),
    ],
)
def test_why_no_labels_are_made_of_a_result_is_said(function, why):
    with pytest.raises(TypeError, match=rf"^labels are made of one result.*{why}"):
        ooc.infer(Does(function).eval(), torch.randn(2, 3, 5, 4), reduce="argmax")


def test_where_a_site_sees_the_whole_image_there_is_one_block():
    model = nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.InstanceNorm2d(8), nn.Conv2d(8, 3, 1))
    x = torch.randn(1, 2, 64, 64)
    found = ooc.infer(model.eval(), x, memory_limit="96KiB", reduce="argmax")
    with torch.no_grad():
        assert (found != model(x).argmax(1)).double().mean() < 1e-3
    plan = ooc.plan_infer(model, x.shape, memory_limit="96KiB", machine="host")
    assert plan.count == 1


def test_what_cannot_be_is_said(model):
    x = stored((1, 2, 32, 32))
    with pytest.raises(ValueError, match="reduce must be None or argmax, not 'max'"):
        ooc.infer(model, x, reduce="max")
    with pytest.raises(ValueError, match="shape"):
        ooc.infer(model, x, out=np.empty((1, 32, 31), "uint8"), reduce="argmax")
    with pytest.raises(TypeError, match="labels must be uint8"):
        ooc.infer(model, x, out=np.empty((1, 32, 32), "float32"), reduce="argmax")
    with pytest.raises(TypeError, match="labels are made of one result"):
        ooc.infer(Two(), x.astype("f4"), reduce="argmax")
