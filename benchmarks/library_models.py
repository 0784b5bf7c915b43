"""Models of torchvision, MONAI, timm and diffusers at real size, and tiny twins of them.

Each function imports its library: what is not installed is an ImportError where it is called.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

Make = Callable[[], nn.Module]
_declared: list[torch.library.Library] = []


def torchvision_models(name: str = "") -> Any:
    """Import `torchvision.models`, or a module of it.

    Its compiled operators are not needed: where its library was built for another PyTorch, they are
    declared, since imports ask for them.
    """
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        found = find_spec("torchvision")
        assert found is not None, "it was imported"
        _declare_operators(Path(str(found.origin)).parent / "_meta_registrations.py")
    return importlib.import_module(f"torchvision.models{name and '.'}{name}")


def _declare_operators(registrations: Path) -> None:
    library = torch.library.Library("torchvision", "DEF")
    _declared.append(library)  # as long as it lives
    names = re.findall(r'(?:register_meta\(|register_fake\()"(?:torchvision::)?(\w+)"',
                       registrations.read_text())  # fmt: skip
    for name in dict.fromkeys(names):
        library.define(f"{name}(Tensor x) -> Tensor")


def of_torchvision(name: str, **options: Any) -> Make:
    """torchvision's model of that name, without weights."""
    module, _, function = name.rpartition(".")
    return lambda: getattr(torchvision_models(module), function)(weights=None, **options)


def made_by(module: str, function: str, *given: Any, **options: Any) -> Make:
    """What a function of a library, or a class, makes; torchvision comes first where it is used."""

    def make() -> nn.Module:
        if not module.startswith("monai"):
            torchvision_models()
        model: nn.Module = getattr(importlib.import_module(module), function)(*given, **options)
        return model

    return make


#: MONAI's network of a name, timm's model (options in place of those that it has), diffusers'.
of_monai = partial(made_by, "monai.networks.nets")
of_timm = partial(made_by, "timm", "create_model")
of_diffusers = partial(made_by, "diffusers.models")


# torchvision ------------------------------------------------------------------------------------


def tiny_vgg() -> nn.Module:
    layers = torchvision_models("vgg").make_layers([8, "M", 8, 8, "M"], batch_norm=True)
    head = nn.Linear(392, 8), nn.ReLU(True), nn.Linear(8, 3)
    return nn.Sequential(layers, nn.AdaptiveAvgPool2d(7), nn.Flatten(), *head)


def tiny_mobilenet() -> nn.Module:
    found = torchvision_models("mobilenetv3")
    blocks = [
        found.InvertedResidualConfig(8, 3, 8, 8, False, "RE", 1, 1, 1),
        found.InvertedResidualConfig(8, 5, 16, 16, True, "HS", 2, 1, 1),
    ]
    return found.MobileNetV3(blocks, last_channel=24, num_classes=3)


def tiny_shufflenet() -> nn.Module:
    return torchvision_models("shufflenetv2").ShuffleNetV2([2, 1, 1], [8, 8, 16, 16, 16], 3)


def tiny_inception() -> nn.Module:
    """Inception v3's blocks, one of each kind with reductions, thin."""
    found = torchvision_models("inception")
    conv = found.BasicConv2d
    return nn.Sequential(
        conv(3, 8, kernel_size=3, stride=2), found.InceptionA(8, 8), found.InceptionB(232),
        conv(712, 16, kernel_size=1), found.InceptionC(16, 8),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(768, 3),
    )  # fmt: skip


def tiny_swin_v2() -> nn.Module:
    found = torchvision_models("swin_transformer")
    return found.SwinTransformer(
        [4, 4], 8, [2], [2], [4, 4], num_classes=3,
        block=found.SwinTransformerBlockV2, downsample_layer=found.PatchMergingV2,
    )  # fmt: skip


def tiny_maxvit() -> nn.Module:
    return torchvision_models("maxvit").MaxVit(
        (32, 32), 8, 4, [8, 16], [1, 1], 4, 0.0, num_classes=3
    )


def tiny_s3d() -> nn.Module:
    """S3D's first layers and two of its inception blocks."""
    found = torchvision_models("video.s3d")
    norm = partial(nn.BatchNorm3d, eps=1e-3, momentum=1e-3)
    return nn.Sequential(
        found.TemporalSeparableConv(3, 8, 7, 2, 3, norm),
        nn.MaxPool3d((1, 3, 3), (1, 2, 2), (0, 1, 1)),
        found.SepInceptionBlock3D(8, 4, 4, 8, 2, 4, 4, norm),
        found.SepInceptionBlock3D(20, 8, 4, 8, 2, 4, 4, norm),
        nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(24, 3),
    )  # fmt: skip


def tiny_swin_3d() -> nn.Module:
    found = torchvision_models("video.swin_transformer")
    return found.SwinTransformer3d([2, 4, 4], 8, [2], [2], [2, 4, 4], num_classes=3)


def tiny_mvit() -> nn.Module:
    found = torchvision_models("video.mvit")
    setting = partial(found.MSBlockConfig, kernel_q=[3, 3, 3], kernel_kv=[3, 3, 3])
    blocks = [
        setting(1, 8, 8, stride_q=[1, 1, 1], stride_kv=[1, 2, 2]),
        setting(2, 8, 16, stride_q=[1, 2, 2], stride_kv=[1, 1, 1]),
    ]
    return found.MViT(
        (32, 32), 4, blocks, residual_pool=True, residual_with_cls_embed=False,
        rel_pos_embed=True, proj_after_attn=True, dropout=0.0, num_classes=3,
    )  # fmt: skip


def _pyramids() -> Any:
    torchvision_models()
    return importlib.import_module("torchvision.models.detection.backbone_utils")


