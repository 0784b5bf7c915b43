"""Gradients of outputs that forward reads further: who asks for one is told, nobody else is."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from torch import nn

import ooc_cudnn.torch as ooc
from ooc_cudnn.torch.errors import HiddenGradientError

pytestmark = pytest.mark.usefixtures("fewest_plans")


class Pyramid(nn.Module):
    """Returns a map, and what is made of it; the last one first."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = (nn.Conv2d(3, 3, 3, padding=1) for _ in range(3))

    def forward(self, x):
        h = self.first(x)
        y = self.second(h.relu())
        return self.third(y.sin()), h, y, h.flatten(1)


def image():
    return torch.linspace(-1, 1, 2 * 3 * 6 * 7).reshape(2, 3, 6, 7).requires_grad_()


def called():
    """The model, the first map, and a loss of all outputs."""
    model = ooc.limit(Pyramid(), "1MiB")
    outputs = model(image())
    return model, outputs[1], sum(each.square().sum() for each in outputs)


def all_of_it(model):
    x = image()
    outputs = model(x)
    sum(each.square().sum() + each.sin().sum() for each in outputs).backward()
    return [x.grad, *(each.grad for each in model.parameters())]


def one_by_one(model):
    weight, outputs = model.first.weight, model(image())
    return [
        torch.autograd.grad(each.square().sum(), weight, retain_graph=True)[0] for each in outputs
    ]


def of_the_first_alone(model):
    _, h, *_ = model(image())
    seen = []
    h.register_hook(lambda gradient: seen.append(gradient) or gradient * 2)
    h.square().sum().backward()
    return [*seen, model.first.weight.grad]


def of_what_is_made_of_it(model):
    last, h, *_ = model(image())
    seen, h = [], h * 1
    h.register_hook(seen.append)
    (last.square().sum() + h.square().sum()).backward()
    return [*seen, model.first.weight.grad]


def in_place(model):
    last, h, *_ = model(image())
    h.mul_(2)
    (last.square().sum() + h.sin().sum()).backward()
    return [model.first.weight.grad]


def as_anomalies_are_looked_for(model):
    with torch.autograd.set_detect_anomaly(True):
        return all_of_it(model)


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize(
    "use",
    [
        all_of_it,
        one_by_one,
        of_the_first_alone,
        of_what_is_made_of_it,
        in_place,
        as_anomalies_are_looked_for,
    ],
)
def test_who_does_not_ask_has_pytorchs_gradients(use):
    torch.testing.assert_close(use(ooc.limit(Pyramid(), "1MiB")), use(Pyramid()))


def by_autograd(model, h, loss):
    torch.autograd.grad(loss, h)


def by_autograd_unused(model, h, loss):
    torch.autograd.grad(loss, h, allow_unused=True)


def by_inputs(model, h, loss):
    loss.backward(inputs=[h])


def by_inputs_and_weights(model, h, loss):
    loss.backward(inputs=[h, model.first.weight])


def by_retaining(model, h, loss):
    h.retain_grad()
    loss.backward()


def by_a_hook(model, h, loss):
    h.register_hook(lambda gradient: gradient * 2)
    loss.backward()


def by_a_hook_of_what_is_gone(model, h, loss):
    h.register_hook(lambda gradient: gradient * 2)
    del h
    loss.backward()


def by_a_hook_of_its_node(model, h, loss):
    h.grad_fn.register_prehook(lambda gradients: (gradients[0] * 2,))
    loss.backward()


def beside_a_weight(model, h, loss):
    """What is asked for there cannot be seen before it is looked at."""
    found, weights = torch.autograd.grad(loss, [h, model.first.weight])
    assert weights.isfinite().all()
    assert "HiddenGradient" in repr(found)
    (found + found).sum()


def in_a_sum(model, h, loss):
    found, _ = torch.autograd.grad(loss, [h, model.first.weight])
    total = torch.zeros_like(h)
    total += found


def in_a_sum_by_name(model, h, loss):
    found, _ = torch.autograd.grad(loss, [h, model.first.weight])
    torch.zeros_like(h).add_(found)


def in_sums(model, h, loss):
    found, _ = torch.autograd.grad(loss, [h, model.first.weight])
    torch._foreach_add_([torch.zeros_like(h)], [found])


def in_a_sum_that_is_copied(model, h, loss):
    found, _ = torch.autograd.grad(loss, [h, model.first.weight])
    torch.zeros_like(h).copy_(torch.zeros_like(h) + found)


READERS = {
    "to_dlpack": torch.utils.dlpack.to_dlpack,
    "from_dlpack": torch.from_dlpack,
    "NumPy's from_dlpack": np.from_dlpack,
    "numpy": lambda gradient: gradient.numpy(),
    "asarray": np.asarray,
    "tolist": lambda gradient: gradient.tolist(),
    "item": lambda gradient: gradient.item(),
    "bool": bool,
    "save": lambda gradient: torch.save(gradient, io.BytesIO()),
    "pickle": pickle.dumps,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "data_ptr": lambda gradient: gradient.data_ptr(),
    "storage": lambda gradient: gradient.untyped_storage(),
    "shared": lambda gradient: gradient.share_memory_(),
}


