"""Lightning's trainer with a module under a limit, beside itself without (pip install --no-deps
lightning lightning-utilities torchmetrics)."""

import copy
import doctest
import importlib
from importlib.util import find_spec

import pytest
import torch
from torch import nn

import ooc_cudnn.torch as ooc
from benchmarks.library_models import torchvision_models
from ooc_cudnn.torch.calls import calls_of
from ooc_cudnn.torch.errors import UnsupportedModelError

pytest.importorskip("lightning_utilities")
if find_spec("torchvision"):
    torchvision_models()  # torchmetrics imports it
pl = pytest.importorskip("lightning.pytorch")

door = importlib.import_module("ooc_cudnn.lightning")
MemoryLimit = door.MemoryLimit

pytestmark = [
    pytest.mark.usefixtures("fewest_plans"),
    pytest.mark.filterwarnings("ignore:::lightning"),
    pytest.mark.filterwarnings("ignore:.*_pytree.*:"),
]

LIMIT = "640KiB"


def layers():
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)),
    )


class OfAPart(pl.LightningModule):
    """As users write one; the steps call a part of it."""

    def __init__(self):
        super().__init__()
        self.save_hyperparameters()
        self.net = layers()
        self.seen = []

    def scores(self, x):
        return self.net(x)

    def training_step(self, batch, index):
        x, target = batch
        loss = nn.functional.cross_entropy(self.scores(x), target)
        self.log("loss", loss)
        self.seen.append(loss.item())
        return loss

    def validation_step(self, batch, index):
        x, target = batch
        self.log("score", nn.functional.cross_entropy(self.scores(x), target))

    test_step = validation_step

    def predict_step(self, batch, index):
        return self.scores(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1, momentum=0.9)


class PastItsForward(OfAPart):
    """With a forward that no step calls."""

    def forward(self, x):
        return self.net(x)


class Classifier(PastItsForward):
    """With one that all steps call."""

    def scores(self, x):
        return self(x)


class OfTwoParts(OfAPart):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 4)


def loader():
    torch.manual_seed(1)
    data = torch.utils.data.TensorDataset(torch.randn(12, 3, 16, 16), torch.randint(0, 4, (12,)))
    return torch.utils.data.DataLoader(data, batch_size=8)


def trainer(*callbacks, precision="64-true", **options):
    silent = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    silent |= {"enable_checkpointing": False, "max_epochs": 2}
    return pl.Trainer(
        accelerator="cpu", callbacks=[*callbacks], precision=precision, **(silent | options)
    )


def all_of(runs, module):
    """What a trainer makes of a module: losses, scores, predictions, weights."""
    batches = loader()
    runs.fit(module, batches, batches)
    scores = [
        each["score"]
        for found in (runs.validate, runs.test)
        for each in found(module, batches, verbose=False)
    ]
    predicted = torch.cat(runs.predict(module, batches))
    return torch.tensor([*module.seen, *scores]), predicted, module.state_dict()


@pytest.mark.parametrize(
    ("kind", "precision", "tolerance"),
    [
        (Classifier, "64-true", 1e-9),
        pytest.param(OfAPart, "bf16-mixed", 0.02, marks=pytest.mark.every_case),
        pytest.param(Classifier, "32-true", 1e-4, marks=pytest.mark.every_case),
        pytest.param(Classifier, "bf16-mixed", 0.02, marks=pytest.mark.every_case),
    ],
)
def test_a_module_trains_as_without_a_limit(kind, precision, tolerance):
    module = kind()
    twin, callback = copy.deepcopy(module), MemoryLimit(LIMIT)
    found = all_of(trainer(callback, precision=precision), module)
    expected = all_of(trainer(precision=precision), twin)
    for one, other in zip(found[:2], expected[:2], strict=True):
        assert one.dtype == other.dtype
        assert torch.allclose(one, other, tolerance, tolerance)
    for name, each in expected[2].items():
        assert found[2][name].dtype == each.dtype
        assert torch.allclose(found[2][name], each, tolerance, tolerance), name
    assert callback.plan.device_bytes <= callback.plan.memory_limit == 640 * 2**10
    limited = module if kind is Classifier else module.net
    assert len(calls_of(limited)) <= 6  # training, evaluation, prediction; of two sizes each


