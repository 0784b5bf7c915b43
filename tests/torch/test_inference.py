"""`infer` on arrays wherever they lie, `output_shape`, and `with_loss`."""

import copy
import gc
import pickle
import weakref

import numpy as np
import pytest
import torch
from torch import nn

import ooc_cudnn.torch as ooc
from ooc_cudnn.torch.capture.capture import Captures
from ooc_cudnn.torch.errors import UnsupportedModelError
from tests.support.torch_checks import close
from tests.support.torch_models import UNet, residual

pytestmark = pytest.mark.usefixtures("fewest_plans")

LIMIT = "300KiB"


@pytest.fixture
def model():
    torch.manual_seed(0)
    return UNet(norm="Batch").double().eval()


def test_a_file_goes_to_a_file(model, tmp_path):
    shape = (1, 2, 64, 64)
    image = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", "float64", shape)
    image[...] = np.random.default_rng(0).standard_normal(shape)
    made = ooc.output_shape(model, shape)
    assert made == (1, 3, 64, 64)
    result = np.lib.format.open_memmap(tmp_path / "y.npy", "w+", "float64", made)
    result[...] = np.nan
    assert ooc.infer(model, image, out=result, memory_limit=LIMIT) is result
    with torch.no_grad():
        expected = model(torch.from_numpy(np.array(image)))
    close(torch.from_numpy(np.array(result)), expected, "result")


@pytest.mark.every_case
def test_without_out_a_tensor_comes_back(model):
    x = torch.randn(1, 2, 32, 32, dtype=torch.float64)
    found = ooc.infer(model, x, memory_limit=LIMIT)
    with torch.no_grad():
        close(found, model(x), "result")
    assert "forward" not in model.__dict__


def test_a_model_that_enables_gradients_is_run_without(model, tmp_path):
    x, forward = torch.randn(1, 2, 32, 32, dtype=torch.float64), model.forward
    with torch.no_grad():
        expected = model(x)
    model.forward = torch.enable_grad()(forward)
    result = np.zeros((1, 3, 32, 32))
    ooc.infer(model, x, out=result, memory_limit=LIMIT)
    close(torch.from_numpy(result), expected, "result")
    assert not ooc.infer(model, x, memory_limit=LIMIT).requires_grad


@pytest.fixture
def captures(monkeypatch):
    """Each capture of a model, as it happens."""
    capture, seen = Captures._capture, []
    monkeypatch.setattr(Captures, "_capture", lambda *of: (seen.append(1), capture(*of))[1])
    return seen


def test_calls_alike_are_captured_once(captures):
    model = nn.Conv2d(2, 3, 3).eval()
    x = torch.randn(1, 2, 9, 9)

    def check(image, limit=LIMIT, expected=model):
        with torch.no_grad():
            close(
                ooc.infer(model, image, memory_limit=limit),
                expected(image),
                "result",
                tolerance=1e-5,
            )

    for _ in range(2):
        check(x)
        check(torch.randn(1, 2, 9, 9))
    with torch.no_grad():
        model.weight *= 2  # weights are read in each call
    check(x)
    assert len(captures) == 1
    for _ in range(2):
        check(x[..., :5])
        check(x, limit="1MiB")
    assert len(captures) == 3
    model.forward = lambda image: image * 2
    check(x, expected=model.forward)
    del model.forward
    model.padding = (1, 1)
    check(x)
    assert len(captures) == 5


def test_what_is_kept_goes_with_the_model_and_not_with_copies(captures):
    model, x = nn.Conv2d(2, 3, 3).eval(), torch.randn(1, 2, 9, 9)
    ooc.infer(model, x, memory_limit=LIMIT)
    for twin in (copy.deepcopy(model), copy.copy(model), pickle.loads(pickle.dumps(model))):
        twin.weight = nn.Parameter(2 * model.weight.detach())
        with torch.no_grad():
            close(ooc.infer(twin, x, memory_limit=LIMIT), twin(x), "result", tolerance=1e-5)
    assert len(captures) == 4
    assert b"ooc_cudnn.torch" not in pickle.dumps(model)
    gone = weakref.ref(model)
    ooc.release(model)
    assert list(vars(model)) == list(vars(nn.Conv2d(2, 3, 3)))
    ooc.infer(model, x, memory_limit=LIMIT)
    captures.clear()
    del model, twin
    gc.collect()
    assert gone() is None


