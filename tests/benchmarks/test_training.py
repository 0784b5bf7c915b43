"""The training step: every way to it gives the gradients that a sum by hand gives."""

import math
import weakref

import numpy as np
import pytest

import ooc_cudnn
from benchmarks.contenders import torch_training, training_library
from benchmarks.contenders.suite import TrainingStep
from benchmarks.contenders.torch_network import reference
from benchmarks.contenders.torch_training import pinned_bytes
from benchmarks.contenders.training_network import Network
from benchmarks.contenders.training_reference import Outcome, by_hand, compare, tolerances
from ooc_cudnn.bench.case import OURS, Case
from ooc_cudnn.bench.contender import Unavailable

BASELINES = (
    "in_core",
    "torch_in_core",
    "torch_save_on_cpu",
    "torch_checkpoint",
    "torch_micro_batches",
)
CASE = Case(
    name="vgg16-step",
    about="a training step of VGG-16",
    source="the paper, figures 12 and 13",
    workload="training_step",
    sizes={"batch": 2, "image": 32, "channels_percent": 6},
    tiny={},
    memory_limit="512KiB",
    tiny_memory_limit="512KiB",
    baselines=BASELINES,
    allow_tf32=False,
)


@pytest.fixture
def step():
    made = TrainingStep(CASE, cuda=False, tiny=True)
    yield made
    made.release()


@pytest.fixture
def prepared(step):
    """Prepare a contender by its name, and release it in the end."""
    taken = []

    def prepare(name):
        if name.startswith("torch"):
            pytest.importorskip("torch")
        contender = step.contenders[name]()
        assert contender.name == name
        taken.append(contender)
        contender.prepare()
        return contender

    yield prepare
    for contender in taken:
        contender.release()


@pytest.mark.parametrize("name", [OURS, *BASELINES])
def test_every_way_gives_the_gradients_made_by_hand(name, step, prepared):
    contender = prepared(name)
    contender.rest()
    contender.run()
    found = contender.check()
    assert found["ok"], found
    assert found["gradients"] == len(step.network.weights) == 32
    assert found["loss"] == pytest.approx(step.expected().loss, rel=1e-6)
    assert found["worst_gradient_error"] < 1e-5  # far from what flips of ReLU may cost


def test_the_library_is_out_of_core_and_says_what_binds(prepared):
    contender = prepared(OURS)
    contender.run()
    contender.run()
    assert contender.check()["ok"]
    details = contender.details()
    assert details["plan"]["policy"] == "offload"
    assert "nothing to tune" in details["tuning"]["reason"]  # no card, no engines
    assert details["pinned_bytes_needed"] > 0
    rows = {(row["layer"], row["direction"]): row for row in details["calls"]}
    layers = {layer for layer, direction in rows if direction == "backward"}
    assert layers == {layer for layer, _ in rows} - {"images", "labels"}
    assert {"conv1_1", "pool5", "fc6", "logits", "loss"} <= layers
    places = {n: ooc_cudnn.placement(a) for n, a in contender._network.parameters.items()}
    assert {places[name] for name in ("conv1_1.w", "conv1_1.b", "fc7.b")} == {"device"}
    assert rows["conv1_1", "backward"]["bytes_out"] == 0  # dw and db stay
    assert places["fc7.w"] == "pinned"
    assert rows["fc7", "backward"]["bytes_out"] == 246 * 246 * 4  # dw alone
    assert sum(details["binding_share"].values()) == pytest.approx(1)
    assert set(details["stage_seconds"]) == {"copy_in", "compute", "copy_out"}
    assert 0 < details["peak_device_bytes"] <= 512 * 1024 == details["memory_limit"]
    for way in ("bytes_in", "bytes_out"):
        assert details[way] == sum(row[way] for row in details["calls"]) > 0
    planned = details["predicted_seconds_of_calls"]
    assert details["predicted_seconds"] == pytest.approx(planned + details["rest_seconds"])
    assert details["predicted_over_measured"] == pytest.approx(
        details["predicted_seconds"] / details["measured_seconds"]
    )


def test_in_core_nothing_but_the_images_comes_from_the_host(prepared):
    contender = prepared("in_core")
    contender.run()
    assert contender.check()["ok"]
    details = contender.details()
    assert set(details["placements"]) == {"device"}
    gradients = contender._ready.gradients
    assert {ooc_cudnn.placement(gradient) for gradient in gradients.values()} == {"device"}
    assert details["bytes_out"] < 100  # the loss
    inputs = contender.step.images.nbytes + contender.step.labels.nbytes
    assert inputs <= details["bytes_in"] < 1.1 * inputs
    assert (details["plan"]["policy"], details["plan"]["micro_batches"]) == ("keep", 1)


