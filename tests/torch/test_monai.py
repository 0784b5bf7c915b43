"""MONAI's models under limits, where it is installed (pip install --no-deps monai einops)."""

import copy
import importlib

import pytest
import torch

import ooc_cudnn.torch as ooc
from tests.support import sampling
from tests.support.torch_checks import PLENTY, SHARES, check, close, followed

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


SEGMENTED = {"in_channels": 1, "out_channels": 3}
PLANE = {"spatial_dims": 2, **SEGMENTED}
SPACE = {"spatial_dims": 3, **SEGMENTED}
#: Of networks in a training loop: arguments, and the size of an image.
TRAINED = {
    "SegResNet": (SPACE | {"init_filters": 8, "blocks_down": (1, 1), "blocks_up": (1,)}, (16,) * 3),
    "DynUNet": (
        SPACE
        | {"kernel_size": [3] * 4, "strides": [1, 2, 2, 2], "upsample_kernel_size": [2] * 3}
        | {"filters": [4, 8, 8, 8], "deep_supervision": True, "deep_supr_num": 2},
        (16,) * 3,
    ),
    "SwinUNETR": (
        PLANE
        | {"feature_size": 12, "depths": (1,) * 4, "num_heads": (1, 2, 2, 2), "window_size": 2},
        (64, 64),
    ),
    "UNETR": (
        SEGMENTED
        | {"img_size": (32, 32), "spatial_dims": 2, "feature_size": 8}
        | {"hidden_size": 32, "mlp_dim": 64, "num_heads": 4},
        (32, 32),
    ),
    "VNet": (PLANE | {"dropout_prob_down": 0.0, "dropout_prob_up": (0.0, 0.0)}, (32, 32)),
    "AutoencoderKL": (
        PLANE
        | {"out_channels": 1, "channels": (8, 8), "num_res_blocks": 1, "latent_channels": 2}
        | {"norm_num_groups": 4, "attention_levels": (False, True)},
        (16, 16),
    ),
}
NEED_EINOPS = ("SwinUNETR", "UNETR", "AutoencoderKL")


def loss_of(name, kind):
    """A loss of MONAI's, of what the network makes in training and of a batch's labels."""
    losses = importlib.import_module("monai.losses")
    of_labels = getattr(losses, kind)(softmax=True, to_onehot_y=True)
    if name == "DynUNet":
        of_all = losses.DeepSupervisionLoss(of_labels)
        return lambda made, label: of_all(list(torch.unbind(made, 1)), label)
    if name == "AutoencoderKL":

        def of_reconstruction(made, image):
            again, mean, deviation = made
            variance = deviation.square()
            divergence = 0.5 * (mean.square() + variance - variance.log() - 1).sum()
            return torch.nn.functional.l1_loss(again, image) + 1e-3 * divergence / len(image)

        return of_reconstruction
    return of_labels


def trained(network, step, loader):
    """The losses of two steps, one for each batch of the loader."""
    optimizer, found = torch.optim.SGD(network.parameters(), lr=0.01), []
    for batch in loader:
        optimizer.zero_grad()
        torch.manual_seed(2)
        loss = step(batch["image"], batch["label"])
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def network_and_loader(name):
    """A network to train, and MONAI's loader of two batches, of volumes with metadata."""
    data = pytest.importorskip("monai.data")
    if name in NEED_EINOPS:
        pytest.importorskip("einops")
    arguments, size = TRAINED[name]
    torch.manual_seed(0)
    network = getattr(importlib.import_module("monai.networks.nets"), name)(**arguments).double()
    for layer in network.modules():  # masks are not PyTorch's
        if isinstance(layer, torch.nn.modules.dropout._DropoutNd):
            layer.p = 0.0
    images = [torch.randn(1, *size, dtype=torch.float64) for _ in range(4)]
    items = [
        {
            "image": data.MetaTensor(each),
            "label": data.MetaTensor(
                each if name == "AutoencoderKL" else torch.randint(0, 3, (1, *size))
            ),
        }
        for each in images
    ]
    return network, data.DataLoader(data.Dataset(items), batch_size=2)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("SegResNet", "DiceCELoss"),
        *(
            pytest.param(*each, marks=pytest.mark.every_case)
            for each in (
                ("DynUNet", "DiceCELoss"),
                ("SegResNet", "DiceLoss"), ("SegResNet", "DiceFocalLoss"),
                ("SegResNet", "GeneralizedDiceLoss"), ("SegResNet", "TverskyLoss"),
                ("UNETR", "DiceCELoss"), ("SwinUNETR", "DiceCELoss"), ("VNet", "DiceLoss"),
                ("AutoencoderKL", "DiceLoss"),
            )
        ),
    ],
)  # fmt: skip
def test_a_loop_of_monais_with_its_loss_in_the_plan(name, kind):
    network, loader = network_and_loader(name)
    loss, twin = loss_of(name, kind), copy.deepcopy(network)
    if name == "AutoencoderKL":  # its noise has other numbers
        for each in (network, twin):
            each.sampling = lambda mean, deviation: mean + 0.5 * deviation
    expected = trained(twin, lambda image, label: loss(twin(image), label), loader)
    first = next(iter(loader))
    made = ooc.plan(
        ooc.with_loss(copy.deepcopy(network), loss, PLENTY), first["image"], first["label"]
    )
    step = ooc.with_loss(network, loss, made.device_bytes // 3)
    assert trained(network, step, loader) == pytest.approx(expected, rel=1e-9)
    assert step.forward.plan.device_bytes <= made.device_bytes // 3
    found = network.state_dict()
    for path, each in twin.state_dict().items():
        close(found[path], each, path, 1.0, 1e-9)
