"""Captures that fail: arguments that a model does not take; PyTorch says nothing beside."""

import logging
import os
import re
import subprocess
import sys
import traceback

import numpy as np
import pytest
import torch
from torch import nn

import ooc_cudnn.torch as ooc
from tests.support.torch_checks import Of, held, modes

pytestmark = pytest.mark.usefixtures("fewest_plans")

LIMIT = "200KiB"


def model():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 5))


def misshapen(x):
    return x + torch.ones(7)


def checking(x):
    if x.shape[1] != 4:
        raise ValueError(f"images of 4 channels are wanted, not {x.shape[1]}")
    return 2 * x


def looping(x):
    for _ in range(int(x.max())):
        x = 2 * x
    return x


WRONG = {
    "channels": (model(), (2, 5, 8, 8), r"expected input\[2, 5, 8, 8\] to have 3 channels"),
    "axes": (model(), (2, 5), "3D .* or 4D"),
    "size": (model(), (2, 3, 9, 9), "196"),
    "too small": (model(), (2, 3, 2, 2), "Kernel size"),
    "a sum": (Of(misshapen), (2, 3, 8, 8), r"(?s)broadcast.*, in misshapen: return x \+ torch"),
    "its own": (Of(checking), (2, 3, 8, 8), "(?s)images of 4 channels are wanted, not 3.*raise"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_an_input_that_the_model_does_not_take_is_said_to_be_one(wrong):
    made, shape, why = WRONG[wrong]
    said = f"{type(made).__name__} does not take this input, float32 "
    calls = (
        lambda: ooc.limit(made, LIMIT)(torch.ones(shape)),
        lambda: ooc.infer(made.eval(), np.ones(shape, "float32"), memory_limit=LIMIT),
        lambda: ooc.plan(made.train(), shape, memory_limit=LIMIT, machine="h200"),
        lambda: ooc.output_shape(made, shape),
    )
    for call in calls:
        with pytest.raises(ValueError, match=why) as refused:
            call()
        assert str(refused.value).startswith(f"{said}{shape}: ")
        assert len("".join(traceback.format_exception(refused.value)).splitlines()) < 60
    ooc.release(made)


def test_arguments_that_forward_does_not_have_are_named():
    limited, x = ooc.limit(model(), LIMIT), torch.ones(2, 3, 8, 8)
    with pytest.raises(TypeError, match=r"does not take this input.*2 positional arguments but 3"):
        limited(x, x)
    with pytest.raises(TypeError, match=r"does not take this input.*keyword argument 'mask'"):
        limited(x, mask=x)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16])
def test_of_stored_images_it_is_said_how_they_are_given(dtype):
    x, made = torch.ones(2, 3, 8, 8, dtype=dtype), model()
    for call in (ooc.limit(made, LIMIT), lambda x: ooc.infer(made.eval(), x)):
        with pytest.raises(TypeError, match=r"should be the same\. .* give scale=1 / 255"):
            call(x)
    assert ooc.limit(made, LIMIT, scale=1 / 255)(x).shape == (2, 5)
    with pytest.raises(TypeError, match=r"float64 .*be the same\. The model is of float32: give x"):
        ooc.limit(made, LIMIT)(x.double())


def test_of_labels_in_bytes_it_is_said_what_they_are():
    step = ooc.with_loss(model(), nn.CrossEntropyLoss(), LIMIT)
    with pytest.raises(TypeError, match=r"Labels are int64: take target\.long\(\)"):
        step(torch.ones(2, 3, 8, 8), torch.zeros(2, dtype=torch.uint8))


@pytest.fixture
def logged():
    """What PyTorch's loggers hand on."""
    found = []
    handler = logging.Handler()
    handler.emit = found.append
    loggers = [
        logging.getLogger(f"torch.{name}")
        for name in ("_subclasses.fake_tensor", "fx.experimental.symbolic_shapes", "_dynamo")
    ]
    for logger in loggers:
        logger.addHandler(handler)
    yield found
    for logger in loggers:
        logger.removeHandler(handler)


@pytest.mark.parametrize("function", [misshapen, looping], ids=lambda each: each.__name__)
def test_pytorch_neither_logs_nor_prints_what_is_raised(function, logged, capsys, monkeypatch):
    monkeypatch.delenv("TORCH_LOGS", raising=False)
    with pytest.raises((ValueError, TypeError), match=rf"in {function.__name__}: "):
        ooc.limit(Of(function), LIMIT)(torch.ones(2, 3, 8, 8))
    assert (logged, capsys.readouterr().err) == ([], "")


@pytest.mark.every_case
def test_who_asks_for_pytorchs_logs_has_them():
    """In a process of its own: PyTorch reads what was asked as it is imported."""
    code = (
        "import torch, ooc_cudnn, ooc_cudnn.torch as ooc\n"
        "ooc_cudnn.settings(device='host', machine='host', progress=False)\n"
        "ooc.limit(torch.nn.Conv2d(3, 2, 1), '1MiB')(torch.ones(1, 3, 2, 2))\n"
    )
    found = {}
    for asked in ("", "graph_code"):
        environment = {name: each for name, each in os.environ.items() if name != "TORCH_LOGS"}
        environment |= {"TORCH_LOGS": asked} if asked else {}
        command = [sys.executable, "-c", code]
        ran = subprocess.run(
            command, env=environment, stderr=subprocess.PIPE, text=True, check=True
        )
        found[asked] = ran.stderr
    assert "def forward(" not in found[""]
    assert "def forward(" in found["graph_code"]


