"""Models of today at the sizes that people use, each with a tiny twin of the same blocks.

`benchmarks.planning_models` plans them without data; tests train their twins. Models come from
torchvision, MONAI, timm and diffusers where these are installed, else from plain definitions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from benchmarks import library_models as library
from benchmarks.amp_networks import CASES
from benchmarks.handmade_models import (
    FNO,
    ConvTasNet,
    Demucs,
    HiFiGAN,
    NAFNet,
    ResEnc,
    SegFormer,
    SwinIR,
    WaveNet,
)
from benchmarks.library_models import of_diffusers, of_monai, of_timm, of_torchvision
from examples.models import SwinUNETR

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Model:
    """A model and the shapes of its arguments, and its tiny twin with those of it.

    Attributes
    ----------
    make, tiny : callable
        () -> the model, with the weights that it draws.
    shapes, tiny_shapes : tuple of tuples of int
        One for each argument, all of the parameters' dtype.
    libraries : tuple of str
        Those that have to be installed.
    """

    make: Callable[[], nn.Module]
    shapes: tuple[Shape, ...]
    tiny: Callable[[], nn.Module]
    tiny_shapes: tuple[Shape, ...]
    libraries: tuple[str, ...] = ()

    @property
    def is_here(self) -> bool:
        """Whether its libraries are installed."""
        return all(find_spec(each) is not None for each in self.libraries)


class _UndrawnWeights(TorchFunctionMode):
    """Leaves weights as they are where a model would draw them: no page of them is touched."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in ("normal_", "uniform_") and args:
            return args[0]
        return func(*args, **(kwargs or {}))


def make_undrawn(model: Model) -> nn.Module:
    """Make a model at real size, in training, whose weights are not drawn: it is captured alone.

    On the CPU, since autocast does nothing on PyTorch's meta device.
    """
    with _UndrawnWeights():
        return model.make().train()


