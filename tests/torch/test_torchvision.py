"""torchvision's models under limits: outputs, every gradient and buffers as PyTorch has them."""

import pytest
import torch
from torch import nn

from tests.support import sampling
from tests.support.torch_checks import SHARES, TOLERANCE, check, followed
from tests.support.torchvision_models import made
from tests.support.torchvision_relatives import RELATIVES

pytestmark = pytest.mark.usefixtures("fewest_plans")

#: Of an input that is small, but for which each model has sites left at its end.
IMAGE = (2, 3, 64, 64)
FULL = {
    "resnet50": (IMAGE, {}),
    "video.r3d_18": ((2, 3, 4, 32, 32), {}),
    "googlenet": (IMAGE, {"init_weights": False}),  # drawing them takes 20 s
    "convnext_tiny": ((2, 3, 32, 32), {"stochastic_depth_prob": 0.0}),
    "mobilenet_v3_large": (IMAGE, {}),
    "efficientnet_b0": (IMAGE, {"stochastic_depth_prob": 0.0}),
    "segmentation.deeplabv3_resnet50": (IMAGE, {"weights_backbone": None, "aux_loss": True}),
    "densenet121": (IMAGE, {}),
    "vgg16": ((2, 3, 32, 32), {"init_weights": False}),
}
#: In `make test` smaller ones stand for them.
NAMES = [*list(FULL)[: sampling.number(0, of=len(FULL))], *RELATIVES]
TRAINED = [*RELATIVES, *FULL]
#: PyTorch's slope of hardsigmoid is 1 / 6 as float32 has it, in float64, too: 3e-8 off.
LOOSER = {"mobilenet": 1e-8, "mobilenet_v3_large": 1e-8}


def model_of(name):
    """A model without what draws, and the shape of its input."""
    torch.manual_seed(0)
    if name in RELATIVES:
        return RELATIVES[name]()
    shape, options = FULL[name]
    model = made(name, **options)
    for each in model.modules():
        if isinstance(each, nn.Dropout):
            each.p = 0.0
    return model, shape


@pytest.mark.parametrize("name", NAMES)
def test_a_model_of_torchvision_is_the_same_under_limits(name):
    model, shape = model_of(name)
    x = torch.randn(shape, dtype=torch.float64)
    # of few sites a plan for little memory takes longest
    shares = SHARES if sampling.EVERY else SHARES[:1]
    check(model.double(), x, shares=shares, tolerance=LOOSER.get(name, TOLERANCE))


@pytest.mark.every_case
@pytest.mark.parametrize("name", TRAINED)
def test_twenty_steps_of_sgd_follow_pytorchs(name):
    model, shape = model_of(name)
    followed(model, torch.randn(shape))
