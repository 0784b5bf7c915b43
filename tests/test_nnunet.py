"""nnU-Net's trainer and predictor under a limit, beside its own (NNUNET in the Makefile)."""

import doctest
import importlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import ooc_cudnn
from tests.support import torchvision_models

pytest.importorskip("nnunetv2")
pytestmark = [
    pytest.mark.usefixtures("fewest_plans"),
    pytest.mark.filterwarnings("ignore"),  # theirs
]

PAGE = Path(__file__).parents[1] / "docs" / "nnunet.md"
NAME, LIMIT = "Dataset001_Tiny", "3MiB"
LABELS = {"background": 0, "one": 1, "two": 2}
REGIONS = {"background": 0, "whole": [1, 2], "core": [2]}
ARCHITECTURE = {
    "n_stages": 3, "features_per_stage": [4, 8, 8], "conv_op": "torch.nn.modules.conv.Conv3d",
    "kernel_sizes": [[3] * 3] * 3, "strides": [[1] * 3, [2] * 3, [2] * 3],
    "n_conv_per_stage": [2] * 3, "n_conv_per_stage_decoder": [2] * 2, "conv_bias": True,
    "norm_op": "torch.nn.modules.instancenorm.InstanceNorm3d", "dropout_op": None,
    "norm_op_kwargs": {"eps": 1e-5, "affine": True}, "dropout_op_kwargs": None,
    "nonlin": "torch.nn.LeakyReLU", "nonlin_kwargs": {"inplace": True},
}  # fmt: skip
#: What a test changes of nnU-Net's plan, so that it takes seconds.
SMALL = {"patch_size": [16] * 3, "batch_size": 2}