def test_descent_is_applied_alike_by_the_library_and_torch(step, prepared):
    ours, theirs = prepared(OURS), prepared("torch_in_core")
    for contender in (ours, theirs):
        contender.rest()
        contender.run()
        contender.run()
    weights = theirs.network.weights()
    for name, parameter in ours._network.parameters.items():
        moved = training_library._on_host(parameter) - step.network.weights[name]
        expected = weights[name] - step.network.weights[name]
        assert np.linalg.norm(expected) > 0
        assert np.linalg.norm(moved - expected) < 1e-3 * np.linalg.norm(expected), name


@pytest.mark.parametrize("image", [32, 64])
def test_every_layer_has_its_weights(image):
    """Also where the last map has several places, so that a node lays it as rows."""
    network = Network.of(image, 10, 0.02)
    having = {f"{layer.name}.w" for layer in network.layers if layer.has_weights}
    assert having == {name for name in network.weights if name.endswith(".w")}
    assert network.operations(1) > 0


def test_what_a_step_counts(step):
    """3 * 2 operations for each weight and place, at three of VGG-16's layers."""
    layers = {layer.name: layer for layer in step.network.layers}
    assert [layers[name].kind for name in ("pool1", "fc6", "softmax")] == [
        "pooling",
        "linear",
        "softmax",
    ]
    shapes = {"conv1_1": (64, 224, 224), "pool1": (64, 112, 112), "fc6": (4096, 1, 1)}
    weights = {
        "conv1_1.w": np.empty((64, 3, 3, 3), np.float32),
        "fc6.w": np.broadcast_to(np.float32(0), (4096, 25088)),
    }
    network = Network(
        tuple(layers[name] for name in shapes), (3, 224, 224), tuple(shapes.values()), weights
    )
    by_images = 224 * 224 * 64 * 27 + 4096 * 25088
    assert network.operations(5) == 3 * 2 * 5 * by_images


def compared_with_tf32(step, loss, gradients, weights):
    """Compare with the leniency that TF32 needs."""
    found, batch = Outcome(loss, gradients, weights), step.batch
    return compare(step.network, batch, found, step.expected(), step.rate, tf32=True)


def descended(step, gradients):
    return {name: w - step.rate * gradients[name] for name, w in step.network.weights.items()}


def test_a_wrong_gradient_or_an_idle_descent_is_found(step):
    loss = step.expected().loss
    gradients = {name: g.astype(np.float32) for name, g in step.expected().gradients.items()}
    after = descended(step, gradients)
    assert compared_with_tf32(step, loss, gradients, after)["ok"]
    assert not compared_with_tf32(step, 1.01 * loss, gradients, after)["ok"]
    assert not compared_with_tf32(step, loss, gradients, step.network.weights)["ok"]
    lost = {**gradients, "logits.w": gradients["logits.w"].copy()}
    lost["logits.w"][0, 0] = np.nan
    found = compared_with_tf32(step, loss, lost, after)
    assert not found["ok"]
    assert (found["worst_gradient"], found["worst_gradient_error"]) == ("logits.w", math.inf)


def test_one_image_left_out_is_found(step):
    part = by_hand(step.network, step.images[:1], step.labels[:1])
    found = compared_with_tf32(step, part.loss, part.gradients, descended(step, part.gradients))
    assert not found["ok"]
    assert found["gradient_errors"]["logits.w"] > 0.1


def test_tolerances_grow_away_from_the_loss(step):
    allowed = tolerances(step.network, 10**12, tf32=True)
    assert allowed["logits.w"] < allowed["fc7.w"] < allowed["conv5_3.b"] < allowed["conv1_1.w"]
    # 15 ReLUs, its own among them, and 5 poolings lie between conv1_1 and the loss.
    assert allowed["conv1_1.w"] == pytest.approx(0.03 * math.sqrt(21), rel=1e-4)


