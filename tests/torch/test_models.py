"""Small models under limits: outputs, every gradient and buffers as PyTorch has them."""

import pytest
import torch

from tests.support.torch_checks import check
from tests.support.torch_models import MODELS


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_the_same_under_limits(name):
    make, shape = MODELS[name]
    torch.manual_seed(0)
    model = make().double()
    small, least = check(model, torch.randn(shape, dtype=torch.float64))
    assert least <= small
