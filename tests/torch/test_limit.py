"""`limit` and `release`: the model stays the user's."""

import copy
import functools
import inspect
import io
import pickle
import random
import threading
from importlib import import_module
from types import MethodType

import pytest
import torch
from torch import nn

import ooc_cudnn
import ooc_cudnn.torch as ooc
from ooc_cudnn.torch.calls import calls_of
from ooc_cudnn.warnings_once import forget_warnings
from tests.support.torch_checks import TOLERANCE, close
from tests.support.torch_models import classifier, residual

pytestmark = pytest.mark.usefixtures("fewest_plans")

SHAPE, LIMIT = (4, 3, 16, 16), "200KiB"


@pytest.fixture
def pair():
    """A model under a limit, and the same one without."""
    torch.manual_seed(0)
    eager = residual().double()
    return ooc.limit(copy.deepcopy(eager), LIMIT), eager


def drawn(shape=SHAPE):
    return torch.randn(shape, dtype=torch.float64)


def test_five_steps_of_sgd_follow_pytorch(pair):
    x, target = drawn(), torch.arange(4)
    losses = []
    for model in pair:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for _ in range(5):
            loss = nn.functional.cross_entropy(model(x), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    assert losses[:5] == pytest.approx(losses[5:], rel=1e-9)
    assert losses[4] < losses[0]


def test_it_returns_at_once_and_leaves_the_model_as_it_is():
    model = residual()
    names, parameters = list(model.state_dict()), list(model.parameters())
    assert ooc.limit(model, LIMIT) is model
    assert type(model) is nn.Sequential
    assert list(model.state_dict()) == names
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))


def test_train_and_eval_are_captured_apart(pair):
    x = drawn()
    model, eager = pair
    for _ in range(2):
        for each in pair:
            each.train()
        close(model(x), eager(x), "training")
        for each in pair:
            each.eval()
        with torch.no_grad():
            close(model(x), eager(x), "evaluation")
    for (name, one), other in zip(model.named_buffers(), eager.buffers(), strict=True):
        close(one, other, name)


def test_what_is_changed_between_calls_is_captured_again():
    torch.manual_seed(0)
    eager = nn.Sequential(nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4), nn.ReLU()).double()
    model, x = ooc.limit(copy.deepcopy(eager), LIMIT), drawn((2, 2, 4, 4))

    def change(model, at):
        if at == 1:
            model[1].momentum, model[1].eps = 0.5, 0.25
        elif at == 2:
            model[2] = nn.Sigmoid()
        elif at == 3:
            model[0].bias.data = torch.ones(4).double()
            model[0].weight = nn.Parameter(torch.ones(4, 1, 1, 1).double())
            model[0].groups = 2

    for at in range(4):
        for each in (model, eager):
            change(each, at)
        close(model(x), eager(x), f"after change {at}")
    for (name, one), other in zip(model.named_buffers(), eager.buffers(), strict=True):
        close(one, other, name)


def test_a_counter_of_forward_is_no_reason_to_capture_again():
    class Counting(nn.Conv2d):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return super().forward(x)

    model = ooc.limit(Counting(2, 2, 1), LIMIT)
    ready = []
    for count in range(1, 7):
        model(torch.ones(1, 2, 4, 4))
        assert model.calls == count
        ready.append(model.forward.last)
    # 0 is the class's, and 1 a constant, too; then it is a number that the graph is given
    assert len(calls_of(model)) <= 3
    assert all(each is ready[2] for each in ready[2:])


def test_training_without_gradients_uses_and_updates_statistics_of_the_batch(pair):
    model, eager = pair
    x = drawn()
    with torch.no_grad():
        made = model(x)
        close(made, eager(x), "output")
    assert not made.requires_grad
    for (name, one), other in zip(model.named_buffers(), eager.buffers(), strict=True):
        close(one, other, name)


@pytest.mark.every_case
def test_a_step_of_training_may_follow_inference_mode(pair):
    model, eager = pair
    x = drawn()
    for _ in range(2):
        with torch.inference_mode():
            made = model(x)
            close(made, eager(x), "output")
        assert made.is_inference()
        for each in pair:
            each(x).square().sum().backward()
    for (name, one), other in zip(model.named_parameters(), eager.parameters(), strict=True):
        close(one.grad, other.grad, name, least=float(eager[4].weight.grad.abs().max()))