def make_twin(model: Model, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Make a tiny twin in training, with the same weights each time; it drops nothing."""
    torch.manual_seed(0)
    found = model.tiny().to(dtype).train()
    for each in found.modules():
        if (
            isinstance(each, nn.modules.dropout._DropoutNd)
            or type(each).__name__ == "StochasticDepth"
        ):
            each.p = 0.0
        elif type(each).__name__ == "DropPath":
            each.drop_prob = 0.0
    return found


def _batch(n: int, side: int = 224, channels: int = 3) -> tuple[Shape, ...]:
    return ((n, channels, side, side),)


TINY = _batch(2, 32)


def _of_amp(name: str, libraries: tuple[str, ...] = ()) -> Model:
    """A network that `benchmarks.amp` trains, too."""
    case = CASES[name]
    times = () if case.classes else ((case.shape[0],),)
    tiny_times = () if case.classes else ((case.tiny_shape[0],),)
    return Model(
        case.make, (case.shape, *times), case.tiny, (case.tiny_shape, *tiny_times), libraries,
    )  # fmt: skip


_TV, _MONAI, _EINOPS = ("torchvision",), ("monai",), ("monai", "einops")
_TIMM, _DIFFUSERS = ("torchvision", "timm"), ("torchvision", "diffusers")

# of `benchmarks.amp`: by hand, and torchvision's
_BY_HAND = ("resnet50", "unet", "nnunet", "swin_unetr", "diffusion")
_OF_TORCHVISION = (
    "convnext_t", "vit_b16", "swin_t", "efficientnet_v2_s", "deeplabv3", "r3d_18", "regnet_y_8gf",
    "densenet121",
)  # fmt: skip
MODELS = {name: _of_amp(name) for name in _BY_HAND}
MODELS["swin_unetr"] = replace(
    MODELS["swin_unetr"], tiny=lambda: SwinUNETR(4, 2, (1,), 4), tiny_shapes=((1, 1, 8, 8, 8),)
)
MODELS |= {name: _of_amp(name, _TV) for name in _OF_TORCHVISION}

# torchvision
MODELS |= {
    "vgg16_bn": Model(of_torchvision("vgg16_bn"), _batch(256), library.tiny_vgg, TINY, _TV),
    "resnet152": Model(
        of_torchvision("resnet152"), _batch(256),
        lambda: CASES["resnet50"].tiny(), (CASES["resnet50"].tiny_shape,), _TV,
    ),
    "mobilenet_v3_large": Model(
        of_torchvision("mobilenet_v3_large"), _batch(512), library.tiny_mobilenet, TINY, _TV
    ),
    "shufflenet_v2": Model(
        of_torchvision("shufflenet_v2_x1_0"), _batch(512), library.tiny_shufflenet, TINY, _TV
    ),
    "inception_v3": Model(
        of_torchvision("inception_v3", init_weights=False), _batch(128, 299),
        library.tiny_inception, TINY, _TV,
    ),
    "swin_v2_t": Model(
        of_torchvision("swin_v2_t"), _batch(128, 256), library.tiny_swin_v2, TINY, _TV
    ),
    "maxvit_t": Model(of_torchvision("maxvit_t"), _batch(128), library.tiny_maxvit, TINY, _TV),
    "s3d": Model(
        of_torchvision("video.s3d"), ((32, 3, 16, 224, 224),), library.tiny_s3d,
        ((2, 3, 8, 32, 32),), _TV,
    ),
    "swin3d_t": Model(
        of_torchvision("video.swin3d_t"), ((8, 3, 16, 224, 224),), library.tiny_swin_3d,
        ((2, 3, 4, 16, 16),), _TV,
    ),
    "mvit_v2_s": Model(
        of_torchvision("video.mvit_v2_s"), ((8, 3, 16, 224, 224),), library.tiny_mvit,
        ((2, 3, 4, 32, 32),), _TV,
    ),
    "fpn_resnet50": Model(library.pyramid, _batch(16, 800), library.tiny_pyramid, TINY, _TV),
}  # fmt: skip

# MONAI
_KL = {"spatial_dims": 3, "in_channels": 1, "out_channels": 1, "latent_channels": 3}
MODELS |= {
    "segresnet_ds": Model(
        of_monai("SegResNetDS", **library.VOLUME, init_filters=32, dsdepth=4),
        ((1, 1, 256, 256, 256),),
        of_monai("SegResNetDS", **library.VOLUME, init_filters=4, blocks_down=(1, 1), dsdepth=2),
        ((2, 1, 16, 16, 16),), _MONAI,
    ),
    "monai_swin_unetr": Model(
        library.swin_unetr(in_channels=1, out_channels=14, feature_size=48),
        ((2, 1, 96, 96, 96),),
        library.swin_unetr(in_channels=1, out_channels=2, feature_size=12, depths=(1, 1, 1, 1),
                           num_heads=(1, 1, 2, 2), window_size=2),
        ((1, 1, 64, 32, 32),), _EINOPS,
    ),
    "unetr": Model(
        of_monai("UNETR", in_channels=1, out_channels=14, img_size=96), ((2, 1, 96, 96, 96),),
        library.tiny_unetr,
        ((1, 1, 16, 16, 16),), _EINOPS,
    ),
    "attention_unet": Model(
        of_monai("AttentionUnet", **library.VOLUME, channels=(32, 64, 128, 256, 512),
                 strides=(2, 2, 2, 2)),
        ((2, 1, 128, 128, 128),),
        of_monai("AttentionUnet", **library.VOLUME, channels=(4, 8, 8), strides=(2, 2)),
        ((2, 1, 16, 16, 16),), _MONAI,
    ),
    "monai_autoencoder": Model(
        of_monai("AutoencoderKL", **_KL, channels=(32, 64, 64),
                 attention_levels=(False, False, False), num_res_blocks=2, norm_num_groups=16,
                 with_encoder_nonlocal_attn=False, with_decoder_nonlocal_attn=False),
        ((1, 1, 192, 192, 192),),
        library.tiny_autoencoder,
        ((1, 1, 8, 8, 8),), _EINOPS,
    ),
    "hovernet": Model(
        of_monai("HoVerNet", mode="fast", out_classes=5), _batch(16, 256),
        library.TinyHoVerNet, TINY, _MONAI,
    ),
    "voxelmorph": Model(
        library.voxelmorph(), ((1, 1, 192, 192, 192),) * 2,
        library.voxelmorph((4, 4, 4, 4, 4, 4), (4, 4)), ((1, 1, 16, 16, 16),) * 2, _MONAI,
    ),
    "spade": Model(
        of_monai("SPADENet", spatial_dims=2, in_channels=1, out_channels=3, label_nc=20,
                 input_shape=[512, 512], channels=[16, 32, 64, 128, 256], is_vae=False, z_dim=256),
        _batch(8, 512, 20),
        of_monai("SPADENet", spatial_dims=2, in_channels=1, out_channels=3, label_nc=3,
                 input_shape=[16, 16], channels=[4, 8], is_vae=False, z_dim=4,
                 spade_intermediate_channels=8),
        _batch(2, 16, 3), _MONAI,
    ),
    "mednext": Model(
        of_monai("MedNeXt", **library.VOLUME, kernel_size=3), ((2, 1, 128, 128, 128),),
        of_monai("MedNeXt", **library.VOLUME, kernel_size=3, init_filters=4, blocks_down=(1, 1),
                 blocks_up=(1, 1), blocks_bottleneck=1, encoder_expansion_ratio=(2, 2),
                 decoder_expansion_ratio=(2, 2)),
        ((2, 1, 16, 16, 16),), _MONAI,
    ),
    "unet_plus_plus": Model(
        of_monai("BasicUNetPlusPlus", **library.VOLUME), ((2, 1, 96, 96, 96),),
        of_monai("BasicUNetPlusPlus", **library.VOLUME, features=(2, 2, 2, 4, 4, 2)),
        ((1, 1, 32, 32, 32),), _MONAI,
    ),
}  # fmt: skip

# timm
_STAGES = {"depths": (1, 1, 1, 1), "dims": (8, 8, 16, 16), "num_classes": 3}
MODELS |= {
    "convnextv2_t": Model(
        of_timm("convnextv2_tiny"), _batch(256), of_timm("convnextv2_tiny", **_STAGES),
        _batch(2, 64), _TIMM,
    ),
    "eva02_s": Model(
        of_timm("eva02_small_patch14_224"), _batch(128),
        of_timm("eva02_small_patch14_224", img_size=28, embed_dim=16, depth=2, num_heads=2,
                ref_feat_shape=(2, 2), num_classes=3),
        _batch(2, 28), _TIMM,
    ),
    "coatnet_0": Model(
        of_timm("coatnet_0_rw_224"), _batch(128),
        of_timm("coatnet_0_rw_224", img_size=32, depths=(1, 1), embed_dim=(8, 32),
                block_type=("C", "T"), stem_width=(8, 8),
                transformer_dim_head=8, num_classes=3),
        TINY, _TIMM,
    ),
    "hiera_t": Model(
        of_timm("hiera_tiny_224"), _batch(256),
        of_timm("hiera_tiny_224", img_size=(64, 64), embed_dim=8, stages=(1, 1, 1), q_pool=2,
                mask_unit_size=(4, 4), mask_unit_attn=(True, True, False), num_classes=3),
        _batch(2, 64), _TIMM,
    ),
    "fastvit_sa12": Model(
        of_timm("fastvit_sa12"), _batch(256, 256),
        of_timm("fastvit_sa12", layers=(1, 1), embed_dims=(8, 32), mlp_ratios=(2, 2),
                pos_embs=(None, None), token_mixers=("repmixer", "attention"), num_classes=3),
        TINY, _TIMM,
    ),
    "repvit_m1": Model(
        of_timm("repvit_m1_1"), _batch(256),
        of_timm("repvit_m1_1", embed_dim=(8, 16), depth=(2, 1), num_classes=3), TINY, _TIMM,
    ),
    "inception_next_t": Model(
        of_timm("inception_next_tiny"), _batch(256), of_timm("inception_next_tiny", **_STAGES),
        _batch(2, 64), _TIMM,
    ),
    "edgenext_s": Model(
        of_timm("edgenext_small"), _batch(256, 256),
        of_timm("edgenext_small", **_STAGES, global_block_counts=(0, 0, 1, 0), heads=(2, 2, 2, 2)),
        _batch(2, 64), _TIMM,
    ),
    "mobilenetv4_m": Model(
        of_timm("mobilenetv4_conv_medium"), _batch(256, 256), library.tiny_mobilenet_v4, TINY, _TIMM
    ),
    "nfnet_f0": Model(
        of_timm("dm_nfnet_f0"), _batch(128),
        of_timm("dm_nfnet_f0", depths=(1, 1), channels=(16, 32), group_size=8, num_features=32,
                num_classes=3),
        TINY, _TIMM,
    ),
    "hrnet_w18": Model(of_timm("hrnet_w18"), _batch(128), library.tiny_hrnet, _batch(2, 64), _TIMM),
}  # fmt: skip

# diffusers
_DOWN, _UP = ("DownEncoderBlock2D",), ("UpDecoderBlock2D",)
MODELS |= {
    "sd_autoencoder": Model(
        of_diffusers("AutoencoderKL", down_block_types=_DOWN * 4, up_block_types=_UP * 4,
                     block_out_channels=(128, 256, 512, 512), layers_per_block=2),
        _batch(4, 512),
        of_diffusers("AutoencoderKL", down_block_types=_DOWN * 2, up_block_types=_UP * 2,
                     block_out_channels=(4, 8), norm_num_groups=2),
        _batch(1, 8), _DIFFUSERS,
    ),
    "sd_unet": Model(
        of_diffusers("UNet2DConditionModel", cross_attention_dim=768),
        ((8, 4, 64, 64), (8,), (8, 77, 768)),
        of_diffusers("UNet2DConditionModel", cross_attention_dim=8, block_out_channels=(8, 16),
                     down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
                     up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), layers_per_block=1,
                     norm_num_groups=4, attention_head_dim=2),
        ((2, 4, 16, 16), (2,), (2, 5, 8)), _DIFFUSERS,
    ),
}  # fmt: skip

# By hand
MODELS |= {
    "resenc_l": Model(
        ResEnc, ((1, 1, 256, 256, 256),),
        lambda: ResEnc((4, 8, 8), (1, 2, 1)), ((1, 1, 16, 16, 16),),
    ),
    "segformer_b2": Model(
        SegFormer, _batch(16, 512),
        lambda: SegFormer((8, 16), (1, 1), (1, 2), (2, 1), 8, 3), TINY,
    ),
    "wavenet": Model(WaveNet, ((8, 1, 64000),), lambda: WaveNet(4, 8, 4, 1), ((2, 1, 256),)),
    "conv_tasnet": Model(
        ConvTasNet, ((8, 1, 64000),), lambda: ConvTasNet(8, 4, 8, 3, 1), ((2, 1, 512),)
    ),
    "demucs": Model(Demucs, ((8, 2, 409600),), lambda: Demucs(4, 3), ((2, 2, 512),)),
    "hifigan": Model(
        HiFiGAN, ((16, 80, 128),), lambda: HiFiGAN(16, (4, 2), (3, 5), 8), ((2, 8, 16),)
    ),
    "swinir": Model(SwinIR, _batch(8, 64), lambda: SwinIR(8, 1, 2, 2, 4), _batch(1, 8), _TV),
    "fno": Model(FNO, _batch(16, 256), lambda: FNO(4, 3, 2), _batch(2, 16)),
    "nafnet": Model(NAFNet, _batch(8, 256), lambda: NAFNet(4, (1, 1), 1, (1, 1)), _batch(2, 16)),
}  # fmt: skip