def test_small_batches_are_allowed_a_few_choices_of_relu_and_pooling(step):
    """With N images, one choice in fc7's map moves 1 of the root of 246 N parts."""
    assert step.network.map_shapes[-3] == (246, 1, 1)
    exact = tolerances(step.network, 10**12, tf32=False)
    for batch in (2, 200):
        allowed = tolerances(step.network, batch, tf32=False)
        assert allowed["logits.w"] == exact["logits.w"] == 1e-3  # there is no choice above it
        more = allowed["fc7.w"] - exact["fc7.w"]
        assert more == pytest.approx(3 / math.sqrt(246 * batch), rel=1e-3)


def test_too_little_memory_is_said_and_nothing_runs(step, monkeypatch):
    free = training_library.HOST_RESERVE_BYTES + 1000
    monkeypatch.setattr(training_library, "available_host_bytes", lambda: free)
    contender = step.contenders["in_core"]()
    with pytest.raises(Unavailable, match="pinned host memory"):
        contender.prepare()
    contender.release()
    monkeypatch.undo()
    monkeypatch.setattr(training_library, "_FETCHED_BESIDE", -0.5)
    in_core = step.contenders["in_core"]()
    with pytest.raises(Unavailable, match=r"maps do not fit .* of device memory"):
        in_core.prepare()
    in_core.release()


def test_save_on_cpu_is_refused_where_it_would_exhaust_the_host(step, monkeypatch):
    pytest.importorskip("torch")
    free = torch_training.HOST_RESERVE_BYTES + 1000
    monkeypatch.setattr(torch_training, "available_host_bytes", lambda: free)
    contender = step.contenders["torch_save_on_cpu"]()
    with pytest.raises(Unavailable, match=r"would pin .* of host memory for saved tensors"):
        contender.prepare()
    contender.release()


def test_saved_bytes_are_those_that_are_saved(step, prepared):
    contender = prepared("torch_save_on_cpu")
    torch, network, batch = contender._torch, contender.network, 5
    seen = []

    def pack(tensor):
        seen.append(tensor.nbytes)
        return tensor

    images = np.ones((batch, *step.network.image_shape), np.float32)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        network.loss(network.images(images), np.zeros(batch, np.int64))
    assert network.saved_bytes(batch) == seen
    maps = sum(math.prod(shape) for shape in step.network.map_shapes) * 4 * batch
    assert sum(seen) > maps  # most maps are saved twice: as a result and as an input
    assert contender.details()["predicted_pinned_bytes"] >= sum(network.saved_bytes(step.batch))


def test_torch_out_of_memory_is_a_memory_error_that_holds_no_tensor(prepared, monkeypatch):
    contender = prepared("torch_in_core")
    torch, held = contender._torch, []

    def refuse():
        tensor = torch.zeros(3)
        held.append(weakref.ref(tensor))
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 13 GiB.")

    monkeypatch.setattr(contender, "gradients", refuse)
    with pytest.raises(MemoryError, match=r"out of memory\. Tried to allocate 13 GiB"):
        contender.run()
    assert held[0]() is None


def test_flags_are_put_back(prepared):
    contender = prepared("torch_micro_batches")
    torch = contender._torch
    flags = torch.backends.cudnn, torch.backends.cuda.matmul
    before = [each.allow_tf32 for each in flags]
    seen = []
    through = contender.network.accumulate

    def look(*arguments):
        seen.extend(each.allow_tf32 for each in flags)
        return through(*arguments)

    contender.network.accumulate = look
    contender.run()
    assert seen == [False, False]
    assert [each.allow_tf32 for each in flags] == before


def test_the_reference_of_torch_is_that_by_hand(step):
    pytest.importorskip("torch")
    found = reference(step.network, step.images, step.labels, cuda=False, micro=1)
    expected = step.expected()
    assert found.loss == pytest.approx(expected.loss, rel=1e-6)
    for name, gradient in expected.gradients.items():
        error = np.linalg.norm(found.gradients[name] - gradient) / np.linalg.norm(gradient)
        assert error < 1e-5, name


def test_without_torch_the_library_still_runs_and_is_checked(step, prepared, monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named '{name}'")

    monkeypatch.setattr("benchmarks.contenders.torch_network.importlib.import_module", missing)
    with pytest.raises(Unavailable, match="PyTorch is not installed"):
        step.contenders["torch_in_core"]().prepare()
    monkeypatch.undo()
    contender = prepared(OURS)
    contender.run()
    assert contender.check()["ok"]


@pytest.mark.parametrize(("nbytes", "taken"), [(0, 0), (1, 1), (3, 4), (2**20, 2**20)])
def test_pinned_memory_of_torch_is_a_power_of_two(nbytes, taken):
    assert pinned_bytes(nbytes) == taken