class Described(torch.Tensor):
    """A tensor that knows more of itself, as MONAI's MetaTensor."""


def test_a_tensor_of_another_class_is_taken_as_a_tensor(pair):
    x = drawn()
    for model, given in zip(pair, (x.as_subclass(Described), x), strict=True):
        given = given.clone().requires_grad_()
        model.y = model(given)
        model.y.square().sum().backward()
        model.gradient = given.grad.as_subclass(torch.Tensor)
    close(torch.as_tensor(pair[0].y).as_subclass(torch.Tensor), pair[1].y, "output")
    close(pair[0].gradient, pair[1].gradient, "gradient")


def test_a_state_dict_goes_there_and_back(pair):
    model, eager = pair
    x = drawn()
    model(x).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    eager.load_state_dict(model.state_dict())
    for each in pair:
        each.eval()
    with torch.no_grad():
        close(model(x), eager(x), "output")
        for parameter in eager.parameters():
            parameter.mul_(1.5)
        model.load_state_dict(eager.state_dict())
        close(model(x), eager(x), "output")


def test_hooks_of_the_model_run(pair):
    seen = []
    for model in pair:
        model.register_forward_pre_hook(lambda module, args: (2 * args[0],))
        model.register_forward_hook(lambda module, args, output: seen.append(output) or -output)
    x = drawn()
    found, expected = (model(x) for model in pair)
    close(found, expected, "output")
    close(seen[0], seen[1], "what the hook saw")


def test_released_it_is_pytorchs_again(pair):
    model, eager = pair
    model(drawn())
    assert "forward" in model.__dict__
    assert ooc.release(model) is model
    assert "forward" not in model.__dict__
    assert ooc.release(model) is model
    with torch.no_grad():
        x = drawn()
        eager.load_state_dict(model.state_dict())
        assert torch.equal(model(x), eager(x))


def test_a_model_goes_with_parts_that_are_under_a_limit_and_within_a_compiled_function():
    torch.manual_seed(0)
    eager = nn.Sequential(nn.Conv2d(2, 4, 1), nn.ReLU()).double()
    model, x = copy.deepcopy(eager), drawn((2, 2, 4, 4))
    inner = ooc.limit(model[0], LIMIT).forward
    ooc.limit(model, LIMIT)
    close(model(x), eager(x), "output")
    assert model[0].forward is inner
    compiled = torch.compile(lambda x: 2 * model(x), backend="eager")
    with torch.no_grad():
        close(compiled(x), 2 * eager(x), "output")


def test_a_forward_that_the_user_put_there_is_kept():
    model = classifier().double()
    own = model.forward
    model.forward = doubled = lambda x: 2 * own(x)
    x = drawn()
    expected = model.eval()(x)
    ooc.limit(ooc.limit(model, LIMIT), LIMIT)
    close(model(x), expected, "output")
    assert ooc.release(model).forward is doubled


def test_what_is_put_around_a_limited_forward_is_called():
    """As Accelerate does, for autocast."""
    model = classifier().double()
    x = drawn()
    expected = 2 * model.eval()(x)
    limited = ooc.limit(model, LIMIT).forward
    model.forward = lambda x: 2 * limited(x)
    close(model(x), expected, "output")
    assert limited.plan.device_bytes <= limited.plan.memory_limit
    with torch.no_grad():
        close(ooc.infer(model, x, memory_limit=LIMIT), expected, "inferred")
    model.forward = MethodType(limited, model)  # and as it unwraps it
    close(2 * model(x), expected, "unwrapped")
    assert "forward" not in vars(ooc.release(model))


def test_copies_and_pickles_are_under_the_limit_too(pair):
    model, eager = pair
    x = drawn()
    model(x)
    eager(x)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copies = [
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(file, weights_only=False),
    ]
    expected = eager(x)
    for each in copies:
        assert each.forward.model is each
        assert each.forward is not model.forward
        close(each(x), expected, "output")
        each(x).sum().backward()
        assert all(parameter.grad is not None for parameter in each.parameters())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_gradients_accumulate_and_forwards_may_follow_each_other(pair):
    one, two = drawn(), drawn()
    for model in pair:
        first, second = model(one), model(two)
        (second.sin().sum() + first.square().sum()).backward()
        model(one).sum().backward()
    for (name, found), other in zip(pair[0].named_parameters(), pair[1].parameters(), strict=True):
        close(found.grad, other.grad, name, least=float(pair[1][4].weight.grad.abs().max()))


