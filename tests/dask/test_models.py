"""PyTorch models on dask arrays equal PyTorch's own forward on the whole image."""

import random

import numpy as np
import pytest

da = pytest.importorskip("dask.array", reason="the extra dask is not installed")
torch = pytest.importorskip("torch")

import dask  # noqa: E402

import ooc_cudnn.dask as ooc  # noqa: E402


def test_a_model_on_chunks_is_the_model_on_the_whole(searches_are_shared):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 3, 3, padding=1), torch.nn.BatchNorm2d(3), torch.nn.ReLU(),
        torch.nn.MaxPool2d(2), torch.nn.Conv2d(3, 2, 5, padding=2),
        torch.nn.Upsample(scale_factor=2),
    ).double().eval()  # fmt: skip
    image = torch.randn(1, 1, 20, 36, dtype=torch.float64)
    made = ooc.infer(model, da.from_array(image.numpy(), chunks=(1, 1, 12, 18)))
    assert made.chunks[2:] == ((12, 8), (18, 18))
    with torch.no_grad(), dask.config.set(scheduler="synchronous"):
        expected = model(image).numpy()
        for parameter in model.parameters():  # what becomes of them later is nothing to it
            parameter.zero_()
        np.testing.assert_allclose(made.compute(), expected, rtol=0, atol=1e-14)


def test_a_model_that_does_not_end_in_a_map_is_refused():
    image = da.zeros((1, 1, 8, 8), chunks=(1, 1, 4, 4), dtype="float32")

    class Two(torch.nn.Conv2d):
        def forward(self, x):
            y = super().forward(x)
            return y, y + 1

    with pytest.raises(TypeError, match="Two does not end in one map"):
        ooc.infer(Two(1, 1, 3).eval(), image)


class With(torch.nn.Module):
    """A convolution, and what a function makes of its maps and of what the model has."""

    def __init__(self, function, norm=None):
        super().__init__()
        self.conv, self.norm, self.function = torch.nn.Conv2d(3, 4, 3, padding=1), norm, function
        self.gamma = torch.nn.Parameter(torch.rand(4, 1, 1))
        self.single = torch.nn.Parameter(torch.rand(()))
        self.register_buffer("mean", torch.rand(1, 4, 1, 1))
        self.register_buffer("first", torch.rand(3, 1, 1))
        self.register_buffer("places", torch.rand(1, 4, 16, 20))

    def forward(self, x):
        """Apply the function."""
        return self.function(self, x)


