"""What the library has not PyTorch computes within the network: some images at a time, exactly."""

import copy
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.checkpoint import checkpoint

import ooc_cudnn
import ooc_cudnn.torch as ooc
from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.torch.lowering.fallback_runner import FallbackRunner, _Counted, tensor_on
from tests.support import sampling
from tests.support.torch_checks import Of, Result, check, close, same
from tests.support.torchvision_models import models

pytestmark = pytest.mark.usefixtures("fewest_plans")

DERIVES_AMINMAX = pytest.mark.skipif(
    torch.__version__ < "2.13", reason="PyTorch has no derivative of aminmax"
)


def _shufflenet():
    kind = models().shufflenetv2.ShuffleNetV2
    return kind([2, 1, 1], [8, 8, 16, 16, 16], num_classes=3), (2, 3, 32, 32)


def _vit():
    kind = models().vision_transformer.VisionTransformer
    return kind(16, 8, 1, 2, 8, 16, num_classes=3), (3, 3, 16, 16)


def _swin():
    kind = models().swin_transformer.SwinTransformer
    options = {"num_classes": 3, "stochastic_depth_prob": 0.0}
    return kind([2, 2], 4, [2], [2], [2, 2], **options), (2, 3, 16, 16)


def _maxvit():
    kind = models().maxvit.MaxVit
    options = {"stochastic_depth_prob": 0.0, "num_classes": 3}
    return kind((16, 16), 4, 2, [4], [1], 2, **options), (2, 3, 16, 16)


#: Shares of what keeping all takes: to search for a plan under less takes long.
@pytest.mark.parametrize(
    ("make", "shares"),
    [(_swin, ()), (_vit, (1 / 2,)), (_shufflenet, (1 / 4,)), (_maxvit, (1 / 2,))][
        : sampling.number(1, of=4)
    ],
)
def test_a_model_of_torchvision_is_the_same_under_a_limit(make, shares):
    torch.manual_seed(0)
    model, shape = make()
    check(model.double(), torch.randn(shape, dtype=torch.float64), shares=shares)


class Around(nn.Module):
    """An operation between two layers, which reads a parameter, too."""

    def __init__(self, operation, before=2, after=2):
        super().__init__()
        self.first, self.operation = nn.Conv2d(2, before, 1), operation
        self.w = nn.Parameter(torch.randn(1, before, 1, 4))
        self.last = nn.Conv2d(after, 1, 1)

    def forward(self, x):
        return self.last(self.operation(self.first(x), self.w))


#: By what is to be said of them: of how many images at once they are computed.
APART = {
    "along an axis": lambda x, w: torch.softmax(x * w, 1).cumsum(-1).roll(1, 2).flip(3),
    "a product of matrices": lambda x, w: x @ x.transpose(2, 3) @ w[0, 0, 0].diag(),
    "products by a letter": lambda x, w: torch.einsum("nchw,ncvw,ncvx->nchx", x, x, x) * w,
    "windows": lambda x, w: (
        F.layer_norm(
            x.reshape(4, 2, 2, 2, 4).permute(0, 2, 1, 3, 4).reshape(8, 4, 4) * w[0, 0], (4, 4)
        )
        .view(4, 2, 2, 2, 4)
        .transpose(1, 2)
        .flatten(2, 3)
        .view(4, 2, 4, 4)
    ),
    "images second": lambda x, w: (
        (
            (x.flatten(2).permute(2, 0, 1).reshape(64, 2).square() + 1)
            .view(16, 4, 2)
            .permute(1, 2, 0)
        ).unflatten(2, (4, 4))
        * w
    ),
    "joined": lambda x, w: torch.stack([x * w, x.abs()], 2).flatten(1, 2)[:, ::2],
    "parts": lambda x, w: torch.cat([(x * w).chunk(2, 1)[1], x.narrow(1, 0, 1)], 1),
    "images": lambda x, w: F.pixel_unshuffle(F.pad(x * w, (1, 1, 2, 0), mode="replicate"), 1)[
        :, :, 2:, 1:5
    ],
    "broadcast": lambda x, w: torch.where(x > 0, x, w.expand(4, -1, 4, -1)).clamp(max=1.5),
}
TOGETHER = {
    "over images": lambda x, w: x * w - x.mean(0, keepdim=True),
    "images in turn": lambda x, w: x.flip(0) * w,
    "one image": lambda x, w: x * w + x[1],
    "all in one": lambda x, w: x / x.norm() * w,
    "places of maxima": lambda x, w: (
        F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2) * w
    ),
}