def test_a_checkpoint_is_as_without_a_limit(tmp_path):
    made = {}
    for name, callbacks in (("plain", []), ("limited", [MemoryLimit(LIMIT)])):
        module, runs = Classifier(), trainer(*callbacks, max_epochs=1)
        runs.fit(module, loader())
        runs.save_checkpoint(tmp_path / name)
        made[name] = torch.load(tmp_path / name, weights_only=False)
    plain, limited = made["plain"], made["limited"]
    assert plain.keys() == limited.keys()
    assert plain["callbacks"] == limited["callbacks"] == {}
    for name, each in plain["state_dict"].items():
        assert torch.allclose(limited["state_dict"][name], each, 1e-9, 1e-9)
    again = Classifier.load_from_checkpoint(tmp_path / "limited", weights_only=False)
    resumed = trainer(MemoryLimit(LIMIT), max_epochs=2)
    resumed.fit(again, loader(), ckpt_path=tmp_path / "plain", weights_only=False)
    assert resumed.global_step == 4


def test_the_limit_stays_until_it_is_released():
    module, callback = OfAPart(), MemoryLimit(LIMIT, module="net")
    runs = trainer(callback, max_epochs=1)
    runs.fit(module, loader())
    count, limited = len(calls_of(module.net)), module.net.forward
    runs.validate(module, loader(), verbose=False)
    trainer(MemoryLimit(LIMIT)).validate(module, loader(), verbose=False)
    assert module.net.forward is limited
    assert len(calls_of(module.net)) > count > 0
    assert limited.plan.to_json() == callback.plan.to_json()
    assert "forward" not in vars(ooc.release(module.net))


class TestRefusals:
    def test_of_a_step_that_goes_past_the_limit(self):
        module = PastItsForward()
        before = copy.deepcopy(module.state_dict())
        with pytest.raises(UnsupportedModelError, match=r"its forward, .* module='net'\)$"):
            trainer(MemoryLimit(LIMIT)).fit(module, loader())
        for name, each in module.state_dict().items():
            if "running" not in name and "tracked" not in name:
                assert torch.equal(each, before[name])
        module.head = nn.Linear(1, 1)
        with pytest.raises(UnsupportedModelError, match=r"did not call PastItsForward\.head"):
            trainer(MemoryLimit(LIMIT, module="head")).validate(module, loader(), verbose=False)

    def test_of_parts_that_are_not_clear(self):
        with pytest.raises(UnsupportedModelError, match=r"2 parts .* module='net' or 'head'\)$"):
            trainer(MemoryLimit(LIMIT)).fit(OfTwoParts(), loader())
        with pytest.raises(AttributeError, match="body"):
            trainer(MemoryLimit(LIMIT, module="body")).fit(OfTwoParts(), loader())

    def test_of_its_arguments(self):
        with pytest.raises(ValueError, match="memory_limit"):
            MemoryLimit("8 bananas")
        with pytest.raises(TypeError, match="scale must be a number"):
            MemoryLimit(scale="1")
        with pytest.raises(ValueError, match="statistics must be rank or global, not 'all'"):
            MemoryLimit(statistics="all")


def test_the_other_package_of_lightning_is_taken_where_it_is_there_alone(monkeypatch):
    other = pytest.importorskip("pytorch_lightning")
    monkeypatch.setitem(importlib.sys.modules, "lightning", None)
    monkeypatch.delitem(importlib.sys.modules, "lightning.pytorch")
    monkeypatch.delitem(importlib.sys.modules, "ooc_cudnn.lightning")
    assert issubclass(importlib.import_module("ooc_cudnn.lightning").MemoryLimit, other.Callback)


def test_its_examples_run():
    """Pytest itself would import the module without the declarations that torchvision needs."""
    assert doctest.testmod(door).attempted > 0
    assert doctest.testmod(door).failed == 0