def test_backward_runs_again_where_the_graph_is_retained(pair):
    model, eager = pair
    x = drawn()
    for each in pair:
        loss = each(x).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
    for (name, one), other in zip(model.named_buffers(), eager.buffers(), strict=True):
        close(one, other, name)
    for (name, found), other in zip(model.named_parameters(), eager.parameters(), strict=True):
        close(found.grad, other.grad, name, least=float(eager[4].weight.grad.abs().max()))


def test_where_the_graph_is_retained_dropout_draws_the_same_masks_again():
    model = ooc.limit(nn.Sequential(nn.Conv2d(2, 4, 1), nn.Dropout(0.5)).double(), LIMIT)
    x = torch.randn(2, 2, 4, 4, dtype=torch.float64, requires_grad=True)
    loss = model(x).square().sum()
    (first,) = torch.autograd.grad(loss, x, retain_graph=True)
    model(x)
    (again,) = torch.autograd.grad(loss, x)
    close(again, first, "gradient")


def test_both_halves_are_recorded_on_whichever_thread_backward_runs(pair):
    model, _ = pair
    model(drawn()).sum().backward()  # planned
    with ooc_cudnn.profile() as p:
        loss = model(drawn()).sum()
        thread = threading.Thread(target=loss.backward)  # as autograd's of a card
        thread.start()
        thread.join()
    forward, backward = p.calls
    assert forward.function == "training_step forward"
    assert backward.function == "training_step backward"
    plan = model.forward.plan
    assert forward.predicted_seconds + backward.predicted_seconds == pytest.approx(plan.seconds)
    assert forward.plan.tasks + backward.plan.tasks == plan.tasks
    assert p.calls[1].trace.busy_seconds("compute") > 0


def test_frozen_parameters_have_no_gradients(pair):
    x = drawn()
    for model in pair:
        model[0].requires_grad_(False)
        model(x).square().sum().backward()
    assert all(parameter.grad is None for parameter in pair[0][0].parameters())
    for (name, one), other in zip(pair[0].named_parameters(), pair[1].parameters(), strict=True):
        close(one.grad, other.grad, name, least=float(pair[1][4].weight.grad.abs().max()))


def test_arrays_of_numpy_are_taken(pair):
    x = drawn()
    close(pair[0](x.numpy()), pair[1](x), "output")
    array = x.numpy().copy()
    array.setflags(write=False)
    close(pair[0](array), pair[1](x), "output")


def test_what_was_changed_before_backward_is_refused(pair):
    model, _ = pair
    loss = model(drawn()).sum()
    with torch.no_grad():
        model[0].conv1.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_an_input_that_was_changed_before_backward_is_refused(pair):
    model, _ = pair
    x = drawn()
    loss = model(x).sum()
    x.mul_(2)
    with pytest.raises(RuntimeError, match=r"^input .*inplace operation.*version 1; expected .* 0"):
        loss.backward()
    model(x).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_frozen_parameter_that_was_changed_before_backward_is_refused(pair):
    model, _ = pair
    model[0].requires_grad_(False)
    loss = model(drawn()).sum()
    model[0].conv1.weight.add_(1)
    with pytest.raises(RuntimeError, match=r"0\.conv1\.weight has been modified"):
        loss.backward()


def test_bad_arguments_are_refused():
    with pytest.raises(TypeError, match=r"torch\.nn\.Module, not function"):
        ooc.limit(lambda x: x, LIMIT)
    with pytest.raises(ValueError, match="memory_limit"):
        ooc.limit(classifier(), "8 gibs")
    with pytest.raises(ooc.UnsupportedModelError, match="without a tensor: limit a module whose"):
        ooc.limit(classifier(), LIMIT)()


class Sorting(nn.Module):
    """What the library has not, and perhaps a layer behind it."""

    def __init__(self, *, layer):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 2, 1) if layer else nn.Identity()

    def forward(self, x):
        return self.last(torch.sort(self.first(x), 1)[0].mul_(2))


@pytest.mark.parametrize("layer", [False, True])
def test_an_operation_that_the_library_has_not_is_named_with_its_line(layer):
    model = ooc.limit(Sorting(layer=layer).double(), LIMIT, strict=True)
    with pytest.raises(ooc.UnsupportedOperationError, match=r"(?s)aten\.sort.*torch\.sort\(self"):
        model(drawn())