@pytest.mark.parametrize("name", [*APART, *TOGETHER])
def test_operations_between_layers_are_pytorchs(name):
    torch.manual_seed(0)
    model = Around({**APART, **TOGETHER}[name]).double()
    check(model, torch.randn(4, 2, 4, 4, dtype=torch.float64), shares=())
    under = ooc.limit(model, "1MiB")
    under(torch.randn(4, 2, 4, 4, dtype=torch.float64))
    found = [each for each in under.forward.plan.tasks if each.outside_bytes is not None]
    assert found
    calls = [
        phase.call for phase in under.forward.last.step._step.phases if phase.name.endswith("side")
    ]
    assert {call.images > 1 for call in calls} == {name in APART}


def test_a_plan_names_what_pytorch_computes_and_what_it_takes():
    model = Around(lambda x, w: torch.sort(x * w, 1).values)
    plan = ooc.plan(model, (8, 2, 64, 4), memory_limit="64KiB", machine="h200")
    assert plan.outside_bytes > 0
    assert plan.device_bytes + plan.outside_bytes <= plan.memory_limit
    found = [each for each in plan.tasks if each.outside_bytes is not None]
    assert [each.name.partition(" ")[2] for each in found if "gradient" in each.name] == [
        "mul+sort gradient outside"
    ]
    said = plan.explain()
    assert "computed outside of the library" in said
    assert "mul+sort outside" in said
    assert "because of aten.mul.Tensor: mul.multiply: b must have the shape of a" in said


class Large(nn.Module):
    """An operation that takes more of a map than its layers do, which read it, too."""

    def __init__(self):
        super().__init__()
        self.first, self.w = nn.Conv2d(2, 4, 1), nn.Parameter(torch.randn(1, 4, 1, 1))
        self.one, self.other = nn.Conv2d(4, 2, 1), nn.Conv2d(4, 2, 1)

    def forward(self, x):
        h = self.first(x)
        dropped = F.dropout(torch.sort(h * self.w, 1).values, 0.25).cumsum(2)
        return self.one(dropped) + self.other(h)


@pytest.mark.parametrize(("limit", "moved"), [("1GiB", 0), ("600KiB", 2), ("64KiB", 4)])
def test_what_does_not_fit_is_computed_on_the_host(limit, moved):
    torch.manual_seed(0)
    model = Large().double()
    x = torch.randn(2, 2, 64, 64, dtype=torch.float64)
    expected = Result(ooc.limit(copy.deepcopy(model), "2GiB"), [x])
    under = ooc.limit(model, limit)
    same(Result(under, [x]), expected)
    plan = under.forward.plan
    assert len(plan.on_host) == moved
    assert plan.device_bytes + plan.outside_bytes <= plan.memory_limit
    assert (" of the host" in plan.explain()) == bool(moved)
    assert type(plan).from_json(plan.to_json()) == plan


def test_what_fits_neither_there_nor_on_the_host_is_one_error():
    with (
        ooc_cudnn.settings(host_memory_limit="400KiB"),
        pytest.raises(PlanInfeasibleError, match=r"gradient outside.* no plan within 64.*KiB"),
    ):
        ooc.limit(Large().double(), "64KiB")(torch.randn(2, 2, 64, 64, dtype=torch.float64))


def test_a_plan_says_what_lies_beside_it():
    plan = ooc.plan(Large(), (8, 2, 64, 64), memory_limit="1MiB", machine="h200")
    held = 4 * sum(each.numel() for each in Large().parameters())
    assert f"gradients of {held} B" in plan.explain()
    assert f"an optimizer's state does not count: {held} B with momentum" in plan.explain()
    behind = nn.Sequential(nn.Conv2d(2, 4, 1), nn.Flatten(0), nn.Softmin(0))
    plan = ooc.plan(behind, (2, 2, 8, 8), memory_limit="1MiB", machine="h200", with_gradients=False)
    assert "behind the network PyTorch computes" in plan.explain()


