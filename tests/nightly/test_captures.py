"""Models of torchvision, timm and MONAI are captured and lowered, in training; outside CI's time.

Nothing is computed and no weight is made: parameters are on PyTorch's meta device. `make nightly`
runs it; what is not installed is skipped.
"""

import importlib

import pytest
import torch

from ooc_cudnn.torch.calls import calls_of
from ooc_cudnn.torch.capture.stand_ins import fakes_for
from ooc_cudnn.torch.limit import record_call
from ooc_cudnn.torch.options import Options
from tests.support.torchvision_models import made, models

pytestmark = [pytest.mark.nightly, pytest.mark.filterwarnings("ignore")]  # timm and MONAI warn

IMAGE, LARGE, FRAMES = (2, 3, 64, 64), (2, 3, 224, 224), (1, 3, 8, 64, 64)

TORCHVISION = {
    **dict.fromkeys(
        (
            "alexnet", "vgg16", "vgg16_bn", "resnet50", "resnext50_32x4d", "wide_resnet50_2",
            "densenet121", "googlenet", "squeezenet1_1", "mobilenet_v2", "mobilenet_v3_large",
            "shufflenet_v2_x1_0", "mnasnet1_0", "efficientnet_b0", "efficientnet_v2_s",
            "regnet_x_400mf", "regnet_y_400mf", "convnext_tiny", "swin_t", "swin_v2_t",
            "segmentation.fcn_resnet50", "segmentation.deeplabv3_resnet50",
            "segmentation.lraspp_mobilenet_v3_large",
        ),
        IMAGE,
    ),
    **dict.fromkeys(("vit_b_16", "maxvit_t"), LARGE),
    "inception_v3": (2, 3, 299, 299),
    **dict.fromkeys(("video.r3d_18", "video.mc3_18", "video.r2plus1d_18"), FRAMES),
    "video.s3d": (1, 3, 16, 224, 224),
}  # fmt: skip

TIMM = dict.fromkeys(
    (
        "resnet50d", "resnetv2_50", "seresnet50", "ecaresnet26t", "efficientnet_lite0",
        "mobilenetv3_small_100", "convnextv2_atto", "deit_tiny_patch16_224", "mixer_s16_224",
        "poolformer_s12", "ghostnet_100", "hrnet_w18_small", "dla34", "res2net50_26w_4s",
        "regnety_004", "xception41",
    ),
    LARGE,
)  # fmt: skip

VOLUME = {"spatial_dims": 3, "in_channels": 1, "out_channels": 2}
STRIDED = {"kernel_size": [3] * 3, "strides": [1, 2, 2], "upsample_kernel_size": [2, 2]}
MONAI = {
    "UNet": {**VOLUME, "channels": (8, 16, 32), "strides": (2, 2)},
    "BasicUNet": {**VOLUME, "features": (8, 8, 16, 32, 64, 8)},
    "SegResNet": VOLUME,
    "DynUNet": {**VOLUME, **STRIDED},
    "VNet": VOLUME,
    "AttentionUnet": {**VOLUME, "channels": (8, 16, 32), "strides": (2, 2)},
    "DenseNet121": VOLUME,
    "ResNet": {
        "block": "basic", "layers": [1, 1, 1, 1], "block_inplanes": [8, 16, 32, 64],
        "n_input_channels": 1, "num_classes": 2,
    },
    "EfficientNetBN": {"model_name": "efficientnet-b0", "pretrained": False},
}  # fmt: skip


def check(model, shape):
    """Capture and lower a step of training; its gradients are those of the parameters."""
    model = model.train()
    kind, call = record_call(
        model, model.forward, (fakes_for(model, [shape])[0],), {}, Options("64GiB")
    )
    ready, _ = calls_of(model).of(kind, call).find(call)
    assert ready.pausing is not None
    named = {given.value.source for given in ready.lowered.parameters.values()}
    assert named & dict(model.named_parameters(remove_duplicate=False)).keys()
    assert len(ready.lowered.network.wanted) > 1


@pytest.mark.parametrize("name", TORCHVISION)
def test_torchvision(name):
    options = {"weights_backbone": None} if name.startswith("segmentation") else {}
    with torch.device("cpu" if name.startswith("regnet") else "meta"):  # they read what they draw
        model = made(name, **options)
    check(model.to("meta"), TORCHVISION[name])


@pytest.mark.parametrize("name", TIMM)
def test_timm(name):
    models()  # timm imports torchvision
    timm = pytest.importorskip("timm")
    with torch.device("meta"):
        model = timm.create_model(name)
    check(model, TIMM[name])


@pytest.mark.parametrize("name", MONAI)
def test_monai(name):
    pytest.importorskip("monai")
    nets = importlib.import_module("monai.networks.nets")
    with torch.device("meta"):
        model = getattr(nets, name)(**MONAI[name])
    check(model, (2, 3, 64, 64) if name == "EfficientNetBN" else (2, 1, 32, 32, 32))


def test_there_are_enough():
    assert len(TORCHVISION) + len(TIMM) + len(MONAI) >= 45
