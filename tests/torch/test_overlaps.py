"""Tensors that share memory, containers that forward changes, and hooks of all modules."""

import collections
import copy

import numpy as np
import pytest
import torch
from torch import nn

import ooc_cudnn.torch as ooc
from ooc_cudnn.torch.tracing.overlaps import overlapping_pairs

pytestmark = pytest.mark.usefixtures("fewest_plans")

LIMIT = "1MiB"


class Of(nn.Module):
    """A convolution, and a function of the model and its arguments."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.function = nn.Conv2d(3, 4, 1), function

    def forward(self, *args):
        return self.function(self, *args)


def image():
    return torch.linspace(-1, 1, 2 * 3 * 4 * 4).reshape(2, 3, 4, 4)


def appended(model, x, seen):
    seen.append(model.conv(x))
    return x * 2


def put(model, given):
    given["y"] = model.conv(given["x"])
    return given


def popped(model, given):
    return model.conv(given.pop("x"))


@pytest.mark.parametrize(
    ("function", "make"),
    [
        (appended, lambda: (image(), [])),
        (appended, lambda: (image(), collections.deque())),
        (put, lambda: ({"x": image()},)),
        (popped, lambda: ({"x": image(), "z": 1},)),
    ],
)
def test_what_forward_does_to_a_container_is_done(function, make):
    """It was done to a copy of it."""
    eager = Of(function)
    limited = ooc.limit(copy.deepcopy(eager), LIMIT)
    found, expected = make(), make()
    made, wanted = limited(*found), eager(*expected)
    for one, other in ((made, wanted), *zip(found, expected, strict=True)):
        ours, theirs = (torch.utils._pytree.tree_flatten(each) for each in (one, other))
        assert ours[1] == theirs[1]
        for a, b in zip(ours[0], theirs[0], strict=True):
            torch.testing.assert_close(a, b)
    if function is put:
        assert made is found[0]


def filled(model, given):
    given["y"] = model.conv(given["x"])
    given["list"].append(given["y"])
    given["deep"]["k"] = 3
    del given["gone"]
    given["queue"].pop()
    return given["y"]


@pytest.mark.parametrize("scale", [None, 0.5])
def test_so_it_is_where_an_argument_is_an_array(scale):
    """What stands for arrays is in containers of its own."""
    x = image() if scale is None else torch.arange(96, dtype=torch.uint8).reshape(2, 3, 4, 4)
    parts = {"list": [np.ones(2)], "deep": {"n": np.zeros(1)}, "gone": 1}
    given = {"x": x, "spacing": np.zeros(2), "queue": collections.deque([1, 2]), **parts}
    eager = Of(filled)
    limited = ooc.limit(copy.deepcopy(eager), LIMIT, scale=scale)
    inner, array = given["list"], given["spacing"]
    y = limited(given)
    torch.testing.assert_close(y, eager.conv(x if scale is None else x * scale))
    assert list(given) == ["x", "spacing", "queue", "list", "deep", "y"]
    kept = {"y": y, "x": x, "spacing": array, "list": inner}
    assert all(given[name] is each for name, each in kept.items())
    assert inner[1] is y
    assert isinstance(inner[0], np.ndarray)
    assert list(given["queue"]) == [1]
    assert given["deep"]["k"] == 3


def test_arguments_that_share_memory_are_not_written_to():
    model = ooc.limit(Of(lambda s, a, b: s.conv(b) + a.add_(1).mean()), LIMIT)
    x, apart = image(), image()
    model(apart, image())
    assert torch.equal(apart, image() + 1)
    with pytest.raises(ooc.UnsupportedModelError, match="share memory"):
        model(x, x[:1])
    assert torch.equal(x, image())


class Adding(nn.Module):
    """A buffer that forward adds to, and one that it reads afterwards."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 1)
        self.norm, self.other = nn.BatchNorm2d(4), nn.BatchNorm2d(4)
        self.register_buffer("one", torch.zeros(3))
        self.register_buffer("two", torch.zeros(3))

    def forward(self, x):
        self.one.add_(1)
        return self.other(self.norm(self.conv(x))) * self.two.sum()


def view_of_a_buffer(model, x):
    model.two = model.one[:]


def data_of_a_buffer(model, x):
    model.two.data = model.one.data