@pytest.mark.parametrize("read", READERS)
def test_who_reads_the_memory_of_one_is_told(read):
    model, h, loss = called()
    found, _ = torch.autograd.grad(loss, [h, model.first.weight])
    # PyTorch says it of what no method of ours is asked for
    error = RuntimeError if read == "to_dlpack" else HiddenGradientError
    with pytest.raises(error, match=r"data pointer|makes another output of it"):
        READERS[read](found)


@pytest.mark.parametrize(
    "ask",
    [
        by_autograd,
        by_autograd_unused,
        by_inputs,
        by_inputs_and_weights,
        by_retaining,
        by_a_hook,
        by_a_hook_of_what_is_gone,
        by_a_hook_of_its_node,
        beside_a_weight,
        in_a_sum,
        in_a_sum_by_name,
        in_sums,
        in_a_sum_that_is_copied,
    ],
)
def test_who_asks_is_told(ask):
    model, h, loss = called()
    with pytest.raises(HiddenGradientError, match="makes another output of it") as error:
        ask(model, h, loss)
    assert "put the limit on the parts before and behind" in str(error.value)
    assert all(each.grad is None for each in model.parameters())


class Centred(nn.Module):
    """Returns numbers of the whole batch, which PyTorch makes of the first map, and others use."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = (nn.Conv2d(3, 3, 3, padding=1) for _ in range(2))

    def forward(self, x):
        y = self.first(x)
        mean = y.mean()
        return y, mean, mean + 1, self.second(x) - mean


# of y, mean and mean + 1 what they are made of, and of what is used further what is made of it
@pytest.mark.parametrize(("of", "by"), [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1)])
@pytest.mark.parametrize("other", [0.0, 1.0])
def test_a_number_of_the_batch_is_made_of_what_a_user_holds(of, by, other):
    def asked(model):
        outputs = model(image())
        loss = outputs[of].square().sum() + other * outputs[by].sin().sum()
        return torch.autograd.grad(loss, outputs[by])

    model = ooc.limit(Centred(), "1MiB")
    if of == 3:
        with pytest.raises(HiddenGradientError):
            asked(model)
    else:
        torch.testing.assert_close(asked(model), asked(Centred()))


VIEWS = {
    "flattened": lambda h: h.flatten(1),
    "permuted": lambda h: h.permute(0, 2, 3, 1),
    "transposed and flattened": lambda h: h.flatten(2).transpose(1, 2),
    "a part": lambda h: h[:, 1:, 2],
    "with an axis": lambda h: h.unsqueeze(1),
    "without an axis": lambda h: h[:, :1].squeeze(1),
    "chunks": lambda h: h.chunk(3, 1)[1],
}


class Viewed(nn.Module):
    """Returns a map, a view of it, and what is made of that."""

    def __init__(self, view):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.view = nn.Conv2d(3, 3, 3, padding=1), view
        self.scale = nn.Parameter(torch.full((), 1.5))

    def forward(self, x):
        h = self.first(x)
        v = self.view(h)
        return h, v, (v * self.scale).sin()


@pytest.mark.parametrize("view", sorted(VIEWS.keys() - {"chunks"}))
@pytest.mark.parametrize("other", [0, 1])
def test_who_asks_for_the_gradient_of_a_view_is_told(view, other):
    _, v, y = ooc.limit(Viewed(VIEWS[view]), "1MiB")(image())
    with pytest.raises(HiddenGradientError):
        torch.autograd.grad(y.square().sum() + other * v.sum(), v, allow_unused=True)


@pytest.mark.parametrize("view", VIEWS)
def test_who_asks_for_other_gradients_beside_a_view_has_them(view):
    def found(model):
        def loss():
            return sum(each.square().sum() + each.sum() for each in model(image()))

        weights = torch.autograd.grad(loss(), [*model.parameters()])
        loss().backward()
        h, v, _ = model(image())
        return [*weights, *(p.grad for p in model.parameters()), *torch.autograd.grad(v.sum(), h)]

    limited = found(ooc.limit(Viewed(VIEWS[view]), "1MiB"))
    torch.testing.assert_close(limited, found(Viewed(VIEWS[view])), rtol=1e-4, atol=1e-4)


class Written(nn.Module):
    """Changes its argument in place, and makes its result of that."""

    def __init__(self, change):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = (nn.Conv2d(3, 3, 3, padding=1) for _ in range(2))
        self.change = change

    def forward(self, x):
        self.change(self, x)
        return self.first(x)


CHANGES = {
    "rectified": lambda s, x: x.relu_(),
    "scaled": lambda s, x: x.mul_(2),
    "a part": lambda s, x: x[:, 0].zero_(),
    "a view": lambda s, x: x.view(2, 3, -1)[:, 1].mul_(3),
    "a layer is added": lambda s, x: x.add_(s.second(x.clone())),
}


def argument_and_result(model, shown=lambda z: z):
    z = shown(image() * 2)
    return z, model(z)


def of_both(model):
    z, y = argument_and_result(model)
    return torch.autograd.grad(y.sin().sum() + z.square().sum(), z)


def of_the_result(model):
    z, y = argument_and_result(model)
    return torch.autograd.grad(y.sin().sum(), z)


def of_the_result_beside_a_weight(model):
    z, y = argument_and_result(model)
    found = torch.autograd.grad(y.sin().sum(), [z, model.first.weight])
    return found[0] + 0


def kept_in_the_argument(model):
    z, y = argument_and_result(model)
    y.sin().sum().backward(inputs=[z])
    return z.grad


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    "ask", [of_both, of_the_result, of_the_result_beside_a_weight, kept_in_the_argument]
)
def test_who_asks_for_the_gradient_of_a_changed_argument_is_told(ask, change):
    assert ask(Written(CHANGES[change])) is not None
    with pytest.raises(HiddenGradientError, match=r"x = x\.relu\(\)"):
        ask(ooc.limit(Written(CHANGES[change]), "1MiB"))


@pytest.mark.parametrize("change", CHANGES)
def test_who_asks_for_other_gradients_of_a_changed_argument_has_them(change):
    def found(model):
        z, y = argument_and_result(model)
        (of_z,) = torch.autograd.grad(z.square().sum(), z, retain_graph=True)
        return y, z, of_z

    def trained(model):
        x = image()
        z = x * 2
        y = model(z)
        w = z * 3
        (y.sin().sum() + w.square().sum()).backward()
        return y, z, x.grad, *(each.grad for each in model.parameters())

    for use in (found, trained):
        eager = use(Written(CHANGES[change]))
        limited = use(ooc.limit(Written(CHANGES[change]), "1MiB"))
        torch.testing.assert_close(limited, eager, rtol=1e-4, atol=1e-4)


def as_a_view(x):
    return x.flatten(1).view(x.shape)


@pytest.mark.parametrize("change", CHANGES)
def test_who_asks_for_the_gradient_of_a_changed_view_is_told(change):
    def argument():
        model = ooc.limit(Written(CHANGES[change]), "1MiB")
        z, y = argument_and_result(model, as_a_view)
        return model.first.weight, z, y.sin().sum() + z.square().sum()

    for ask in (
        lambda w, z, loss: torch.autograd.grad(loss, z),
        lambda w, z, loss: torch.autograd.grad(loss, [z, w])[0] + 0,
        lambda w, z, loss: loss.backward(inputs=[z]),
        lambda w, z, loss: (z.retain_grad(), loss.backward()),
        lambda w, z, loss: (z.register_hook(lambda gradient: gradient * 2), loss.backward()),
    ):
        with pytest.raises(HiddenGradientError):
            ask(*argument())


@pytest.mark.parametrize("change", CHANGES)
def test_who_asks_for_other_gradients_of_a_changed_view_has_them(change):
    def found(model):
        z, y = argument_and_result(model, as_a_view)
        (of_z,) = torch.autograd.grad(z.square().sum(), z, retain_graph=True)
        (of_w,) = torch.autograd.grad(y.sin().sum(), model.first.weight)
        x = image()
        z = as_a_view(x * 2)
        y = model(z)
        (y.sin().sum() + (z * 3).square().sum()).backward()
        return y, z, of_z, of_w, x.grad, *(each.grad for each in model.parameters())

    limited = found(ooc.limit(Written(CHANGES[change]), "1MiB"))
    torch.testing.assert_close(limited, found(Written(CHANGES[change])), rtol=1e-4, atol=1e-4)


def test_an_argument_that_a_failed_call_was_to_change_has_its_history():
    class Checked(Written):
        def forward(self, x):
            y = super().forward(x)
            torch._assert_async((y.square() < 0).all())
            return y

    x = image()
    z = x * 2
    before = z.detach().clone()
    with pytest.raises(RuntimeError):
        ooc.limit(Checked(CHANGES["scaled"]), "1MiB")(z)
    assert torch.equal(z, before)
    z.sum().backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, 2))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_who_asks_behind_torch_compile_for_a_changed_argument_is_told():
    model = Written(CHANGES["rectified"])
    compiled = torch.compile(model, backend="ooc_cudnn", options={"memory_limit": "1MiB"})
    z = image() * 2
    y = compiled(z)
    with pytest.raises(HiddenGradientError):
        torch.autograd.grad(y.sum() + z.sum(), z)


def test_who_asks_behind_torch_compile_is_told():
    compiled = torch.compile(
        Pyramid(), backend="ooc_cudnn", options={"memory_limit": "1MiB"}, fullgraph=True
    )
    _, h, y, _ = compiled(image())
    with pytest.raises(HiddenGradientError):
        torch.autograd.grad(y.sum(), h)