def test_stored_images_cross_as_integers():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            return self.conv(x.to(torch.float32) / 255)

    model, random = Scaled().eval(), np.random.default_rng(0)
    image = random.integers(0, 256, (1, 3, 32, 32), dtype=np.uint8)
    found = ooc.infer(model, image, memory_limit=LIMIT)
    with torch.no_grad():
        close(found, model(torch.from_numpy(image)), "result", tolerance=1e-5)


@pytest.mark.parametrize(
    ("stored", "own"),
    [
        ("uint8", "float32"),
        ("uint16", "float16"),
        ("uint16", "float64"),
        ("int16", "float32"),
        ("int16", "float16"),
        ("int8", "float64"),
    ],
)
def test_stored_images_are_scaled_on_the_card_for_a_model_of_floats(stored, own):
    torch.manual_seed(0)
    model = nn.Conv2d(2, 3, 3).to(getattr(torch, own))
    most = np.iinfo(stored).max
    least = np.iinfo(stored).min or most // 2
    image = np.random.default_rng(0).integers(least, most + 1, (2, 2, 9, 9)).astype(stored)
    image[0, 0, 0, 0] = most  # more than a float16 can be
    plain = torch.from_numpy((image / most).astype(own))
    scale, tolerance = 1 / most, {"float16": 4e-3, "float32": 1e-5, "float64": 1e-11}[own]
    expected = model(plain)
    expected.sum().backward()
    gradient, model.weight.grad = model.weight.grad, None
    found = ooc.infer(model, image, memory_limit=LIMIT, scale=scale)
    close(found, expected.detach(), "inferred", tolerance=tolerance)
    ooc.limit(model, LIMIT, scale=scale, strict=True)  # PyTorch computes nothing of it
    found = model(torch.from_numpy(image))
    close(found, expected, "result", tolerance=tolerance)
    found.sum().backward()
    close(model.weight.grad, gradient, "gradient", tolerance=tolerance)
    lowered = model.forward.last.lowered
    assert [lowered.network.graph.tensors[name].dtype for name in lowered.inputs] == [stored]
    close(model(plain), expected, "of floats", tolerance=tolerance)


def test_a_scale_is_one_finite_number(model):
    with pytest.raises(TypeError, match="scale must be a number, not str"):
        ooc.limit(model, LIMIT, scale="1/255")
    assert "forward" not in vars(model)
    with pytest.raises(ValueError, match="scale must be finite, not inf"):
        ooc.infer(model, np.ones((1, 2, 8, 8), "uint8"), scale=float("inf"))


def test_a_plan_of_stored_images_counts_their_bytes():
    model, stored = nn.Conv2d(2, 3, 3), torch.empty((1, 2, 64, 64), dtype=torch.uint8)
    taken = [
        ooc.plan(model, image, memory_limit="1MiB", machine="h200", scale=1 / 255).bytes_in
        for image in (stored, stored.float())
    ]
    less = taken[1] - taken[0]  # but for a mean and two scales
    assert 3 * stored.numel() - 32 <= less <= 3 * stored.numel()


def test_an_out_that_does_not_fit_is_refused(model):
    x = torch.randn(1, 2, 32, 32, dtype=torch.float64)
    with pytest.raises(
        ValueError, match=r"^out must have shape \(1, 3, 32, 32\), not \(1, 3, 31, 3"
    ):
        ooc.infer(model, x, out=np.empty((1, 3, 31, 32)), memory_limit=LIMIT)
    with pytest.raises(TypeError, match=r"^out must be float64, not float32$"):
        ooc.infer(model, x, out=np.empty((1, 3, 32, 32), "float32"), memory_limit=LIMIT)
    with pytest.raises(ValueError, match=r"^out has a negative stride"):
        ooc.infer(model, x, out=np.empty((1, 3, 32, 32))[:, :, ::-1], memory_limit=LIMIT)


