"""Small models under limits: outputs, every gradient and buffers as PyTorch has them."""

import pytest
import torch

from tests.support.sampling import number
from tests.support.torch_checks import SHARES, check
from tests.support.torch_models import MODELS

#: For these all plans are compared; for larger ones that takes minutes.
SMALL = ("squeeze and excite", "classifier")[: number(1, of=2)]
#: In `make test` these have one limit: others are like them.
LIKE_OTHERS = (
    "residual", "U-Net", "U-Net with batch norm", "3-D U-Net", "ConvNeXt", "dense", "classifier"
)[: 7 - number(0, of=7)]  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_the_same_under_limits(name, request):
    make, shape = MODELS[name]
    if name not in SMALL:
        request.getfixturevalue("fewest_plans")
    torch.manual_seed(0)
    model = make().double()
    shares = SHARES[:1] if name in LIKE_OTHERS else SHARES
    limits = check(model, torch.randn(shape, dtype=torch.float64), shares=shares)
    assert limits == sorted(limits, reverse=True)