def test_more_is_computed_at_once_where_there_is_more_room():
    model = Around(lambda x, w: torch.sort(x * w, 1).values)
    shape = (64, 2, 64, 4)
    small, large = (
        ooc.plan(model, shape, memory_limit=limit, machine="h200") for limit in ("96KiB", "1GiB")
    )
    assert small.outside_bytes < large.outside_bytes


def test_what_several_read_is_made_once():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.one = nn.Conv2d(2, 2, 1), nn.Conv2d(2, 2, 1)

        def forward(self, x):
            h = torch.sort(self.first(x), 1).values
            return self.one(h.transpose(2, 3)) + h.tanh()

    model = ooc.limit(Shared().double(), "1MiB")
    model(torch.randn(2, 2, 4, 4, dtype=torch.float64))
    names = [each.name for each in model.forward.plan.tasks]
    assert sum("sort" in name and "gradient" not in name for name in names) == 1


def test_running_statistics_of_what_pytorch_computes_are_pytorchs():
    """They were refused. (More of them: `test_normalizing`)"""
    torch.manual_seed(0)
    model = nn.Sequential(nn.InstanceNorm2d(2, track_running_stats=True), nn.Conv2d(2, 2, 1))
    check(model.double(), torch.randn(2, 2, 4, 4, dtype=torch.float64), shares=())


def test_random_numbers_are_those_of_a_seed_under_any_limit():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
    eager = nn.Sequential(layer, nn.Linear(8, 4)).double()
    x = torch.randn(6, 5, 8, dtype=torch.float64)
    found = []
    for limit in ("4GiB", "40KiB"):
        model = ooc.limit(copy.deepcopy(eager), limit)
        torch.manual_seed(3)
        one, two = model(x), model(x)
        one.square().sum().backward()
        assert not torch.equal(one, two)
        found.append((one, two, model[0].self_attn.in_proj_weight.grad))
    for at, (large, small) in enumerate(zip(*found, strict=True)):
        close(small, large, f"number {at} under the small limit")
    gradient = found[0][2][0, 0].item()

    def total(moved):
        model = copy.deepcopy(eager)
        with torch.no_grad():
            model[0].self_attn.in_proj_weight[0, 0] += moved
            torch.manual_seed(3)
            return ooc.limit(model.train(), "4GiB")(x).square().sum().item()

    assert gradient == pytest.approx((total(1e-5) - total(-1e-5)) / 2e-5, rel=1e-5)
    model.eval()
    close(model(x), eager.eval()(x), "in evaluation", tolerance=1e-12)


def test_random_integers_that_two_parts_read_are_drawn_once():
    class Apart(Around):
        def forward(self, x):
            h = self.first(x)
            drawn = torch.randint_like(h, 2**62, dtype=torch.int64)
            return self.last(h * (drawn % 7)) - self.last(h * (drawn % 7 - 1)), drawn

    torch.manual_seed(0)
    model, x = Apart(None).double(), torch.randn(4, 2, 4, 4, dtype=torch.float64)
    bias = model.last.bias[:, None, None]
    expected = (model.last(model.first(x)) - bias).detach()
    y, drawn = ooc.limit(model, "1MiB")(x)
    close(y, expected, "their difference")
    assert drawn.unique().numel() == drawn.numel()
    assert drawn.max() > 2**60


@DERIVES_AMINMAX
def test_results_of_one_operation_that_layers_read_apart():
    class Both(Around):
        def forward(self, x):
            least, most = torch.aminmax(self.first(x), dim=1, keepdim=True)
            one, other = torch.cat([least, most], 1), torch.cat([most, least * 2], 1)
            return self.last(one) + self.last(other)

    torch.manual_seed(0)
    check(Both(None).double(), torch.randn(4, 2, 4, 4, dtype=torch.float64), shares=())


def test_a_tensor_like_an_input_reads_no_more_than_its_shape():
    class Padded(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 2, 1)

        def forward(self, x):
            mask = x.new_zeros(4, 4)
            mask[1:, :2] = 2.0
            return self.conv(torch.cat([x, torch.ones_like(x[:, :1])], 1)) + mask

    torch.manual_seed(0)
    model = Padded().double()
    check(model, torch.randn(2, 2, 4, 4, dtype=torch.float64), shares=())