@pytest.fixture
def door(monkeypatch, tmp_path):
    """The module, with nnU-Net's folders in a folder of the test's."""
    torchvision_models.models()  # timm imports it
    for name in ("raw", "preprocessed", "results"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(f"nnUNet_{name}", str(tmp_path / name))
    for name, value in {"def_n_proc": "1", "n_proc_DA": "1", "compile": "f"}.items():
        monkeypatch.setenv(f"nnUNet_{name}", value)
    module = importlib.import_module("ooc_cudnn.nnunet")
    monkeypatch.setenv(module.MEMORY_LIMIT, LIMIT)
    with ooc_cudnn.settings(device="host", machine="host"):
        yield module


def seeded():
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(0)


# The loss ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ignored", [None, 3])
@pytest.mark.parametrize("of_batch", [False, True])
def test_the_loss_of_labels_is_that_of_nnunet(of_batch, ignored, door):
    from nnunetv2.training.loss.compound_losses import DC_and_CE_loss

    dice = {"batch_dice": of_batch, "smooth": 1e-5, "do_bg": False, "ddp": False}
    theirs = DC_and_CE_loss(dice, {}, 0.5, 2, ignored, door.MemoryEfficientSoftDiceLoss)
    ours = door.DiceAndCrossEntropy(theirs)
    scores = torch.randn(2, 3, 6, 5, 4, requires_grad=True)
    for highest in (3 if ignored is None else 4, 1):
        labels = torch.randint(0, highest, (2, 1, 6, 5, 4))
        labels = labels if highest > 1 or ignored is None else torch.full_like(labels, ignored)
        expected, found = theirs(scores, labels), ours(scores, labels[:, 0])
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(
            *(torch.autograd.grad(each, scores)[0] for each in (found, expected))
        )


# Steps -------------------------------------------------------------------------------------------


def plans(axes=3):
    conv = {
        "conv_op": f"torch.nn.modules.conv.Conv{axes}d",
        "norm_op": f"torch.nn.modules.instancenorm.InstanceNorm{axes}d",
        "kernel_sizes": [[3] * axes] * 3,
        "strides": [[at] * axes for at in (1, 2, 2)],
    }
    configuration = {
        "data_identifier": "tiny", "preprocessor_name": "DefaultPreprocessor", "batch_size": 2,
        "patch_size": [16] * axes, "spacing": [1.0] * axes, "batch_dice": axes == 2,
        "normalization_schemes": ["ZScoreNormalization"], "use_mask_for_norm": [False],
        "architecture": {
            "network_class_name":
                "dynamic_network_architectures.architectures.unet.PlainConvUNet",
            "arch_kwargs": ARCHITECTURE | conv,
            "_kw_requires_import": ["conv_op", "norm_op", "dropout_op", "nonlin"],
        },
    }  # fmt: skip
    return {
        "dataset_name": NAME, "plans_name": "nnUNetPlans", "label_manager": "LabelManager",
        "transpose_forward": [0, 1, 2], "transpose_backward": [0, 1, 2],
        "image_reader_writer": "SimpleITKIO", "configurations": {"tiny": configuration},
        "continue_training": False,
    }  # fmt: skip


def trainer_of(kind, labels, folder, axes=3, supervised=True):
    case = folder / "preprocessed" / NAME / "tiny" / "case.b2nd"
    case.parent.mkdir(parents=True, exist_ok=True)
    case.touch()
    described = {"channel_names": {"0": "MRI"}, "labels": labels, "file_ending": ".nii.gz",
                 "numTraining": 1, "regions_class_order": [1, 2]}  # fmt: skip
    seeded()
    trainer = kind(plans(axes), "tiny", 0, described, torch.device("cpu"))
    trainer.enable_deep_supervision = supervised
    trainer.initialize()
    return trainer


def batch_of(trainer, axes=3):
    """What augmentation makes: labels, or whether a site is in each region, at each scale."""
    generator = torch.Generator().manual_seed(1)
    manager = trainer.label_manager
    scales = trainer._get_deep_supervision_scales() or [[1.0] * axes]
    target = []
    for scale in scales:
        sites = [round(16 * each) for each in scale]
        if manager.has_regions:
            heads = manager.num_segmentation_heads + manager.has_ignore_label
            target.append(torch.randint(0, 2, (2, heads, *sites), generator=generator).bool())
        else:
            most = manager.num_segmentation_heads + manager.has_ignore_label
            target.append(torch.randint(0, most, (2, 1, *sites), generator=generator).short())
    data = torch.randn(2, 1, *([16] * axes), generator=generator)
    whole = target if trainer.enable_deep_supervision else target[0]
    return {"data": data, "target": whole}


@pytest.mark.parametrize("more", [{}, {"ignore": 3}], ids=["", "ignored"])
@pytest.mark.parametrize("labels", [LABELS, REGIONS], ids=["labels", "regions"])
@pytest.mark.parametrize(("axes", "supervised"), [(3, True), (2, True), (3, False)])
def test_steps_are_those_of_nnunet(axes, supervised, labels, more, door, tmp_path):
    made = []
    for kind in (door.nnUNetTrainer, door.nnUNetTrainerLimit):
        trainer = trainer_of(kind, labels | more, tmp_path, axes, supervised)
        losses = [trainer.train_step(batch_of(trainer, axes))["loss"] for _ in range(2)]
        trainer.network.eval()
        with torch.no_grad():
            validated = trainer.validation_step(batch_of(trainer, axes))
        made.append((losses, validated, [*trainer.network.parameters()]))
    plan = trainer.supervised.forward.plan
    assert plan.device_bytes <= 3 * 2**20
    if labels is LABELS and not more:  # sums over a batch, of numbers
        assert plan.outside_bytes < 2**10
    (losses, validated, parameters), (found, ours, limited) = made
    np.testing.assert_allclose(found, losses, rtol=1e-4)
    assert ours.keys() == validated.keys()
    for name, expected in validated.items():
        np.testing.assert_allclose(ours[name], expected, rtol=1e-3, atol=2, err_msg=name)
    for a, b in zip(limited, parameters, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_a_limit_that_is_none_is_an_error_before_anything(door, tmp_path, monkeypatch):
    monkeypatch.setenv(door.MEMORY_LIMIT, "many")
    with pytest.raises(ValueError, match="nnUNet_memory_limit"):
        trainer_of(door.nnUNetTrainerLimit, LABELS, tmp_path)
    with pytest.raises(ValueError, match="nnUNet_memory_limit"):
        door.nnUNetPredictorLimit(device=torch.device("cpu"))


# Prediction --------------------------------------------------------------------------------------


@pytest.mark.parametrize("axes", [3, 2])
def test_a_case_is_seen_as_a_whole(axes, door, tmp_path):
    trainer = trainer_of(door.nnUNetTrainerLimit, LABELS, tmp_path, axes, supervised=False)
    predictor = door.nnUNetPredictorLimit(LIMIT, device=torch.device("cpu"), use_mirroring=True)
    predictor.manual_initialization(
        trainer.network, trainer.plans_manager, trainer.configuration_manager, None,
        trainer.dataset_json, "", (0, 1),
    )  # fmt: skip
    sites = (14, 17, 16) if axes == 3 else (3, 17, 14)
    case = torch.randn(1, *sites)
    found = predictor.predict_sliding_window_return_logits(case)
    padded = torch.nn.functional.pad(case, (0, 0, 0, 3, 0, 2) if axes == 3 else (0, 2, 0, 3))
    image = padded[None] if axes == 3 else padded.swapaxes(0, 1)
    network = trainer.network.eval()
    with torch.no_grad():
        made = [network(image.flip(turned)).flip(turned) for turned in ([], [2], [3], [2, 3])]
    expected = sum(made) / 4
    expected = expected[0] if axes == 3 else expected.swapaxes(0, 1)
    torch.testing.assert_close(found, expected[(..., *map(slice, sites))], rtol=1e-4, atol=1e-4)


# From files to predictions -----------------------------------------------------------------------


def write_data_set(folder):
    sitk = pytest.importorskip("SimpleITK")
    random = np.random.default_rng(0)
    raw = folder / "raw" / NAME
    for name in ("imagesTr", "labelsTr", "imagesTs"):
        (raw / name).mkdir(parents=True)
    for at in range(5):
        labels = (np.indices((20, 24, 28)).sum(0) // 9 % 3).astype("uint8")
        image = (labels + 0.3 * random.standard_normal(labels.shape)).astype("float32")
        images = [raw / "imagesTr" / f"case_{at}_0000.nii.gz"]
        images += [raw / "imagesTs" / "case_9_0000.nii.gz"] if at == 4 else []
        for path in images:
            sitk.WriteImage(sitk.GetImageFromArray(image), str(path))
        sitk.WriteImage(sitk.GetImageFromArray(labels), str(raw / f"labelsTr/case_{at}.nii.gz"))
    described = {"channel_names": {"0": "MRI"}, "labels": LABELS, "numTraining": 5,
                 "file_ending": ".nii.gz"}  # fmt: skip
    (raw / "dataset.json").write_text(json.dumps(described))


def prepared(folder):
    """Let nnU-Net plan and preprocess a data set; of its plan patches and channels are smaller."""
    from nnunetv2.experiment_planning import plan_and_preprocess_api as api

    write_data_set(folder)
    api.extract_fingerprints([1], num_processes=1)
    api.plan_experiments([1])
    path = folder / "preprocessed" / NAME / "nnUNetPlans.json"
    plan = json.loads(path.read_text())
    configuration = plan["configurations"]["3d_fullres"]
    configuration |= SMALL
    configuration["architecture"]["arch_kwargs"] |= ARCHITECTURE
    path.write_text(json.dumps(plan))
    api.preprocess([1], configurations=["3d_fullres"], num_processes=[1])


@pytest.mark.every_case
def test_from_files_to_predictions(door, tmp_path, monkeypatch):
    from nnunetv2.run.run_training import get_trainer_from_args

    command = [sys.executable, "-m", "ooc_cudnn.nnunet_trainers"]
    assert "python -m ooc_cudnn.nnunet_trainers" in PAGE.read_text()
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    monkeypatch.setenv("nnUNet_extTrainer", found)
    prepared(tmp_path)
    monkeypatch.setenv("nnUNet_n_proc_DA", "0")
    logged = []
    for name in ("nnUNetTrainer", "nnUNetTrainerLimit"):
        seeded()
        trainer = get_trainer_from_args("1", "3d_fullres", 0, name, device=torch.device("cpu"))
        trainer.num_epochs, trainer.num_iterations_per_epoch = 2, 3
        trainer.num_val_iterations_per_epoch = 2
        trainer.run_training()
        logged.append(trainer.logger.get_checkpoint())
    for name in ("train_losses", "val_losses", "mean_fg_dice"):
        np.testing.assert_allclose(logged[1][name], logged[0][name], rtol=1e-3, err_msg=name)
    assert trainer.supervised.forward.plan.device_bytes <= 3 * 2**20
    assert "under the limit: " in Path(trainer.log_file).read_text()
    trainer.perform_actual_validation()
    assert (Path(trainer.output_folder) / "validation" / "summary.json").exists()
    assert "forward" not in vars(trainer.network)
    run_page(
        trained_folder=trainer.output_folder_base,
        images_folder=str(tmp_path / "raw" / NAME / "imagesTs"),
        predicted_folder=str(tmp_path / "predicted"),
    )
    assert "case_9.nii.gz" in os.listdir(tmp_path / "predicted")


def run_page(**names):
    """Run the examples of the page, with these names; nnU-Net prints what it does."""
    examples = doctest.DocTestParser().get_examples(PAGE.read_text(encoding="utf-8"))
    assert examples
    for example in examples:
        exec(example.source, names)
