"""Maps (c, h, w) without an axis of images: what PyTorch makes of them, under a limit."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ooc_cudnn
import ooc_cudnn.torch as ooc
from ooc_cudnn.network.graph.nodes.external import Outside
from ooc_cudnn.torch.lowering.unbatched import add_batch_axis
from ooc_cudnn.torch.tracing.graph import Value
from tests.support.torch_checks import check, close

pytestmark = pytest.mark.usefixtures("fewest_plans")

SHAPE = (3, 12, 10)


@pytest.fixture(autouse=True)
def on_the_host():
    torch.manual_seed(0)
    with ooc_cudnn.settings(device="host", machine="host"):
        yield


def conv(c=3, k=4):
    return nn.Conv2d(c, k, 3, padding=1)


class Of(nn.Module):
    """A function of a map, and of two convolutions."""

    def __init__(self, function):
        super().__init__()
        self.one, self.two, self.function = conv(), conv(4), function
        self.scale = nn.Parameter(torch.rand(4, 1, 1))

    def forward(self, x):
        return self.function(self, x)


def residual(m, x):
    y = m.one(x)
    return y + m.scale * torch.relu(m.two(y)) * 2.0


def several(m, x):
    y = m.one(x)
    return y, torch.cat([y, m.two(y)], 0).mean((1, 2)), F.relu(x[:, 2:])


MODELS = {
    "convolutions": lambda: nn.Sequential(conv(), nn.ReLU(), nn.MaxPool2d(2), conv(4)),
    "a classifier": lambda: nn.Sequential(
        conv(), nn.AdaptiveAvgPool2d(1), nn.Flatten(0), nn.Linear(4, 5)
    ),
    "of parts": lambda: nn.Sequential(nn.AvgPool2d(2), conv(), nn.Unflatten(0, (2, 2))),
    "instance normalization": lambda: nn.Sequential(
        conv(), nn.InstanceNorm2d(4, affine=True), nn.ReLU(), conv(4)
    ),
    "transposed": lambda: nn.Sequential(conv(), nn.ConvTranspose2d(4, 3, 2, 2), nn.PReLU()),
    "paddings": lambda: nn.Sequential(
        nn.ZeroPad2d(1), conv(), nn.ReflectionPad2d(1), conv(4), nn.Softmax(0)
    ),
    "more before the first layer": lambda: nn.Sequential(nn.Hardtanh(-2, 2), nn.Tanh(), conv()),
    "residual": lambda: Of(residual),
    "several results": lambda: Of(several),
    "an axis of its own": lambda: Of(lambda m, x: m.two(m.one(x).unsqueeze(0)).squeeze(0)),
    "a batch of its own": lambda: Of(lambda m, x: m.two(m.one(x[None]))),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_map_without_images_is_computed_as_eager_does(name):
    model, x = MODELS[name]().double(), torch.randn(SHAPE, dtype=torch.float64)
    check(model, x, shares=(1 / 3,))
    with torch.no_grad():
        made, expected = ooc.infer(model.eval(), x, memory_limit="96KiB"), model(x)
        for one, other in zip(*[y if isinstance(y, tuple) else (y,) for y in (made, expected)],
                              strict=True):  # fmt: skip
            close(one, other, "inferred")


@pytest.mark.parametrize(("layer", "shape"), [
    (nn.Conv1d(3, 4, 3), (3, 20)), (nn.Conv3d(3, 4, 3), (3, 6, 7, 5)),
    (nn.MaxPool3d(2), (3, 6, 7, 5)), (nn.Linear(6, 4), (6,)),
], ids=str)  # fmt: skip
def test_lines_volumes_and_vectors_too(layer, shape):
    check(nn.Sequential(layer, nn.ReLU()).double(), torch.randn(shape, dtype=torch.float64))


def test_layers_of_it_are_in_the_network():
    """PyTorch computes none of them: their memory is planned."""
    model, x = MODELS["residual"]().double(), torch.randn(SHAPE, dtype=torch.float64)
    own = ooc.limit(copy.deepcopy(model), "1MiB")
    close(own(x), model(x), "result")
    found = own.forward.last.lowered
    assert [each.name for each in found.after] == ["squeeze"]  # which costs nothing
    nodes = found.network.graph.nodes_before(found.outputs)
    assert not any(isinstance(each, Outside) for each in nodes)


def test_stored_images_and_results_without_images():
    image = np.random.default_rng(0).integers(-1000, 3000, SHAPE, "int16")
    model = nn.Sequential(conv(), nn.ReLU(), conv(4, 5)).double().eval()
    with torch.no_grad():
        expected = model(torch.from_numpy(image / 1000))
    out = np.empty(tuple(expected.shape))
    assert ooc.infer(model, image, out=out, scale=1 / 1000) is out
    close(torch.from_numpy(out), expected, "result")


def test_what_eager_refuses_is_refused():
    x = torch.randn(SHAPE)
    for layer in (nn.BatchNorm2d(4), nn.GroupNorm(2, 4)):
        model = nn.Sequential(conv(), layer).eval()
        with pytest.raises((RuntimeError, ValueError)):
            model(x)
        with pytest.raises(ValueError, match=r"^Sequential does not take this input"):
            ooc.infer(model, x)


def test_a_graph_of_batches_stays_as_it_is():
    model = ooc.limit(nn.Sequential(conv(), nn.ReLU()), "1MiB")
    model(torch.randn(1, *SHAPE))
    graph = model.forward.last.graph
    assert add_batch_axis(graph) is graph
    assert all(isinstance(each, Value) for each in graph.outputs)


@pytest.mark.parametrize("take", ["first", "mean"])
def test_a_map_may_meet_images(take):
    """What is computed of one image without a batch is added to all."""

    class Meeting(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x):
            y = self.conv(x)
            return y + self.conv(y[0] if take == "first" else y.mean(0)).tanh()

    torch.manual_seed(0)
    eager, x = Meeting().double(), torch.randn(2, 3, 6, 6, dtype=torch.float64)
    with ooc_cudnn.settings(device="host", machine="host", progress=False):
        limited = ooc.limit(copy.deepcopy(eager), "1MiB")
        for model in (eager, limited):
            model(x).square().sum().backward()
        close(limited(x), eager(x), "output")
    for one, other in zip(limited.parameters(), eager.parameters(), strict=True):
        close(one.grad, other.grad, "gradient")