def pyramid() -> nn.Module:
    """ResNet-50 with a feature pyramid, as detectors have it; its batch norms train."""
    return _pyramids().resnet_fpn_backbone(
        backbone_name="resnet50", weights=None, norm_layer=nn.BatchNorm2d, trainable_layers=5
    )


def tiny_pyramid() -> nn.Module:
    resnet = torchvision_models("resnet")
    body = resnet.ResNet(resnet.BasicBlock, [1, 1, 1, 1], width_per_group=64, num_classes=3)
    return _pyramids().BackboneWithFPN(body, {"layer1": "0", "layer2": "1"}, [64, 128], 8)


# MONAI ------------------------------------------------------------------------------------------

VOLUME = {"spatial_dims": 3, "in_channels": 1, "out_channels": 3}


def monai_with(name: str, method: str, own: Any, *given: Any, **options: Any) -> Make:
    """MONAI's network of a name with a method of ours in place of its own."""

    def make() -> nn.Module:
        kind = getattr(importlib.import_module("monai.networks.nets"), name)
        model: nn.Module = type(name, (kind,), {method: own})(*given, **options)
        return model

    return make


#: Without its check of sizes: NumPy makes it, which no capture follows.
swin_unetr = partial(monai_with, "SwinUNETR", "_check_input_size", lambda self, shape: None)
#: One deviation from the mean: under a limit other noise is drawn.
tiny_autoencoder = monai_with(
    "AutoencoderKL", "sampling", lambda self, mean, sigma: mean + sigma, 3, channels=(4, 8),
    attention_levels=(False, True), num_res_blocks=(1, 1), norm_num_groups=2,
)  # fmt: skip


def _reference_grid(self: Any, field: torch.Tensor, jitter: bool = False, seed: int = 0) -> Any:
    """The sites of a field (n, axes, d, h, w), as MONAI's `Warp` has them without jitter."""
    sites = torch.meshgrid(*map(torch.arange, field.shape[2:]), indexing="ij")
    return torch.stack(sites).to(field).expand_as(field)


def voxelmorph(channels: tuple[int, ...] = (), last: tuple[int, ...] = ()) -> Make:
    """MONAI's VoxelMorph of two volumes: a U-Net of these channels makes what warps the first.

    MONAI's grid asks for the arguments of `torch.meshgrid` and sets `requires_grad`, which no
    capture follows: another one is in its place.
    """

    def make() -> nn.Module:
        warp = importlib.import_module("monai.networks.blocks.warp")
        warp.Warp.get_reference_grid = _reference_grid
        nets = importlib.import_module("monai.networks.nets")
        if not channels:
            return nets.VoxelMorph(spatial_dims=3)
        unet = nets.VoxelMorphUNet(
            spatial_dims=3, in_channels=2, unet_out_channels=channels[-1], channels=channels,
            final_conv_channels=last,
        )  # fmt: skip
        return nets.VoxelMorph(unet, integration_steps=2)

    return make


def tiny_unetr() -> nn.Module:
    """UNETR with two of its twelve blocks of attention: their number is not an argument."""
    kind = importlib.import_module("monai.networks.nets").UNETR
    model = kind(1, 2, 16, feature_size=4, hidden_size=8, mlp_dim=16, num_heads=2)
    for at in range(12):
        if at % 6:
            model.vit.blocks[at] = nn.Identity()
    return model


class TinyHoVerNet(nn.Module):
    """HoVerNet's encoder and decoder blocks; of these alone the channels are free."""

    def __init__(self) -> None:
        super().__init__()
        found = importlib.import_module("monai.networks.nets.hovernet")
        self.first = found._ResidualBlock(2, 4, 4, 8)
        self.second = found._ResidualBlock(1, 8, 8, 16)
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.stem, self.join = nn.Conv2d(3, 4, 7, padding=3), nn.Conv2d(24, 8, 1)
        self.dense = found._DenseLayerDecoder(8, 8, 8)
        self.heads = nn.ModuleList(nn.Conv2d(16, count, 1) for count in (2, 2, 5))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return what each branch says of sites."""
        x = self.first(self.stem(x))
        x = self.dense(self.join(torch.cat([x, self.up(self.second(x))], 1)))
        named = zip(("nuclei", "vectors", "types"), self.heads, strict=True)
        return {name: head(x) for name, head in named}


# timm -------------------------------------------------------------------------------------------


def tiny_mobilenet_v4() -> nn.Module:
    torchvision_models()
    found = importlib.import_module("timm.models.mobilenetv3")
    builder = importlib.import_module("timm.models._efficientnet_builder")
    stages = [["cn_r1_k3_s2_e1_c8"], ["er_r1_k3_s2_e4_c8"],
              ["uir_r1_a3_k5_s2_e4_c16", "uir_r1_a0_k3_s1_e2_c16"]]  # fmt: skip
    blocks = builder.decode_arch_def(stages)
    return found.MobileNetV3(blocks, stem_size=8, num_features=16, num_classes=3)


def tiny_hrnet() -> nn.Module:
    """Two branches, with one block in each, in each of two stages after the first."""
    torchvision_models()
    found = importlib.import_module("timm.models.hrnet")

    def stage(branches: int, block: str) -> dict[str, Any]:
        return {
            "num_modules": 1, "num_branches": branches, "block_type": block,
            "num_blocks": (1,) * branches, "num_channels": (4, 8, 8, 8)[:branches],
            "fuse_method": "SUM",
        }  # fmt: skip

    stages = {f"stage{at}": stage(at, "BASIC" if at > 1 else "BOTTLENECK") for at in (1, 2, 3, 4)}
    return found.HighResolutionNet({"stem_width": 8, **stages}, num_classes=3)
