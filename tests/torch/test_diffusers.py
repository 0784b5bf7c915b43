"""Autoencoders of diffusers: encode and decode by parts under a limit, beside eager, where it is
installed (DOORS in the Makefile has what its import needs)."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch

import ooc_cudnn.torch as ooc
from benchmarks.library_models import torchvision_models
from ooc_cudnn.errors import PlanInfeasibleError
from tests.support.torch_checks import close

pytestmark = [
    pytest.mark.usefixtures("fewest_plans"),
    pytest.mark.filterwarnings("ignore"),  # diffusers' own
]

DOWN, UP = ("DownEncoderBlock2D",) * 2, ("UpDecoderBlock2D",) * 2
IMAGES = {"in_channels": 3, "out_channels": 3, "latent_channels": 4}
LEVELS = {"block_out_channels": (8,) * 4, "layers_per_block": 1}
EIGHTS = {"layers_per_block": (1,) * 5, "block_out_channels": (8,) * 4}
#: Of autoencoders: arguments, what is encoded, what decoding takes beside latents.
AUTOENCODERS = {
    "AutoencoderKL": (
        IMAGES
        | {"down_block_types": DOWN, "up_block_types": UP, "block_out_channels": (8, 16)}
        | {"layers_per_block": 1, "norm_num_groups": 4},
        (1, 3, 32, 24),
        {},
    ),
    "AutoencoderKLLTXVideo": (
        IMAGES
        | EIGHTS
        | {"decoder_block_out_channels": (8,) * 4, "decoder_layers_per_block": (1,) * 5}
        | {"spatio_temporal_scaling": (True, True, False, False)}
        | {"decoder_spatio_temporal_scaling": (True, True, False, False)}
        | {"patch_size": 1, "patch_size_t": 1},
        (1, 3, 9, 16, 16),
        {},
    ),
    "AutoencoderKLHunyuanVideo": (
        IMAGES
        | LEVELS
        | {"down_block_types": ("HunyuanVideoDownBlock3D",) * 4, "norm_num_groups": 4}
        | {"up_block_types": ("HunyuanVideoUpBlock3D",) * 4},
        (1, 3, 9, 16, 16),
        {},
    ),
    "AutoencoderKLCogVideoX": (
        IMAGES
        | LEVELS
        | {"down_block_types": ("CogVideoXDownBlock3D",) * 4, "norm_num_groups": 2}
        | {"up_block_types": ("CogVideoXUpBlock3D",) * 4},
        (1, 3, 9, 16, 16),
        {},
    ),
    "AutoencoderKLWan": (
        {"base_dim": 3, "z_dim": 16, "dim_mult": [1] * 4, "num_res_blocks": 1},
        (1, 3, 9, 16, 16),
        {},
    ),
    "AutoencoderKLTemporalDecoder": (
        IMAGES | {"down_block_types": DOWN, "block_out_channels": (32, 32), "layers_per_block": 1},
        (4, 3, 32, 32),
        {"num_frames": 4},
    ),
    "AutoencoderTiny": (
        {"encoder_block_out_channels": (8, 8), "decoder_block_out_channels": (8, 8)}
        | {"num_encoder_blocks": (1, 1), "num_decoder_blocks": (1, 1)},
        (1, 3, 32, 32),
        {},
    ),
}


def autoencoder(name):
    """One in double precision, in evaluation."""
    if find_spec("torchvision"):
        torchvision_models()  # diffusers imports it
    diffusers = pytest.importorskip("diffusers", exc_type=ImportError)
    torch.manual_seed(0)
    return getattr(diffusers, name)(**AUTOENCODERS[name][0]).eval().double()


def within(part, limit, call):
    """What a call makes with a part under a limit, or under the least that there is a plan for."""
    for _ in range(3):  # what PyTorch computes within a limit is counted once it has some
        ooc.limit(part, limit)
        try:
            made = call()
        except PlanInfeasibleError as error:
            limit = error.smallest_bytes
        else:
            plan = part.forward.plan
            assert plan.device_bytes <= plan.memory_limit
            return made
    raise AssertionError(f"no plan within {limit} bytes either")


def encoded(vae, x):
    made = vae.encode(x)
    return made.latent_dist.mode() if hasattr(made, "latent_dist") else made.latents


@pytest.mark.every_case  # else the page on diffusers compares one
@pytest.mark.parametrize("name", AUTOENCODERS)
def test_encode_and_decode_are_those_of_eager(name):
    _, shape, options = AUTOENCODERS[name]
    vae, x = autoencoder(name), torch.randn(shape, dtype=torch.float64)
    with torch.no_grad():
        latents = encoded(vae, x)
        again = vae.decode(latents, **options).sample
        found = within(vae.encoder, "384KiB", lambda: encoded(vae, x))
        close(found, latents, "latents", tolerance=1e-10)
        found = within(vae.decoder, "384KiB", lambda: vae.decode(latents, **options).sample)
        close(found, again, "what is decoded", tolerance=1e-10)


@pytest.mark.every_case
def test_latents_of_other_sizes_and_an_image_in_a_file(tmp_path):
    vae = autoencoder("AutoencoderKL")
    ooc.limit(vae.decoder, "512KiB")
    for size in ((12, 8), (10, 18)):
        latents = torch.randn(1, 4, *size, dtype=torch.float64)
        with torch.no_grad():
            limited = vae.decode(latents).sample
            plan = vae.decoder.forward.plan
            expected = ooc.release(vae.decoder)(vae.post_quant_conv(latents))
            ooc.limit(vae.decoder, "512KiB")
            path = tmp_path / f"{size[0]}.npy"
            ooc.infer(vae.decoder, vae.post_quant_conv(latents), out=path, memory_limit="512KiB")
        assert plan.device_bytes <= 2**19
        close(limited, expected, "decoded", tolerance=1e-10)
        stored = torch.from_numpy(np.load(path))
        close(stored, expected, "in the file", tolerance=1e-10)


@pytest.mark.every_case
def test_all_of_it_trains_under_a_limit():
    vae, x = autoencoder("AutoencoderKL").train(), torch.randn(2, 3, 16, 16, dtype=torch.float64)

    def step():
        vae.zero_grad()
        loss = (vae(x).sample - x).square().mean()
        loss.backward()
        return loss.item(), [each.grad.clone() for each in vae.parameters()]

    expected, gradients = step()
    ooc.limit(vae, "512KiB")
    found, ours = step()
    assert found == pytest.approx(expected, rel=1e-10)
    for one, other in zip(ours, gradients, strict=True):
        close(one, other, "gradient", 1.0, 1e-10)