def test_a_loss_is_inferred_in_one_piece(model):
    x, t = (torch.randn(1, channels, 32, 32, dtype=torch.float64) for channels in (2, 3))

    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x, t):
            return nn.functional.mse_loss(self.model(x), t)

    with torch.no_grad():
        close(ooc.infer(Loss().eval(), x, t, memory_limit="1MiB"), Loss()(x, t), "loss")


@pytest.mark.parametrize("shape", [(1, 32, 32), (1, 1, 32, 32)])
def test_an_out_for_labels_is_told_how_they_are_made(model, shape):
    x, out = torch.randn(1, 2, 32, 32, dtype=torch.float64), np.empty(shape, "uint8")
    with pytest.raises(ValueError, match=r'^out must have .* give reduce="argmax"'):
        ooc.infer(model, x, out=out, memory_limit=LIMIT)
    ooc.infer(model, x, out=out, memory_limit=LIMIT, reduce="argmax")
    out = out.reshape(-1)
    with pytest.raises(
        ValueError, match=r"^out must have shape \(1, 32, 32\) or \(1, 1, 32, 32\), n"
    ):
        ooc.infer(model, x, out=out, memory_limit=LIMIT, reduce="argmax")


class Of(nn.Module):
    """A function of the scores of a model."""

    def __init__(self, model, function):
        super().__init__()
        self.model, self.function = model, function

    def forward(self, x):
        return self.function(self.model(x))


RESULTS = {
    "permuted": lambda y: y.permute(0, 2, 3, 1),
    "labels": lambda y: y.argmax(1),
    "sorted": lambda y: torch.sort(y, 1).values,
    "in a dict": lambda y: {"scores": y},
}


@pytest.mark.parametrize("name", RESULTS)
def test_what_is_made_of_the_networks_output_is_what_out_gets(model, name):
    x, made = torch.randn(1, 2, 16, 16, dtype=torch.float64), Of(model, RESULTS[name]).eval()
    with torch.no_grad():
        expected = made(x)
    expected = expected["scores"] if isinstance(expected, dict) else expected
    for out in (torch.full_like(expected, -7), np.empty(expected.shape, str(expected.dtype)[6:])):
        assert ooc.infer(made, x, out=out, memory_limit=LIMIT) is out
        close(torch.as_tensor(out), expected, name)
    if name == "permuted":
        with pytest.raises(ValueError, match=r"^out must have shape \(1, 16, 16, 3\)"):
            ooc.infer(made, x, out=expected.permute(0, 3, 1, 2).contiguous())


class OfTwoMaps(nn.Module):
    """One result, of two outputs of the network."""

    def __init__(self, function):
        super().__init__()
        self.one, self.other = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3)
        self.function = function

    def forward(self, x):
        return self.function(self.one(x), self.other(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: a.mean() + b.mean(),
        lambda a, b: a.sum((1, 2, 3)) + b.amax((1, 2, 3)),
        lambda a, b: torch.stack([a[..., 2:, 2:], b]),
    ],
    ids=["a number", "one of an image", "stacked"],
)
def test_what_is_made_of_two_outputs_is_returned(function):
    x, made = torch.randn(2, 4, 6, 6), OfTwoMaps(function).eval()
    with torch.no_grad():
        expected = made(x)
    torch.testing.assert_close(ooc.infer(made, x, memory_limit="1MiB"), expected)