def numpys_view_of_a_buffer(model, x):
    model.two = torch.from_numpy(model.one.numpy())


def input_as_a_buffer(model, x):
    model.one.data = x[0, 0, 0, :3]


def statistics(model, x):
    model.other.running_mean = model.norm.running_mean[:]


def same_statistics(model, x):
    model.other.running_mean = model.norm.running_mean


@pytest.mark.parametrize("door", ["limit", "compile"])
@pytest.mark.parametrize(
    "share",
    [view_of_a_buffer, data_of_a_buffer, numpys_view_of_a_buffer, input_as_a_buffer, statistics,
     same_statistics],
)  # fmt: skip
def test_memory_that_is_shared_since_the_first_call(door, share):
    """It was computed as if it were not."""
    eager, model = Adding(), Adding()
    if door == "limit":
        limited = ooc.limit(model, LIMIT)
    else:
        limited = torch.compile(model, backend="ooc_cudnn", options={"memory_limit": LIMIT})
    x = image()
    for _ in range(2):
        torch.testing.assert_close(limited(x), eager(x))
    share(model, x)
    if share is same_statistics and door == "limit":  # one tensor: it is captured anew
        share(eager, x)
        torch.testing.assert_close(limited(x), eager(x))
        torch.testing.assert_close(model.norm.running_mean, eager.norm.running_mean)
        return
    with pytest.raises(ooc.UnsupportedModelError, match="share memory"):
        limited(x)


def test_a_model_that_holds_nothing_writes_to_its_input():
    model = ooc.limit(nn.SiLU(inplace=True), LIMIT)
    for _ in range(2):
        x = image()
        torch.testing.assert_close(model(x), nn.functional.silu(image()))
        torch.testing.assert_close(x, nn.functional.silu(image()))


def test_a_write_to_what_may_overlap_is_refused():
    model = ooc.limit(Of(lambda s, x: (s.conv(x) * 1).unfold(3, 2, 1)[..., 1].mul_(2)), LIMIT)
    with pytest.raises(ooc.UnsupportedModelError, match=r"unfold.*clone(?s:.*)test_overlaps"):
        model(image())


def test_pairs_that_overlap():
    x = torch.zeros(8)
    assert overlapping_pairs([x[:2], x[1:3], x[4:]]) == ((0, 1),)
    assert overlapping_pairs([x, torch.empty(0), torch.zeros(8, device="meta"), 3]) == ()


@pytest.mark.parametrize("before", [True, False])
def test_hooks_of_all_modules_are_seen(before):
    """One that was registered after the first call was not."""

    def doubled(module, args, made):
        return made * 2 if isinstance(module, nn.Conv2d) else None

    eager = Of(lambda s, x: s.conv(x))
    limited = ooc.limit(copy.deepcopy(eager), LIMIT)
    if not before:
        torch.testing.assert_close(limited(image()), eager(image()))
    handle = nn.modules.module.register_module_forward_hook(doubled)
    try:
        torch.testing.assert_close(limited(image()), eager(image()))
    finally:
        handle.remove()
    torch.testing.assert_close(limited(image()), eager(image()))


def test_what_computes_nothing_runs_once():
    """It ran while it was captured, and once more."""

    def counted(model, x):
        model.calls += 1
        model.log.append(1)
        return x

    model = Of(counted)
    model.calls, model.log = 0, []
    ooc.limit(model, LIMIT)
    x = image()
    for times in (1, 2, 3):
        assert model(x) is x
        assert (model.calls, model.log) == (times, [1] * times)


@pytest.mark.parametrize(
    "function",
    [
        lambda s, x: torch.view_as_complex(s.conv(x).unflatten(-1, (2, 2))).abs(),
        lambda s, x: s.conv(x).as_strided((3, 3), (1, 1)),
        lambda s, x: s.conv(x).detach().view(torch.int32),
    ],
)
def test_what_reads_strides_is_given_those_of_pytorch(function):
    eager = Of(function)
    limited = ooc.limit(copy.deepcopy(eager), LIMIT)
    found, expected = limited(image()), eager(image())
    torch.testing.assert_close(
        found, expected, rtol=1e-5, atol=4 if found.dtype == torch.int32 else 1e-6
    )