@pytest.mark.every_case
def test_inference_is_the_same():
    torch.manual_seed(0)
    model, shape = _vit()
    eager = copy.deepcopy(model).eval()
    x = torch.randn(shape)
    with torch.no_grad():
        expected = eager(x)
        found = ooc.limit(model, "1MiB").eval()(x)
    close(found, expected, "output", tolerance=1e-5)


def test_a_grid_that_depends_on_no_input_is_of_all_images():
    torch.manual_seed(0)
    grid = torch.rand(2, 4, 4, 2, dtype=torch.float64)
    model = Around(lambda x, w: F.grid_sample(x * w, grid, align_corners=False)).double()
    check(model, torch.randn(2, 2, 4, 4, dtype=torch.float64), shares=())


class Within(nn.Module):
    """A model whose call is within something else."""

    def __init__(self, model, around):
        super().__init__()
        self.model, self.around = model, around

    def forward(self, x):
        return self.around(self.model, x)


def saved_on_the_cpu(model, x):
    with torch.autograd.graph.save_on_cpu():
        return model(x)


@pytest.mark.parametrize("around", [partial(checkpoint, use_reentrant=False), saved_on_the_cpu])
def test_a_first_call_shows_hooks_of_saved_tensors_no_more_than_a_later_one(around):
    torch.manual_seed(0)
    eager = Around(lambda x, w: torch.sort(x * w, 1).values).double()
    x = torch.randn(2, 2, 4, 4, dtype=torch.float64)
    under = ooc.limit(copy.deepcopy(eager), "1MiB")
    same(Result(Within(under, around), [x]), Result(Within(eager, around), [x]))


def test_a_share_of_the_images_takes_no_more_than_planned_behind_others(monkeypatch):
    found, backward = [], FallbackRunner.backward

    def measured(region, inputs, dys, gradients, how):
        with _disable_current_modes():
            given = [tensor_on(each) for each in (*dys.values(), *inputs, *gradients.values())]
        with monkeypatch.context() as patched, _Counted(given) as counted:
            arrays = iter(given)
            patched.setattr(
                "ooc_cudnn.torch.lowering.fallback_runner.tensor_on", lambda _: next(arrays)
            )
            backward(region, inputs, dys, gradients, how)
        planned = region.cost(how.at_once, tuple(gradients)).held_bytes
        found.append((how.at_once, counted.most, planned))

    monkeypatch.setattr(FallbackRunner, "backward", measured)
    model = ooc.limit(Around(lambda x, w: torch.sort(x, 1).values), "16KiB")
    model(torch.randn(8, 2, 16, 4)).sum().backward()
    ((at_once, most, planned),) = found
    assert at_once < 8
    assert most == planned


@DERIVES_AMINMAX
def test_several_results_are_computed_once_some_images_at_a_time(monkeypatch):
    runs = []

    def noted(name):
        was = getattr(FallbackRunner, name)

        def run(region, inputs, results, *others):
            runs.append((name, region.name, others[-1].at_once, len(results)))
            return was(region, inputs, results, *others)

        return run

    for name in ("forward", "backward"):
        monkeypatch.setattr(FallbackRunner, name, noted(name))
    torch.manual_seed(0)
    eager = Apart().double()
    x = torch.randn(8, 2, 16, 4, dtype=torch.float64)
    for limit, at_once in (("1GiB", 8), ("64KiB", 1)):
        limited = ooc.limit(copy.deepcopy(eager), limit)
        same(Result(limited, [x]), Result(copy.deepcopy(eager), [x]))
        assert [run for run in runs if run[0] == "forward"] == [("forward", "aminmax", 8, 2)]
        assert {run for run in runs if run[0] == "backward"} == {
            ("backward", "aminmax", at_once, 2)
        }
        runs.clear()


