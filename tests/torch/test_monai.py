"""MONAI's models under limits, where it is installed (pip install --no-deps monai)."""

import importlib

import pytest
import torch

from tests.support import sampling
from tests.support.torch_checks import SHARES, check, followed

pytestmark = [
    pytest.mark.usefixtures("fewest_plans"),
    pytest.mark.filterwarnings("ignore:::monai"),
]

VOLUME = {"spatial_dims": 3, "in_channels": 1, "out_channels": 2}
STRIDED = {"kernel_size": [3] * 3, "strides": [1, 2, 2], "upsample_kernel_size": [2, 2]}
MODELS = {
    "UNet": {**VOLUME, "channels": (4, 8, 8), "strides": (2, 2), "num_res_units": 1},
    "SegResNet": {**VOLUME, "init_filters": 8, "blocks_down": (1, 1), "blocks_up": (1,)},
    "DynUNet": {**VOLUME, **STRIDED, "filters": [4, 8, 8], "res_block": True},
}
SHAPE = (2, 1, 16, 16, 16)


def model_of(name):
    pytest.importorskip("monai")
    nets = importlib.import_module("monai.networks.nets")
    torch.manual_seed(0)
    return getattr(nets, name)(**MODELS[name])


@pytest.mark.parametrize("name", list(MODELS)[: sampling.number(1, of=len(MODELS))])
def test_a_model_of_monai_is_the_same_under_limits(name):
    model = model_of(name).double()
    shares = SHARES[: sampling.number(1, of=2)]
    check(model, torch.randn(SHAPE, dtype=torch.float64), shares=shares)


@pytest.mark.every_case
@pytest.mark.parametrize("name", MODELS)
def test_twenty_steps_of_sgd_follow_pytorchs(name):
    followed(model_of(name), torch.randn(SHAPE))