@pytest.mark.parametrize("layer", [False, True])
def test_pytorch_runs_what_the_library_has_not(layer):
    torch.manual_seed(0)
    eager = Sorting(layer=layer).double()
    model, x = ooc.limit(copy.deepcopy(eager), LIMIT), drawn()
    for each in (model, eager):
        each(x).square().sum().backward()
    close(model(x), eager(x), "output")
    close(model.first.weight.grad, eager.first.weight.grad, "gradient")


def test_a_warning_points_at_the_line_that_called_the_model(tmp_path, monkeypatch):
    """However much of PyTorch stands between: `Sequential` calls the limited part."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget_warnings()
    model = torch.nn.Sequential(ooc.limit(torch.nn.Conv2d(3, 4, 3), LIMIT), torch.nn.ReLU())
    with (
        ooc_cudnn.settings(device="host", machine=None),
        pytest.warns(UserWarning, match="calibrated") as seen,
    ):
        model(torch.ones(SHAPE))
    line = inspect.currentframe().f_lineno - 1
    forget_warnings()
    assert {(each.filename, each.lineno) for each in seen} == {(__file__, line)}


class Scaled(nn.Conv2d):
    """A convolution whose scale is a number."""

    scale = 1.0

    def forward(self, x, *others):
        return super().forward(x) * self.scale


@pytest.mark.parametrize("by", ["ranks", "numbers"])
def test_ways_to_call_a_model_are_few(monkeypatch, by):
    """A number that the user changes in the model makes a new one in each step."""
    monkeypatch.setattr(import_module("ooc_cudnn.torch.calls"), "KEPT", 2)
    forget_warnings()
    model = ooc.limit(Scaled(1, 1, 1).double(), LIMIT)

    def call(at):
        model.scale = 1 / (at + 1) if by == "numbers" else 1.0
        x = torch.ones(1, 1, 2, 2, dtype=torch.float64)
        others = [x] * at if by == "ranks" else []
        expected = torch.nn.functional.conv2d(x, model.weight, model.bias) * model.scale
        close(model(x, *others), expected, "output")

    for at in range(2):
        call(at)
        call(at)
    call(0)
    assert len(calls_of(model)) == 2  # both are kept
    with pytest.warns(UserWarning, match="Scaled is called in more than 2 ways"):
        [call(at) for at in range(2, 5)]
    assert len(calls_of(model)) <= 3
    forget_warnings()


def test_sizes_are_no_ways_to_call_a_model(monkeypatch):
    monkeypatch.setattr(import_module("ooc_cudnn.torch.calls"), "KEPT", 2)
    forget_warnings()
    model = ooc.limit(Scaled(1, 1, 1).double(), LIMIT)
    for width in range(2, 8):
        x = torch.ones(1, 1, 2, width, dtype=torch.float64)
        close(model(x), torch.nn.functional.conv2d(x, model.weight, model.bias), "output")
    assert len(calls_of(model)) == 2


def test_an_attribute_that_forward_does_not_read_is_no_way_to_call_a_model():
    model = ooc.limit(torch.nn.Conv2d(1, 1, 1).double(), LIMIT)
    for count in range(3):
        model.count, model.note = count, str(count)
        model(torch.ones(1, 1, 2, 2, dtype=torch.float64))
    assert len(calls_of(model)) == 1


def test_what_cannot_be_captured_says_where():
    class Branching(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(ooc.UnsupportedModelError, match=r"Branching cannot be captured"):
        ooc.limit(Branching(), LIMIT)(drawn())


def test_tolerances_are_tight():
    assert TOLERANCE < 1e-10


@pytest.mark.parametrize("last", [nn.Identity, nn.Sigmoid, nn.ReLU, nn.ELU, nn.LeakyReLU])
@pytest.mark.parametrize("limit", ["1MiB", "6KiB"])
def test_an_output_may_be_changed_in_place(last, limit):
    """Where backward reads it, forward runs once more: PyTorch keeps another tensor, or raises."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 4), last()).double()
    expected, x = copy.deepcopy(model), torch.randn(3, 12, dtype=torch.float64)
    ((expected(x) + 1) ** 2).sum().backward()
    with ooc_cudnn.settings(device="host", machine="host"):
        y = ooc.limit(model, limit)(x)
        y += 1
        changed = y.detach().clone()
        (y**2).sum().backward()
        assert torch.equal(y, changed)
    for own, other in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-11, atol=1e-12)