def test_what_prints_in_forward_is_refused_with_its_line():
    """It printed at the first call alone. TorchDynamo traces no `print`."""

    def printing(x):
        print("here")
        return 2 * x

    model, in_force = ooc.limit(Of(printing), LIMIT), modes()
    with pytest.raises(ooc.UnsupportedModelError, match=r"(?s)print.*in printing: print\("):
        model(torch.ones(2, 3, 8, 8))
    assert modes() == in_force


class Held(nn.Module):
    """A model that says `no`, behind a layer and an attribute that it changes."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.calls = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), 0

    def forward(self, x):
        self.calls += 1
        y = self.norm(self.conv(x))
        if x.shape[-1] == 7:
            raise ValueError("no images of 7")
        return y


@pytest.mark.parametrize("before", [False, True], ids=["first", "captured before"])
def test_a_model_that_raises_stays_as_it_was(before):
    """Its own attributes, too: what it raises is found on a copy."""
    model = ooc.limit(Held(), LIMIT)
    if before:
        model(torch.ones(2, 3, 8, 8))
    kept, state = held(model), {name: each.clone() for name, each in model.state_dict().items()}
    in_force = modes()
    for _ in range(2):
        with pytest.raises(ValueError, match=r"(?s)not take this input.*no images of 7.*raise"):
            model(torch.ones(2, 3, 8, 7))
        assert modes() == in_force
        assert held(model) == kept
        assert all(torch.equal(each, state[name]) for name, each in model.state_dict().items())
    assert model(torch.ones(2, 3, 8, 8)).shape == (2, 4, 8, 8)
    assert model.calls == kept[".calls"] + 1


def test_an_error_of_a_model_that_cannot_be_copied_is_dynamos():
    """Nothing of it is swallowed, and the line is said."""

    class Alone(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)

        def __deepcopy__(self, memo):
            raise RuntimeError("there is one of these")

        def forward(self, x):
            return self.conv(x) + torch.ones(7)

    model, in_force = ooc.limit(Alone(), LIMIT), modes()
    with pytest.raises(ooc.UnsupportedModelError, match=r"(?s)Alone cannot be.*in forward: .*ones"):
        model(torch.ones(2, 3, 8, 8))
    assert modes() == in_force


def test_a_loss_that_looks_at_a_variance_is_to_be_written_out():
    model = Of(lambda x: nn.functional.gaussian_nll_loss(x, x.detach(), x.square() + 1))
    with pytest.raises(
        ooc.UnsupportedModelError, match=r"(?s)write it out, 0\.5 \* .*, in <lambda"
    ):
        ooc.limit(model, LIMIT)(torch.ones(2, 3, 8, 8))


def kept_gradient(x):
    y = x * 2
    y.retain_grad()
    return y * 3


def noting(x):
    y, noted = x * 2, FOUND
    y.register_hook(lambda gradient: noted.append(gradient))
    return y * 3


def noting_function(x):
    return Noting.apply(x * 2)


def printing(x):
    print("here")
    return x * 2


def hooking(x):
    hook = LAYER.register_forward_hook(lambda layer, given, made: made * 2)
    y = LAYER(x)
    hook.remove()
    return y


LAYER = nn.ReLU()


def of_a_mask(x):
    y = x * 2
    y[y > 0] = y[y > 0].flip(0)
    return y


def viewing(x):
    """In eager the result is contiguous; for TorchDynamo it has strides of its input."""
    return nn.functional.batch_norm(x.mT, None, None, training=True).view(-1)


class Noting(torch.autograd.Function):
    """Notes gradients outside."""

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        FOUND.append(gradient)
        return gradient


FOUND = []


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (kept_gradient, "retain_grad(), and a plan keeps no such gradient: limit the parts before"),
        (noting, "a hook of a tensor changes something outside"),
        (noting, "return the gradient and do no more; note y.detach() in forward"),
        (noting_function, "backward of an autograd.Function changes something outside"),
        (printing, "write `if not torch.compiler.is_compiling():` before it"),
        (hooking, "register it once, before the model is limited"),
        (viewing, "write reshape, or contiguous() before the view"),
        (of_a_mask, "depends on data: write torch.where(mask, v, y) for y[mask] = v, or take it"),
    ],
)
def test_what_is_refused_has_a_remedy_of_its_own(function, said):
    model = ooc.limit(Of(function), LIMIT)
    with pytest.raises(ooc.UnsupportedModelError, match=re.escape(said)):
        model(torch.randn(2, 3, 6, 7).requires_grad_())


def test_a_backward_hook_of_a_layer_is_refused_with_the_hook_to_write():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    model[0].register_full_backward_hook(lambda *_: None)
    said = r"0 \(Conv2d\): in forward write y\.register_hook\(lambda gradient: \.\.\.\) on its out"
    with pytest.raises(ooc.UnsupportedModelError, match=said):
        ooc.limit(model, LIMIT)(torch.randn(2, 3, 6, 7))