def test_all_results_of_a_layer_that_draws_are_of_the_same_numbers():
    """Gradients are those of the numbers that forward has drawn, by central differences."""

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.c, self.d = nn.Conv2d(2, 2, 1), nn.Conv2d(2, 2, 1)
            self.lstm = nn.LSTM(2, 2, 2, dropout=0.5, batch_first=True)

        def forward(self, x):
            y, (h, c) = self.lstm(self.c(x).mean(3).mT)
            return self.d(y.mT[..., None]).sum() + (h * c).square().sum()

    torch.manual_seed(0)
    model = ooc.limit(Recurrent().double(), "1GiB")
    x = torch.randn(3, 2, 5, 4, dtype=torch.float64)

    def loss():
        torch.manual_seed(5)
        return model(x)

    loss().backward()
    found, bias = model.c.bias.grad.clone(), model.c.bias.data
    for at in range(2):
        values = []
        for shift in (1e-6, -2e-6):
            bias[at] += shift
            values.append(float(loss().detach()))
        bias[at] += 1e-6
        assert abs((values[0] - values[1]) / 2e-6 - found[at]) < 1e-7


class Apart(nn.Module):
    """The least and the largest of channels, each to a layer."""

    def __init__(self):
        super().__init__()
        self.c, self.d, self.e = nn.Conv2d(2, 2, 1), nn.Conv2d(1, 2, 1), nn.Conv2d(1, 2, 1)

    def forward(self, x):
        least, largest = self.c(x).aminmax(dim=1, keepdim=True)
        return self.d(least) + self.e(largest)


class OfSixAxes(nn.Module):
    """A buffer and a number of more axes than a tensor of the network has, beside images."""

    def __init__(self):
        super().__init__()
        self.conv, self.linear = nn.Conv3d(2, 3, 1), nn.Linear(24, 3)
        self.register_buffer("gain", torch.rand(4, 1, 3, 2, 2, 2))

    def forward(self, x):
        y = self.conv(x).unsqueeze(1)
        return self.linear(((torch.full_like(y, 2.0) + y) * self.gain).flatten(1))


def test_what_is_given_may_have_six_axes():
    torch.manual_seed(0)
    check(OfSixAxes().double(), torch.randn(4, 2, 2, 2, 2, dtype=torch.float64))


@pytest.mark.parametrize("dtype", ["bool", "int8", "int16", "uint16", "uint32", "uint64"])
@pytest.mark.parametrize("of", ["numpy", "pytorch"])
def test_arrays_of_integers_meet_maps(dtype, of, few_plans):
    """Those of types that the network has not are brought to one before the call."""

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x, mask):
            return self.conv(x) * mask

    torch.manual_seed(0)
    model, x = Masked().double(), torch.randn(2, 3, 8, 9, dtype=torch.float64)
    mask = np.random.default_rng(0).integers(0, 2, (2, 1, 8, 9)).astype(dtype)
    mask.flags.writeable = of == "pytorch"
    expected = model(x, torch.from_numpy(mask.copy()))
    given = mask if of == "numpy" else torch.from_numpy(mask)
    with ooc_cudnn.settings(device="host", machine="host"):
        with torch.no_grad():
            close(ooc.infer(model, x, given, memory_limit="256KiB"), expected, "inferred")
        close(ooc.limit(model, "256KiB")(x, given), expected, "result")


class Met(nn.Module):
    """What two convolutions of a batch each make, met by an operation."""

    def __init__(self, meet):
        super().__init__()
        self.one, self.other, self.meet = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 3), meet

    def forward(self, x, t):
        return self.meet(self.one(x), self.other(t))


def pooled(y):
    return y.mean((2, 3))


MEETINGS = {
    "templates": lambda y, t: F.conv2d(y, t, padding=1),
    "templates as gates": lambda y, t: y * F.conv2d(y, t, padding=1).sigmoid(),
    "one kernel of the batch": lambda y, t: (
        y[:, :2] * F.conv2d(y, t.mean((2, 3)).view(4, 4, 1, 1)[:2])
    ),
    "transposed": lambda y, t: F.conv_transpose2d(y, t),
    "slopes": lambda y, t: F.prelu(y, t.mean((1, 2, 3))),
    "prototypes": lambda y, t: F.linear(F.normalize(pooled(y)), F.normalize(pooled(t))),
    "a codebook": lambda y, t: pooled(t).index_select(0, y.argmax(1).flatten() % 4),
    "chosen channels": lambda y, t: y.index_select(1, pooled(t).argmax(1) % 4),
    "scales of rows": lambda y, t: F.layer_norm(y[..., :4], (4,), t.mean((1, 2, 3))),
}


