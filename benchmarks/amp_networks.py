"""The networks that `benchmarks.amp` trains: sizes, what is checkpointed of them, tiny relatives.

Of torchvision where it has them (without dropout and stochastic depth, so that gradients can be
compared), else of `examples.models`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn

from benchmarks.library_models import of_torchvision, torchvision_models
from examples import models


@dataclass(frozen=True)
class Case:
    """A network, its input, and how it is trained.

    Attributes
    ----------
    label : str
    make, tiny : callable
        () -> the model, and its relative for machines without a card.
    shape, checked, tiny_shape : tuple of int
        The input's; where gradients are compared; the relative's.
    classes, tiny_classes : int
        Of a cross entropy; 0 where the model takes times, too, and predicts images.
    blocks : tuple of str
        Names of the classes of modules that are checkpointed.
    limits : tuple of str
        Of ours, where PyTorch cannot run it and its peak has no shares.
    has_sites : bool
        Whether sites have labels, not images.
    is_loss_inside : bool
        Whether the loss is part of our plan (`with_loss`): for outputs that are large themselves.
    """

    label: str
    make: Callable[[], nn.Module]
    tiny: Callable[[], nn.Module]
    shape: tuple[int, ...]
    checked: tuple[int, ...]
    tiny_shape: tuple[int, ...]
    classes: int
    blocks: tuple[str, ...]
    tiny_classes: int = 3
    limits: tuple[str, ...] = ()
    has_sites: bool = False
    is_loss_inside: bool = False

    def __str__(self) -> str:
        return f"{self.label} {'x'.join(map(str, self.shape))}"


def _convnext() -> nn.Module:
    found = torchvision_models("convnext")
    return found.ConvNeXt([found.CNBlockConfig(8, 16, 1), found.CNBlockConfig(16, None, 1)],
                          num_classes=3)  # fmt: skip


def _efficientnet() -> nn.Module:
    found = torchvision_models("efficientnet")
    blocks = [found.FusedMBConvConfig(1, 3, 1, 8, 8, 1), found.MBConvConfig(4, 3, 2, 8, 16, 1)]
    return found.EfficientNet(blocks, 0.0, num_classes=3, last_channel=24)


def _deeplab() -> nn.Module:
    found = torchvision_models("segmentation.deeplabv3")
    backbone = models.ResNet50(3, 1 / 8, (1, 1, 1, 1))
    kept = found.IntermediateLayerGetter(backbone, {"layer4": "out"})
    return found.DeepLabV3(kept, found.DeepLabHead(backbone.fc.in_features, 3, (1, 2, 3)))


def _video() -> nn.Module:
    found = torchvision_models("video.resnet")
    return found.VideoResNet(
        found.BasicBlock, [found.Conv3DSimple] * 4, [1] * 4, found.BasicStem, num_classes=3
    )


def _regnet() -> nn.Module:
    found = torchvision_models("regnet")
    widths = found.BlockParams.from_init_params(2, 8, 8, 2, 4, se_ratio=0.25)
    return found.RegNet(widths, num_classes=3, stem_width=8)


IMAGE, TINY = (8, 3, 224, 224), (2, 3, 32, 32)
CASES = {
    "resnet50": Case(
        "ResNet-50", models.ResNet50, lambda: models.ResNet50(3, 1 / 8, (1, 1, 1, 1)),
        (768, 3, 224, 224), IMAGE, (2, 3, 64, 64), 1000, ("Bottleneck",),
    ),
    "unet": Case(
        "U-Net", models.unet, lambda: models.unet(2, 1 / 16),
        (8, 3, 1024, 1024), (2, 3, 256, 256), TINY, 2, ("Stage",), 2, has_sites=True,
    ),
    "convnext_t": Case(
        "ConvNeXt-T", of_torchvision("convnext_tiny"), _convnext,
        (256, 3, 224, 224), IMAGE, TINY, 1000, ("CNBlock",),
    ),
    "vit_b16": Case(
        "ViT-B/16", of_torchvision("vit_b_16"),
        lambda: torchvision_models("").VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=3),
        (384, 3, 224, 224), IMAGE, TINY, 1000, ("EncoderBlock",),
    ),
    "swin_t": Case(
        "Swin-T", of_torchvision("swin_t"),
        lambda: torchvision_models("").SwinTransformer([4, 4], 8, [2], [2], [4, 4], num_classes=3),
        (256, 3, 224, 224), IMAGE, TINY, 1000, ("SwinTransformerBlock",),
    ),
    "efficientnet_v2_s": Case(
        "EfficientNetV2-S", of_torchvision("efficientnet_v2_s"), _efficientnet,
        (256, 3, 300, 300), IMAGE, TINY, 1000, ("FusedMBConv", "MBConv"),
    ),
    "deeplabv3": Case(
        "DeepLabV3-R50",
        of_torchvision("segmentation.deeplabv3_resnet50", weights_backbone=None, num_classes=21),
        _deeplab,
        (16, 3, 1024, 1024), (4, 3, 128, 128), (2, 3, 64, 64), 21, ("Bottleneck", "ASPP"),
        has_sites=True,
    ),
    "r3d_18": Case(
        "R3D-18", of_torchvision("video.r3d_18"), _video,
        (32, 3, 16, 112, 112), (4, 3, 16, 112, 112), (2, 3, 4, 32, 32), 400, ("BasicBlock",),
    ),
    "nnunet": Case(
        "nnU-Net's 3-D U-Net", models.dynunet, lambda: models.dynunet(1 / 16),
        (1, 1, 256, 256, 256), (1, 1, 64, 64, 64), (1, 1, 32, 32, 64), 3, ("Stage",),
        has_sites=True,
    ),
    "regnet_y_8gf": Case(
        "RegNetY-8GF", of_torchvision("regnet_y_8gf"), _regnet,
        (256, 3, 224, 224), IMAGE, TINY, 1000, ("ResBottleneckBlock",),
    ),
    "densenet121": Case(
        "DenseNet-121", of_torchvision("densenet121"),
        lambda: torchvision_models("").DenseNet(4, (2, 2), 8, num_classes=3),
        (256, 3, 224, 224), IMAGE, (2, 3, 64, 64), 1000, ("_DenseBlock",),
    ),
    "swin_unetr": Case(
        "SwinUNETR", models.SwinUNETR, lambda: models.SwinUNETR(4, 3, (1, 2), 4),
        (4, 1, 96, 96, 96), (1, 1, 96, 96, 96), (1, 1, 16, 16, 16), 14, ("SwinBlock", "Stage"),
        has_sites=True,
    ),
    "diffusion": Case(
        "diffusion U-Net", models.DiffusionUNet,
        lambda: models.DiffusionUNet(8, (1, 2), 8, 4),
        (64, 3, 64, 64), (4, 3, 64, 64), (2, 3, 16, 16), 0, ("DiffusionBlock",), 0,
    ),
}  # fmt: skip
#: Beyond what PyTorch can run, or nearly so.
CASES |= {
    "nnunet-512": replace(
        CASES["nnunet"], shape=(1, 1, 512, 512, 512), limits=("40GiB",), is_loss_inside=True
    ),
    "unet-8192": replace(
        CASES["unet"], shape=(1, 3, 8192, 8192), limits=("16GiB",), is_loss_inside=True
    ),
    "segresnet-384": Case(
        "SegResNet", models.SegResNet, lambda: models.SegResNet(1),
        (2, 4, 384, 384, 384), (1, 4, 64, 64, 64), (2, 4, 16, 16, 16), 3, ("ResBlock",),
        limits=("24GiB",), has_sites=True, is_loss_inside=True,
    ),
}  # fmt: skip


def made(case: Case, *, is_tiny: bool, place: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A model of a case in training, with the same weights each time; channels last on a card."""
    torch.manual_seed(0)
    model = (case.tiny if is_tiny else case.make)().to(place, dtype).train()
    for each in model.modules():
        if type(each).__name__ in ("Dropout", "StochasticDepth"):
            each.p = 0.0
    order = torch.channels_last if len(case.shape) == 4 else torch.channels_last_3d
    return model.to(memory_format=order) if place == "cuda" else model
