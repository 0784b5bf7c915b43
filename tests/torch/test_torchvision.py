"""torchvision's models under a limit: outputs, every gradient and buffers as PyTorch has them."""

import pytest
import torch

from tests.support.torch_checks import TOLERANCE, check
from tests.support.torchvision_models import made

pytestmark = pytest.mark.usefixtures("few_plans")

#: Of an input that is small, but for which each model has a site left at its end.
CASES = {
    "resnet18": ((2, 3, 64, 64), {}),
    "mobilenet_v3_small": ((2, 3, 64, 64), {"dropout": 0.0}),
    "convnext_tiny": ((2, 3, 32, 32), {"stochastic_depth_prob": 0.0}),
    "squeezenet1_1": ((2, 3, 64, 64), {"dropout": 0.0}),
    "video.r3d_18": ((2, 3, 8, 32, 32), {}),
}
#: PyTorch's slope of hardsigmoid is 1 / 6 as float32 has it, in float64, too: 3e-8 off.
LOOSER = {"mobilenet_v3_small": 1e-8}


@pytest.mark.parametrize("name", CASES)
def test_a_model_of_torchvision_is_the_same_under_a_limit(name):
    shape, options = CASES[name]
    torch.manual_seed(0)
    model = made(name, **options).double()
    x, tolerance = torch.randn(shape, dtype=torch.float64), LOOSER.get(name, TOLERANCE)
    check(model, x, shares=(1 / 4,), tolerance=tolerance)
