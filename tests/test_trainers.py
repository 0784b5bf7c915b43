"""Other trainers with a limited model: Accelerate, and transformers' Trainer (where installed)."""

import copy
from importlib.util import find_spec

import pytest
import torch
from torch import nn

import ooc_cudnn.torch as ooc
from benchmarks.library_models import torchvision_models
from tests.support import sampling

pytestmark = [
    pytest.mark.usefixtures("fewest_plans"),
    pytest.mark.filterwarnings("ignore:::accelerate"),
    pytest.mark.filterwarnings("ignore:::transformers"),
]

LIMIT = "640KiB"


def layers():
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)),
    )


def batches():
    torch.manual_seed(1)
    data = torch.utils.data.TensorDataset(torch.randn(16, 3, 16, 16), torch.randint(0, 4, (16,)))
    return torch.utils.data.DataLoader(data, batch_size=4)


def accelerated(model, precision):
    """Losses of a loop of Accelerate's that accumulates two batches."""
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(
        cpu=True, mixed_precision=precision, gradient_accumulation_steps=2
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model, optimizer, data = accelerator.prepare(model, optimizer, batches())
    found = []
    for x, target in data:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), target)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
    return found, accelerator.unwrap_model(model, keep_fp32_wrapper=False)


@pytest.mark.parametrize(
    ("precision", "tolerance"), [("bf16", 0.02), ("no", 1e-5)][: sampling.number(1, of=2)]
)
def test_a_loop_of_accelerates(precision, tolerance):
    model = layers()
    expected, twin = accelerated(copy.deepcopy(model), precision)
    found, limited = accelerated(ooc.limit(model, LIMIT), precision)
    assert found == pytest.approx(expected, rel=tolerance)
    for name, each in twin.state_dict().items():
        assert torch.allclose(limited.state_dict()[name], each, tolerance, tolerance), name
    assert limited.forward.plan.device_bytes <= 640 * 2**10
    assert "forward" not in vars(ooc.release(limited))


def test_the_trainer_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    if find_spec("torchvision"):
        torchvision_models()  # what reads images imports it

    class Images(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            x, label = batches().dataset[index]
            return {"pixel_values": x, "labels": label}

    def trained(model):
        arguments = transformers.TrainingArguments(
            str(tmp_path), use_cpu=True, per_device_train_batch_size=4, num_train_epochs=1,
            logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True, optim="sgd",
        )  # fmt: skip
        trainer = transformers.Trainer(
            model=model, args=arguments, train_dataset=Images(), eval_dataset=Images()
        )
        trainer.train()
        losses = [each["loss"] for each in trainer.state.log_history if "loss" in each]
        return [*map(float, losses), trainer.evaluate()["eval_loss"]]

    torch.manual_seed(0)
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_labels=4
    )
    model = transformers.ResNetForImageClassification(config)
    expected = trained(copy.deepcopy(model))
    assert trained(ooc.limit(model, "4MiB")) == pytest.approx(expected, rel=1e-4)
    assert model.forward.plan.device_bytes <= 4 * 2**20