def test_an_input_may_be_returned_beside_what_is_computed():
    class Beside(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)

        def forward(self, x):
            return self.conv(x), x

    model = Beside()
    expected, x = copy.deepcopy(model), torch.randn(2, 3, 4, 4, requires_grad=True)
    with ooc_cudnn.settings(device="host", machine="host"):
        y, same = ooc.limit(model, "1MiB")(x)
        (y.square().sum() + same.sum()).backward()
    assert same is x
    found, x.grad = x.grad, None
    made, _ = expected(x)
    (made.square().sum() + x.sum()).backward()
    torch.testing.assert_close(found, x.grad)


class Statically(nn.Module):
    @staticmethod
    def forward(*xs):
        return torch.relu(xs[0]) * len(xs)


class OfTheClass(nn.Module):
    gain = 2.0

    @classmethod
    def forward(cls, x, more=1.0):
        return torch.relu(x) * cls.gain * more


class OfAnObject(nn.Module):
    forward = functools.partial(lambda gain, x: torch.relu(x) * gain, 3.0)


@pytest.mark.parametrize("kind", [Statically, OfTheClass, OfAnObject])
def test_a_forward_that_is_no_method(kind):
    """It was given the model as its first argument."""
    x = drawn()
    limited = ooc.limit(kind(), LIMIT)
    close(limited(x), kind()(x), "output")
    close(ooc.limit(nn.Sequential(limited), LIMIT)(x), kind()(x), "output, as a part")


def test_a_forward_that_is_a_property_is_refused():
    class Model(nn.Module):
        @property
        def forward(self):
            return torch.relu

    with pytest.raises(ooc.UnsupportedModelError, match="property"):
        ooc.limit(Model(), LIMIT)


def test_a_traced_module_and_the_signature_of_a_forward():
    eager = torch.fx.symbolic_trace(residual().double())
    limited = ooc.limit(copy.deepcopy(eager), LIMIT)
    x = drawn()
    close(limited(x), eager(x), "output")
    assert inspect.signature(limited.forward) == inspect.signature(eager.forward)


def test_a_plan_that_does_not_fit_draws_no_random_numbers():
    class Drawing(nn.Conv2d):
        def forward(self, x):
            y = torch.dropout(super().forward(x), 0.5, True) * random.uniform(1, 2)
            return y + torch.randn(4, 3, 1, 1)

    limited = ooc.limit(Drawing(3, 3, 1), "1KiB")
    before = torch.get_rng_state(), random.getstate()
    with pytest.raises(ooc_cudnn.PlanInfeasibleError):
        limited(torch.ones(SHAPE))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def test_a_model_says_where_it_is_printed_under_what_limit_it_is():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3))
    before = repr(model)
    ooc.limit(model, "64KiB")
    assert repr(model).splitlines()[1] == "  under a limit: memory_limit 64KiB, not planned yet"
    assert "of Sequential under a limit: memory_limit 64KiB" in repr(model.forward)
    model(torch.ones(2, 3, 8, 8))
    said = repr(model).splitlines()[1]
    assert said.startswith("  under a limit: forward on ") or "training_step on " in said
    assert said.endswith(" of memory_limit 64.00 KiB")
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.extra_repr.limited is other.forward
        assert "64KiB, not planned yet" in repr(other)
    ooc.limit(model)
    assert "memory_limit of the settings" in repr(model)
    assert repr(ooc.release(model)) == before


def test_what_a_model_says_of_itself_stays():
    class Named(torch.nn.Linear):
        pass

    layer = Named(2, 3)
    assert "\n  in_features=2, out_features=3, bias=True\n" in repr(ooc.limit(layer, 0.5))
    own = ooc.release(layer).extra_repr = lambda: "mine"
    for _ in range(2):
        assert repr(ooc.limit(layer, 0.5)).splitlines()[1] == "  mine"
    assert ooc.release(layer).extra_repr is own


def test_a_limit_without_a_unit_is_an_error_that_says_so():
    with pytest.raises(ValueError, match=r"is 8 bytes: for GiB give '8GiB'$"):
        ooc.limit(torch.nn.Conv2d(3, 8, 3), "8")