class Alone(nn.Module):
    """Does one thing, and has no layers."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


#: Of each the network computes nothing.
WITHOUT_A_NETWORK = {
    "the input": lambda x: x,
    "a view": lambda x: x.flatten(2),
    "a part": lambda x: x[:, 1:, ::2],
    "permuted": lambda x: x.permute(0, 2, 3, 1),
    "a copy": lambda x: x.clone(),
    "a constant": lambda x: torch.ones(3),
    "two": lambda x: (x, x[:1]),
}


@pytest.mark.parametrize("name", WITHOUT_A_NETWORK)
def test_what_the_network_has_no_part_in_is_returned(name):
    """It was refused: "no output of the model depends on its inputs"."""
    x, made = torch.randn(2, 3, 6, 6), Alone(WITHOUT_A_NETWORK[name]).eval()
    expected = made(x)
    torch.testing.assert_close(ooc.infer(made, x, memory_limit="1MiB"), expected)
    if name != "two":
        out = np.zeros(expected.shape, "float32")
        assert ooc.infer(made, x.numpy(), out=out, memory_limit="1MiB") is out
        torch.testing.assert_close(torch.from_numpy(out), expected)


@pytest.mark.parametrize("name", WITHOUT_A_NETWORK)
@pytest.mark.parametrize("planned", [ooc.plan, ooc.plan_infer])
def test_a_plan_says_that_there_is_nothing_to_plan(planned, name):
    made = Alone(WITHOUT_A_NETWORK[name]).eval()
    with pytest.raises(UnsupportedModelError, match=r"nothing to plan.*limit and infer run"):
        planned(made, (2, 3, 6, 6), memory_limit="1MiB")


@pytest.mark.parametrize("returned", [3, None])
def test_out_is_refused_where_no_tensor_is_computed(returned):
    """It came back as it was."""
    made = Alone(lambda x: returned).eval()
    assert ooc.infer(made, torch.ones(1, 2, 3, 3)) == returned
    with pytest.raises(TypeError, match="Alone computes no tensor"):
        ooc.infer(made, torch.ones(1, 2, 3, 3), out=np.zeros(3, "float32"))


@pytest.mark.parametrize(
    "around",
    [
        lambda y, x: {"out": y},
        lambda y, x: [y],
        lambda y, x: (y, 3),
        lambda y, x: (y, y),
        lambda y, x: (y, x),
    ],
    ids=["a dict", "a list", "a number beside", "one twice", "the input beside"],
)
def test_infer_returns_one_result_in_what_forward_puts_it_in(around):
    """What was around it, and beside it, was dropped."""
    x, conv = torch.randn(1, 2, 6, 6), nn.Conv2d(2, 3, 3)
    made = Alone(lambda x: around(conv(x), x)).eval()
    with torch.no_grad():
        expected = made(x)
    found = ooc.infer(made, x, memory_limit="1MiB")
    torch.testing.assert_close(found, expected)
    assert type(found) is type(expected)


def test_a_model_in_training_is_refused_and_stays_as_it_is(model):
    x, before = torch.randn(1, 2, 16, 16, dtype=torch.float64), copy.deepcopy(model.state_dict())
    model.train()
    for run in (
        lambda: ooc.infer(model, x, memory_limit=LIMIT),
        lambda: ooc.infer(model, x, memory_limit=LIMIT),  # when it is known
        lambda: ooc.plan_infer(model, x, memory_limit=LIMIT),
    ):
        with pytest.raises(ooc.UnsupportedModelError, match=r"^UNet is in training mode.*eval\(\)"):
            run()
    assert all(torch.equal(before[name], each) for name, each in model.state_dict().items())
    ooc.infer(model.eval(), x, memory_limit=LIMIT)
    with torch.no_grad():  # which are no others in evaluation, or draw there, too
        conv = nn.Conv2d(2, 3, 1).double().train()
        close(ooc.infer(conv, x), conv(x), "a convolution")
        drawn = Of(conv, lambda y: nn.functional.dropout(y, 0.5)).eval()
        assert (ooc.infer(drawn, x) == 0).any()


@pytest.mark.every_case
@pytest.mark.parametrize(
    "loss", [nn.CrossEntropyLoss(label_smoothing=0.1), nn.MSELoss(), nn.BCEWithLogitsLoss()]
)
def test_a_loss_is_in_the_plan(loss):
    torch.manual_seed(0)
    eager = residual().double()
    own = copy.deepcopy(eager)
    x = torch.randn(4, 3, 16, 16, dtype=torch.float64)
    classes = isinstance(loss, nn.CrossEntropyLoss)
    target = torch.arange(4) if classes else torch.rand(4, 5, dtype=torch.float64)
    step = ooc.with_loss(own, loss, LIMIT)
    found, expected = step(x, target), loss(eager(x), target)
    close(found, expected, "loss")
    found.backward()
    expected.backward()
    least = max(float(each.grad.abs().max()) for each in eager.parameters())
    for (name, one), other in zip(own.named_parameters(), eager.parameters(), strict=True):
        close(one.grad, other.grad, name, least)