@pytest.mark.parametrize("limit", ["4MiB", "20KiB"])
@pytest.mark.parametrize("name", MEETINGS)
def test_a_weight_whose_rows_are_images_is_read_whole(name, limit):
    """Its rows are as many as the images: they are no part of theirs."""
    torch.manual_seed(0)
    eager = Met(MEETINGS[name]).double()
    limited = ooc.limit(copy.deepcopy(eager), limit)
    x, t = (torch.randn(4, 3, side, side, dtype=torch.float64) for side in (8, 5))
    outputs = []
    for model in (eager, limited):
        outputs.append(model(x, t))
        outputs[-1].square().sum().backward()
    close(outputs[1], outputs[0], "output")
    for one, other in zip(limited.parameters(), eager.parameters(), strict=True):
        close(one.grad, other.grad, "gradient", least=1.0)


class Blank(nn.Module):
    """Keys with blanks: of parts, parameters, and of what is made once for a shape."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleDict({"a b": nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))})
        self.gains, self.cache = nn.ParameterDict({"a b": nn.Parameter(torch.ones(1))}), {}

    def forward(self, x):
        y, key = self.parts["a b"](x) * self.gains["a b"], tuple(x.shape[-2:])
        if key not in self.cache:
            self.cache[key] = torch.linspace(0, 1, key[1], dtype=x.dtype)
        return y + self.cache[key]


def emptied(x):
    empty = torch.zeros(len(x), 0, *x.shape[2:], dtype=x.dtype)
    return torch.cat([x, x.new_zeros(len(x), 0, *x.shape[2:]), empty], 1)


@pytest.mark.parametrize("make", [Blank, lambda: nn.Sequential(nn.Conv2d(3, 2, 1), Of(emptied))])
def test_keys_with_blanks_and_empty_parts(make):
    torch.manual_seed(0)
    eager, x = make().double(), torch.randn(2, 3, 5, 5, dtype=torch.float64)
    limited = ooc.limit(copy.deepcopy(eager), "1MiB")
    for _ in range(2):
        close(limited(x), eager(x), "output")


def test_anomalies_are_looked_for_in_the_call_alone():
    """Not where costs are found, on tensors without numbers."""
    model = ooc.limit(
        nn.Sequential(nn.Conv2d(3, 4, 1), Of(lambda x: torch.sort(x, 1).values)), 9999
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Anomaly Detection has been enabled")
        with torch.autograd.set_detect_anomaly(True):
            model(torch.randn(2, 3, 5, 5)).sum().backward()


def test_what_has_no_derivative_says_where():
    model = ooc.limit(nn.Sequential(nn.Conv2d(3, 4, 1), Of(lambda x: x // 2)), "1MiB")
    with pytest.raises(
        ooc.UnsupportedOperationError, match=r"(?s)floor_divide.*y.detach\(\).*// 2"
    ):
        model(torch.randn(2, 3, 5, 5))


@torch.library.custom_op("fallback_runner::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    """Operator of a user's own, whose backward makes a tensor."""
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


def test_a_backward_that_makes_a_tensor_by_default_is_refused_with_what_to_write():
    twice.register_autograd(lambda ctx, g: g * torch.full(g.shape, 2.0))
    model = ooc.limit(nn.Sequential(nn.Conv2d(3, 4, 1), Of(twice)), "1MiB")
    with pytest.raises(ooc.UnsupportedOperationError, match=r"write torch\.full\(\.\.\., device="):
        model(torch.ones(2, 3, 4, 4))
    twice.register_autograd(lambda ctx, g: g * torch.full(g.shape, 2.0, device=g.device))
    model(torch.ones(2, 3, 4, 4)).sum().backward()


def test_what_shows_an_input_is_read_and_handed_out():
    """Without gradients an input that asks for them is read detached, within and behind."""

    class Showing(nn.Module):
        def forward(self, x):
            self.kept = x.mean()
            return self.kept * 2, torch.einsum("...i->...", x) * 0.1

    eager, limited = Showing(), ooc.limit(Showing(), "1MiB")
    x = torch.randn(2, 2, 6, 6, 6, requires_grad=True)
    with torch.no_grad():
        for one, other in zip(limited(x), eager(x), strict=True):
            close(one, other, "output", tolerance=1e-5)