ORDINARY = {
    "batch normalization, not affine": lambda: (
        lambda m, x: m.norm(m.conv(x)), torch.nn.BatchNorm2d(4, affine=False)
    ),
    "instance normalization": lambda: (lambda m, x: m.norm(m.conv(x)), torch.nn.InstanceNorm2d(4)),
    "group normalization, not affine": lambda: (
        lambda m, x: m.norm(m.conv(x)), torch.nn.GroupNorm(2, 4, affine=False)
    ),
    "layer normalization, not affine": lambda: (
        lambda m, x: m.norm(m.conv(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2),
        torch.nn.LayerNorm(4, elementwise_affine=False),
    ),
    "numbers": lambda: (lambda m, x: 3 - (m.conv(x) * 2.0 + 1),),
    "layer scale": lambda: (lambda m, x: m.gamma * m.conv(x),),
    "one number": lambda: (lambda m, x: m.conv(x) * m.single,),
    "a buffer": lambda: (lambda m, x: m.conv(x) - m.mean,),
    "a buffer before all layers": lambda: (lambda m, x: m.conv((x - m.first) / 0.25),),
    "a map of its own": lambda: (lambda m, x: m.places + m.conv(x),),
    "a constant": lambda: (lambda m, x: m.conv(x) + torch.arange(4.0).view(4, 1, 1).to(x),),
    "weights made of others": lambda: (
        lambda m, x: m.norm(m.conv(x)),
        torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv2d(4, 4, 3)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ORDINARY)
def test_what_a_model_has_itself_meets_its_maps(name, searches_are_shared):
    torch.manual_seed(0)
    model = With(*ORDINARY[name]()).double().eval()
    image = torch.randn(1, 3, 16, 20, dtype=torch.float64)
    chunked = da.from_array(image.numpy(), chunks=(1, 3, 8, 10))
    with torch.no_grad(), dask.config.set(scheduler="synchronous"):
        expected = model(image).numpy()
        made = ooc.infer(model, chunked)
        assert made.numblocks == (1, 1, 2, 2)
        np.testing.assert_allclose(made.compute(), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("classes", "dtype"), [(5, "uint8"), (256, "uint8"), (257, "uint16")])
def test_labels_in_place_of_scores(classes, dtype, searches_are_shared):
    torch.manual_seed(0)
    model = torch.nn.Conv2d(3, classes, 3, padding=1).double().eval()
    image = torch.randn(1, 3, 16, 12, dtype=torch.float64)
    made = ooc.infer(model, da.from_array(image.numpy(), chunks=(1, 3, 8, 12)), reduce="argmax")
    assert (made.shape, made.chunks[1], made.dtype) == ((1, 16, 12), (8, 8), dtype)
    with torch.no_grad(), dask.config.set(scheduler="synchronous"):
        np.testing.assert_array_equal(made.compute(), model(image).argmax(1).numpy())


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16"])
def test_chunks_of_integers_are_scaled_where_the_model_runs(dtype, searches_are_shared):
    torch.manual_seed(0)
    model = torch.nn.Conv2d(3, 2, 3).eval()
    top = np.iinfo(dtype)
    image = np.random.default_rng(0).integers(top.min, top.max, (1, 3, 16, 12), dtype, True)
    chunked = da.from_array(image, chunks=(1, 3, 8, 12))
    made = ooc.infer(model, chunked, scale=1 / top.max)
    with torch.no_grad(), dask.config.set(scheduler="synchronous"):
        expected = model.double()(torch.from_numpy(image.astype("float64") / top.max)).numpy()
        np.testing.assert_allclose(made.compute(), expected, rtol=0, atol=1e-5)
    with pytest.raises(TypeError, match="does not take this input"):
        ooc.infer(model.float(), chunked)


def test_what_infer_refuses_is_refused_here():
    image = da.zeros((1, 3, 8, 8), chunks=(1, 3, 4, 8), dtype="float32")
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    before = model[1].running_mean.clone()
    with pytest.raises(TypeError, match=r"^Sequential is in training mode.*model\.eval\(\) first"):
        ooc.infer(model, image)
    assert torch.equal(model[1].running_mean, before)
    model.eval()
    with pytest.raises(ValueError, match=r"^reduce must be None or argmax, not 'max'$"):
        ooc.infer(model, image, reduce="max")
    with pytest.raises(ValueError, match=r"^scale must be finite, not inf$"):
        ooc.infer(model, image, scale=float("inf"))


class Own(torch.nn.Module):
    """A convolution, running statistics, a counter, and a function of them and of an input."""

    def __init__(self, function):
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.BatchNorm2d(4)
        self.function, self.count = function, torch.nn.Buffer(torch.zeros(()))

    def forward(self, x):
        """Apply the function."""
        return self.function(self, x)


def counting(model, x):
    model.count.add_(1)
    return model.conv(x) * model.count


def updating(model, x):
    own = model.norm
    y = model.conv(x)
    return torch.nn.functional.batch_norm(y, own.running_mean, own.running_var, training=True)


DRAWS = r"^Own draws random numbers in evaluation.*ooc_cudnn\.torch\.infer$"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda m, x: torch.nn.functional.dropout(m.conv(x), 0.5), DRAWS),
        (lambda m, x: m.conv(x) + torch.rand(1), DRAWS),
        (lambda m, x: m.conv(x) * random.uniform(1, 2), DRAWS),
        (counting, r"^Own changes count in forward.*ooc_cudnn\.torch\.infer$"),
        (updating, "^Own changes norm.running_mean, norm.running_var in forward"),
        (lambda m, x: m.conv(x.add_(1)), "^Own changes input 0 in forward"),
    ],
    ids=["dropout", "rand", "random", "a counter", "running statistics", "its input"],
)
def test_what_one_call_draws_or_changes_is_refused(function, message):
    image = da.zeros((1, 3, 8, 8), chunks=(1, 3, 4, 8), dtype="float32")
    with pytest.raises(TypeError, match=message):
        ooc.infer(Own(function).eval(), image)


def test_dropout_that_does_nothing_in_evaluation_is_no_draw(searches_are_shared):
    image = da.zeros((1, 3, 8, 8), chunks=(1, 3, 4, 8), dtype="float32")
    model = Own(lambda m, x: torch.nn.functional.dropout(m.norm(m.conv(x)), training=m.training))
    assert ooc.infer(model.eval(), image).shape == (1, 4, 8, 8)


@pytest.mark.parametrize(
    ("reduce", "chunks"),
    [(None, (1, 3, 4, 8)), ("argmax", (1, 3, 8, 8))],
    ids=["maps", "labels"],
)
@pytest.mark.parametrize(
    "end",
    [
        lambda y: torch.nn.functional.layer_norm(y, [8]),
        lambda y: torch.nn.functional.layer_norm(y.permute(0, 2, 3, 1), [4]),
        lambda y: y.permute(0, 3, 1, 2),
    ],
    ids=["normalized along rows", "channels last", "permuted"],
)
def test_axes_of_the_result_are_those_of_forward(end, reduce, chunks, searches_are_shared):
    """They were refused, one of them as permuted by a model that permutes nothing."""
    model, x = Own(lambda m, x: end(m.conv(x))).eval(), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        expected = model(x).argmax(1) if reduce else model(x)
    made = ooc.infer(model, da.from_array(x.numpy(), chunks=chunks), reduce=reduce)
    assert made.shape == tuple(expected.shape)
    with dask.config.set(scheduler="synchronous"):
        np.testing.assert_allclose(made.compute(), expected, rtol=1e-4, atol=1e-5)


def test_labels_of_the_input(searches_are_shared):
    """There was an IndexError."""
    x = np.random.default_rng(0).standard_normal((2, 3, 8, 8), "float32")
    image = da.from_array(x, chunks=(1, 3, 4, 8))
    made = ooc.infer(torch.nn.Identity(), image, reduce="argmax")
    with dask.config.set(scheduler="synchronous"):
        assert (made.compute() == x.argmax(1)).all()


def test_labels_of_what_is_no_map_are_refused():
    image = da.zeros((1, 3, 8, 8), chunks=(1, 3, 4, 8), dtype="float32")
    with pytest.raises(TypeError, match="labels are made of one result, a map of scores"):
        ooc.infer(Own(lambda m, x: m.count * 2).eval(), image, reduce="argmax")
