"""Models of PyTorch on a card: what they make, whoever keeps what; and that steps are recorded."""

import copy
import gc

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.arrays.making import empty_in
from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.tuning_database import tables_of
from ooc_cudnn.pipeline import graph_replay

torch = pytest.importorskip("torch")
import ooc_cudnn.torch as ooc  # noqa: E402

SHAPE, STEPS = (4, 3, 16, 16), 6


def model():
    """Enough tasks to be recorded; batch norm, a sum and a flattened end."""
    nn = torch.nn
    torch.manual_seed(0)
    blocks = [
        nn.Sequential(nn.Conv2d(n, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        for n in (3, 8, 8, 8)
    ]
    ends = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    return nn.Sequential(*blocks, *ends).cuda().double()


@pytest.fixture(autouse=True)
def memory_from_pytorch_is_for_these_tests_alone():
    """From a model's first call on, the library takes memory from PyTorch's pool."""
    arena = get_device("cuda").arena
    before = arena._allocate, arena._settle
    yield
    arena.release()
    arena._allocate, arena._settle = before
    torch.cuda.empty_cache()


@pytest.fixture
def pair():
    """A model under a limit, and the same one without."""
    eager = model()
    return ooc.limit(copy.deepcopy(eager), "1GiB"), eager


def drawn(at):
    torch.manual_seed(at)
    return torch.randn(SHAPE, dtype=torch.float64, device="cuda")


def gradients(model):
    return [each.grad.clone() for each in model.parameters()]


def close(found, expected):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


def test_outputs_that_are_kept_stay_as_they_are_and_steps_are_recorded(pair, recorded):
    """Each output is kept, and memory between is taken: PyTorch's addresses move."""
    x = drawn(0)
    kept, others = [], []
    for at in range(STEPS):
        outputs = []
        x.copy_(drawn(at))
        for each in pair:
            each.zero_grad(set_to_none=True)
            y = each(x)
            others.append(torch.empty(64 * (at + 1), device="cuda"))
            (y * y).sum().backward()
            outputs.append(y)
        kept.append((*outputs, outputs[1].detach().clone()))
        close(gradients(pair[0]), gradients(pair[1]))
    assert len({y.data_ptr() for y, _, _ in kept}) == STEPS
    close([y for y, _, _ in kept], [expected for _, _, expected in kept])
    assert 1 <= len(recorded) <= 2 * graph_replay.MOST_RECORDED
    assert None not in recorded
    count = len(recorded)
    pair[0].zero_grad(set_to_none=True)
    pair[0](x).sum().backward()
    assert len(recorded) <= count + 2


def test_what_was_recorded_runs_after_memory_was_given_back(recorded):
    """A ConvNeXt in bfloat16 ended in a segmentation fault: other memory was at its addresses."""
    eager = model()
    limited = ooc.limit(copy.deepcopy(eager), "1GiB")
    x = drawn(0).cpu().pin_memory()
    arena = get_device("cuda").arena

    def step(each, x):
        each.zero_grad(set_to_none=True)
        each(x).square().sum().backward()
        return gradients(each)

    for _ in range(4):
        expected = step(eager, x.cuda())
        for _ in range(STEPS):
            close(step(limited, x), expected)
        for each in (eager, limited):
            each.zero_grad(set_to_none=True)
        gc.collect()
        torch.cuda.synchronize()
        arena.release()
        torch.cuda.empty_cache()
    assert recorded
    assert None not in recorded


def test_what_was_recorded_runs_after_other_engines_were_chosen(recorded):
    """A ConvNeXt in bfloat16 ended in a segmentation fault, once another model was timed."""
    nn = torch.nn
    torch.manual_seed(0)
    eager = nn.Sequential(nn.Conv2d(3, 32, 4, stride=4), *(
        nn.Sequential(nn.Conv2d(32, 32, 7, padding=3, groups=32), nn.Conv2d(32, 64, 1), nn.GELU(),
                      nn.Conv2d(64, 32, 1))
        for _ in range(3)
    )).cuda()  # fmt: skip
    limited = ooc.limit(copy.deepcopy(eager), "1GiB")
    x = torch.randn(8, 3, 128, 128, device="cuda")

    def step(model):
        model.zero_grad(set_to_none=False)
        with torch.autocast("cuda", torch.bfloat16):
            y = model(x)
        y.float().square().sum().backward()
        return gradients(model)

    expected = step(eager)
    for at in range(2 * STEPS):
        if at == STEPS:
            assert recorded
            assert None not in recorded
            tables_of(get_device("cuda")).forget_plans()
            ooc.limit(copy.deepcopy(eager), "1GiB")(x[:2]).sum().backward()
            gc.collect()
        for one, other in zip(step(limited), expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0.1, atol=0.05 * float(other.abs().max()))


@pytest.mark.parametrize("limit", ["1GiB", "24MiB"])
def test_the_host_goes_on_once_its_memory_was_read(recorded, limit):
    """What is given may change as soon as a call returns, which is before the card is done."""
    nn = torch.nn
    torch.manual_seed(0)
    layers = [nn.Conv2d(n, 16, 3, padding=1) for n in (3, *[16] * 6)]
    eager = nn.Sequential(*(e for layer in layers for e in (layer, nn.ReLU()))).cuda().double()
    limited = ooc.limit(copy.deepcopy(eager), limit)
    x = torch.empty(2, 3, 128, 128, dtype=torch.float64).pin_memory()
    given = [torch.randn(x.shape, dtype=torch.float64) for _ in range(2 * STEPS)]
    expected = []
    for each in given:
        eager.zero_grad()
        out = eager(each.cuda())
        out.square().mean().backward()
        expected.append((gradients(eager), out.detach().cpu()))
    taken = "pinned", (2, 16, 128, 128), "float64", "channels_first"
    for each, (of_parameters, out) in zip(given, expected, strict=True):
        x.copy_(each)
        limited.zero_grad()
        limited(x).square().mean().backward()
        x.fill_(float("nan"))
        for other in [empty_in(get_device("cuda"), *taken) for _ in range(3)]:
            other[...] = np.nan
        close(gradients(limited), of_parameters)
        with torch.no_grad():
            x.copy_(each)
            y = limited(x)
            x.fill_(float("nan"))
            close([y.cpu()], [out])
            del y
    assert recorded
    assert None not in recorded


class WithOthers(torch.nn.Module):
    """Convolutions, and between them what PyTorch computes."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(
            torch.nn.Conv2d(n, 8, 3, padding=1) for n in (3, 8, 8, 8, 8)
        )
        self.function = function

    def forward(self, x):
        for layer in self.layers:
            x = self.function(torch.relu(layer(x)))
        return x


@torch.library.custom_op("ooc_tests::doubled_by_host", mutates_args=())
def doubled_by_host(x: torch.Tensor) -> torch.Tensor:
    return x * (2.0 if float(x.sum()) == float(x.sum()) else 0.0)


doubled_by_host.register_fake(lambda x: torch.empty_like(x))
doubled_by_host.register_autograd(lambda context, gradient: 2 * gradient)


def products(x):
    """cuBLAS has a workspace for each stream."""
    scores = torch.einsum("nchw,nchv->nhwv", x, x).softmax(3)
    return x + scores.sum((1, 3))[:, None, :, None]


def masked(x):
    """A number where a mask is: PyTorch does not ask the card how many elements that are."""
    return x.index_put((x > 0.5,), x.new_tensor(0.25), accumulate=True)


@pytest.mark.parametrize(
    ("function", "is_recorded"),
    [(lambda x: x.cumsum(3) / 16, True), (lambda x: doubled_by_host(x), False),
     (products, True), (lambda x: masked(x), True)],
    ids=["cumsum", "of the host", "products", "mask"],
)  # fmt: skip
def test_what_pytorch_computes_is_recorded_with_memory_of_its_own(recorded, function, is_recorded):
    """Each launch of a graph writes there again, whatever PyTorch has lent to whom meanwhile."""
    eager = WithOthers(function).cuda().double()
    limited = ooc.limit(copy.deepcopy(eager), "1GiB")
    x = [drawn(at) for at in range(2 * STEPS)]
    expected = []
    for each in x:
        eager.zero_grad()
        y = eager(each)
        y.square().mean().backward()
        expected.append((y.detach().clone(), gradients(eager)))
    given, others = torch.empty_like(x[0]), []
    for each, (out, of_parameters) in zip(x, expected, strict=True):
        given.copy_(each)
        limited.zero_grad()
        y = limited(given)
        y.square().mean().backward()
        found = y.detach().clone(), gradients(limited)
        del y
        if recorded:  # what was free when it was recorded is another's now, and stays its own
            others += [torch.full((2**at,), at, device="cuda") for at in range(8, 20)]
        close([found[0], *found[1]], [out, *of_parameters])
    for at, other in enumerate(others):
        assert bool((other == 8 + at % 12).all())
    assert bool(recorded) is is_recorded
    assert None not in recorded


def test_two_calls_at_once_have_outputs_of_their_own(pair):
    found = []
    for each in pair:
        one, other = each(drawn(1)), each(drawn(2))
        (one * one).sum().backward()
        (other * other).sum().backward()
        found.append([one, other, *gradients(each)])
    close(*found)


def test_backward_twice_and_a_call_between(pair):
    found = []
    for each in pair:
        y = each(drawn(1))
        (y * y).sum().backward(retain_graph=True)
        between = each(drawn(2))
        between.sum().backward()
        (y * y).sum().backward()
        found.append([y, between, *gradients(each)])
    close(*found)


def test_a_call_without_backward_and_one_that_fails_leave_the_next_one_right(pair):
    found = []
    for each in pair:
        kept = each(drawn(1))
        with pytest.raises(RuntimeError, match="shape"):
            each(drawn(2)).backward(torch.ones((1, 1), device="cuda", dtype=torch.float64))
        y = each(drawn(3))
        (y * kept).sum().backward()
        found.append([kept, y, *gradients(each)])
    close(*found)


def test_inference_keeps_what_it_made(pair):
    found = []
    for each in pair:
        each.eval()
        with torch.inference_mode():
            made = [each(drawn(at)) for at in range(STEPS)]
        with torch.no_grad():
            found.append([*made, each(drawn(0))])
    close(*found)


def test_calls_on_two_streams_do_not_disturb_each_other(pair):
    limited, eager = pair
    side = torch.cuda.Stream()
    inputs = [drawn(at) for at in range(STEPS)]
    eager.eval()
    limited.eval()
    with torch.no_grad():
        expected = [eager(x) for x in inputs]
        torch.cuda.synchronize()
        found = []
        for at, x in enumerate(inputs):
            with torch.cuda.stream(side if at % 2 else torch.cuda.default_stream()):
                found.append(limited(x))
        torch.cuda.synchronize()
    close(found, expected)


def test_a_gradient_that_lies_in_that_of_the_output_is_the_users():
    """x is added to the output last, so its gradient is that of the output."""

    class Residual(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x):
            return x + self.inner(x)

    torch.manual_seed(0)
    eager = Residual().cuda().double()
    limited = ooc.limit(copy.deepcopy(eager), "1GiB")
    kept = []
    for at in range(STEPS):
        found = []
        for each in (limited, eager):
            x = drawn(at).requires_grad_()
            (each(x) * (at + 1)).sum().backward()
            found.append(x.grad)
        kept.append(found)
    for found, expected in kept:
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


class Sorting(torch.nn.Module):
    """An operation that PyTorch computes, between two convolutions."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 6, 3, padding=1)
        self.last = torch.nn.Conv2d(6, 4, 3, padding=1)

    def forward(self, x):
        return self.last(torch.sort(self.first(x), 1).values)


@pytest.mark.parametrize("place", ["cpu", "cuda"])
def test_two_forwards_before_one_backward_with_what_pytorch_computes(place):
    """Each backward waits for gradients that PyTorch makes; the other one begins after it."""
    torch.manual_seed(0)
    eager = Sorting().to(place).double()
    limited = ooc.limit(copy.deepcopy(eager), "1GiB")
    for each in (limited, eager):
        total = sum(each(drawn(at).to(place)).square().sum() for at in range(3))
        total.backward()
    close(gradients(limited), gradients(eager))


class Recurrent(torch.nn.Module):
    """A recurrence, which PyTorch computes, over the columns of a convolution."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 6, 3, padding=1)
        self.steps = torch.nn.GRU(6, 5, num_layers=2, dropout=0.5, batch_first=True)

    def forward(self, x):
        return self.steps(self.conv(x).mean(2).transpose(1, 2))[0]


# PyTorch would have weights in one piece, which arrays are not; from within backward it says so
@pytest.mark.filterwarnings("ignore:RNN module weights are not part of single")
@pytest.mark.parametrize("place", ["cpu", "cuda"])
def test_a_recurrence_in_evaluation_has_gradients_and_is_strict_where_that_is_asked(place):
    """cuDNN has none, and PyTorch lets it compute in TF32; both on the card alone."""
    torch.manual_seed(0)
    eager = Recurrent().eval()
    limited = ooc.limit(copy.deepcopy(eager).to(place), "1GiB")
    x, before = torch.randn(SHAPE), torch.backends.cudnn.rnn.fp32_precision
    eager(x).square().sum().backward()
    with ooc_cudnn.settings(allow_tf32=False):
        limited(x.to(place)).square().sum().backward()
    for one, other in zip(gradients(limited), gradients(eager), strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-4, atol=1e-4)
    assert torch.backends.cudnn.rnn.fp32_precision == before


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_a_step_under_autocast_stays_within_its_limit(share):
    """Weights, their copies and gradients of both count, and are half of it here."""
    layers = (torch.nn.Conv2d(n, 512, 3, padding=1) for n in (3, 512, 512, 512))
    ends = torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    model = torch.nn.Sequential(*layers, *ends).cuda()
    x = torch.randn(8, 3, 64, 64, pin_memory=True)

    def peak(model):
        torch.cuda.reset_peak_memory_stats()
        for _ in range(STEPS):
            with torch.autocast("cuda", torch.bfloat16):
                y = model(x.cuda())
            y.float().square().mean().backward()
            model.zero_grad()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    limit = int(share * peak(model)) + 2**25
    assert peak(ooc.limit(model, limit)) <= limit + 2**20


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_interpolation_under_autocast_has_the_dtype_of_eager(mode):
    """On a card autocast computes it in float32, whatever PyTorch's twin for plans says."""

    class Doubled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 8, 3)

        def forward(self, x):
            return torch.nn.functional.interpolate(self.conv(x), scale_factor=2, mode=mode)

    torch.manual_seed(0)
    eager, x = Doubled().cuda(), torch.randn(2, 3, 12, 12, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        found, expected = ooc.limit(copy.deepcopy(eager), "8MiB")(x), eager(x)
    assert found.dtype == expected.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
