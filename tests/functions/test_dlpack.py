"""PyTorch tensors in every function: the same memory in and out, a tensor where a tensor came."""

from __future__ import annotations

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn import operations
from tests.support.function_cases import some_limits
from tests.support.sample import NAMES, sample

torch = pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")
pytestmark = pytest.mark.usefixtures("plans_are_kept")
TORCH = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}


def tensor(array):
    """The array as a tensor of its own memory."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.astype("f4")).to(torch.bfloat16)
    return torch.from_numpy(array.copy())


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def calls(request):
    return sample(request.param, alpha=2.0, beta=-0.25)


@pytest.fixture(scope="module")
def plain():
    return sample()


@pytest.mark.parametrize("name", NAMES)
def test_tensors_in_and_out(calls, name):
    call = calls[name]
    for limit in some_limits(call)[::2]:
        arrays = {n: tensor(a) for n, a in call.arrays.items()}
        out = {n: tensor(a) for n, a in call.old.items() if n in call.outs}
        pointers = {n: t.data_ptr() for n, t in out.items()}
        with ooc_cudnn.settings(memory_limit=limit, verify=1):
            found = call.run(arrays, out)
        call.check(found, f"limit {limit}", arrays)
        for n, made in found.items():
            assert isinstance(made, torch.Tensor), n
            if n in call.outs:
                assert made.data_ptr() == pointers[n]
                assert made.dtype == TORCH[call.old[n].dtype.name]


@pytest.mark.parametrize("name", NAMES)
def test_new_results_are_tensors_of_ordinary_memory(plain, name):
    call = plain[name]
    if name == "add_tensor":
        pytest.skip("works in place without out")
    for limit in some_limits(call)[::2]:
        arrays = {n: tensor(a) for n, a in call.arrays.items()}
        with ooc_cudnn.settings(memory_limit=limit):
            found = call.run(arrays)
        call.check(found, f"limit {limit}", arrays)
        for made in found.values():
            assert isinstance(made, torch.Tensor)
            assert not made.requires_grad
            made += 1


@pytest.mark.parametrize("name", NAMES)
def test_channels_last_tensors_give_channels_last_results(plain, name):
    call = plain[name]
    if name == "add_tensor":
        pytest.skip("works in place without out")

    def lay(array):
        made = tensor(array)
        return made.to(memory_format=torch.channels_last) if made.ndim == 4 else made

    arrays = {n: lay(a) for n, a in call.arrays.items()}
    found = call.run(arrays)
    call.check(found, "channels last", arrays)
    for made in found.values():
        assert made.ndim != 4 or made.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", NAMES)
def test_tensors_that_require_gradients_are_read(plain, name):
    call = plain[name]
    arrays = {n: tensor(a) for n, a in call.arrays.items()}
    for n, t in arrays.items():
        if n not in call.changed:
            t.requires_grad_()
    found = call.run(arrays, {n: tensor(a) for n, a in call.old.items()})
    call.check(found, "requires_grad", arrays)


@pytest.mark.parametrize("name", NAMES)
def test_strided_tensors(plain, name):
    call = plain[name]

    def lay(array):
        large = torch.full((*array.shape[:-1], 2 * array.shape[-1] + 1), torch.nan)
        large[..., 1::2] = tensor(array)
        return large[..., 1::2]

    for limit in some_limits(call)[::2]:
        arrays = {n: lay(a) for n, a in call.arrays.items()}
        out = {n: lay(a) for n, a in call.old.items() if n in call.outs}
        with ooc_cudnn.settings(memory_limit=limit):
            found = call.run(arrays, out)
        call.check(found, f"limit {limit}", arrays)


@pytest.mark.parametrize("name", NAMES)
def test_tensors_and_arrays_may_be_mixed(plain, name):
    call = plain[name]
    for turn in range(2):
        arrays = {
            n: tensor(a) if (at + turn) % 2 else a.copy()
            for at, (n, a) in enumerate(call.arrays.items())
        }
        found = call.run(arrays, call.fresh())
        call.check(found, f"turn {turn}", arrays)


def test_add_tensor_in_place_on_a_tensor():
    y, b = torch.ones(2, 3, 16, 9), torch.arange(3.0)
    pointer = y.data_ptr()
    for limit in ("1MiB", "3KiB"):
        before = y.clone()
        with ooc_cudnn.settings(memory_limit=limit):
            assert ooc_cudnn.add_tensor(b, y) is y
        assert y.data_ptr() == pointer
        assert torch.equal(y, before + b.reshape(1, 3, 1, 1))


def test_running_statistics_of_a_module():
    """Trained side by side with torch.nn.BatchNorm2d, on its own buffers."""
    random = np.random.default_rng(51)
    module, ours = torch.nn.BatchNorm2d(3), torch.nn.BatchNorm2d(3)
    for _ in range(3):
        x = torch.from_numpy(random.standard_normal((4, 3, 16, 9)).astype("f4") + 2)
        expected = module(x)
        with ooc_cudnn.settings(memory_limit="6KiB"):
            y, _, _ = ooc_cudnn.batch_normalization_forward_training(
                x,
                ours.weight,
                ours.bias,
                running_mean=ours.running_mean,
                running_variance=ours.running_var,
            )
        assert torch.allclose(y, expected, atol=1e-5)
    assert torch.allclose(ours.running_mean, module.running_mean, atol=1e-6)
    assert torch.allclose(ours.running_var, module.running_var, atol=1e-5)


def test_a_chain_of_tensors_is_torchs_sequential():
    torch.manual_seed(1)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 8, 3, padding=1, groups=2),
        torch.nn.MaxPool2d(3, 2, padding=1),
    ).eval()
    first, norm, _, second, _ = network
    norm.running_mean.normal_()
    x = torch.randn(2, 3, 30, 20)
    chain = [
        operations.Convolution(first.weight, padding=1),
        operations.AddTensor(first.bias),
        operations.BatchNormalization(
            norm.weight, norm.bias, norm.running_mean, norm.running_var, epsilon=norm.eps
        ),
        operations.Activation("relu"),
        operations.Convolution(second.weight, padding=1, groups=2),
        operations.AddTensor(second.bias),
        operations.Pooling(3, stride=2, padding=1),
    ]
    with torch.no_grad():
        expected = network(x)
    for limit in ("1MiB", "20KiB"):
        with ooc_cudnn.settings(memory_limit=limit):
            y = ooc_cudnn.chain_forward(x, chain)
        assert isinstance(y, torch.Tensor)
        assert torch.allclose(y, expected, atol=1e-4)


# Tensors that say more than their memory does ----------------------------------------------------


def negative(array):
    """The array as a lazily negated view: its memory holds the negative numbers."""
    made = torch.conj(torch.complex(torch.zeros(array.shape), -torch.from_numpy(array))).imag
    assert made.is_neg()
    assert torch.equal(made, torch.from_numpy(array))
    return made


@pytest.mark.parametrize("name", NAMES)
def test_negative_views_are_read_as_what_they_stand_for(plain, name):
    call = plain[name]
    arrays = {
        n: a.copy() if n in call.changed or a.dtype != "f4" else negative(a)
        for n, a in call.arrays.items()
    }
    for limit in some_limits(call)[::2]:
        for n in call.changed:
            arrays[n][...] = call.arrays[n]
        with ooc_cudnn.settings(memory_limit=limit):
            found = call.run(arrays, call.fresh())
        call.check(found, f"limit {limit}", arrays)


def test_negative_views_are_not_written_to():
    x = torch.randn(2, 3, 4, 4)
    kept = np.ones((2, 3, 4, 4), "f4")
    out = negative(kept)
    with pytest.raises(ValueError, match="out is a negative view"):
        ooc_cudnn.activation_forward(x, out=out)
    with pytest.raises(ValueError, match="y is a negative view"):
        ooc_cudnn.add_tensor(x, out)
    with pytest.raises(ValueError, match="dst is a negative view"):
        ooc_cudnn.memcpy(out, x)
    assert (out == 1).all()


def test_memcpy_reads_lazy_views():
    z = torch.randn(2, 3, dtype=torch.complex64)
    for lazy in (torch.conj(z), torch.conj(z).imag):
        copied = torch.empty(lazy.shape, dtype=lazy.dtype)
        ooc_cudnn.memcpy(copied, lazy)
        assert torch.equal(copied, lazy.resolve_conj().resolve_neg())


def test_a_result_that_requires_gradients_is_refused_as_torch_does():
    x, out = torch.randn(2, 3, 4), torch.zeros(2, 3, 4, requires_grad=True)
    with pytest.raises(ValueError, match=r"out requires gradients.*out.detach\(\)"):
        ooc_cudnn.activation_forward(x, out=out)
    with torch.no_grad():
        assert ooc_cudnn.activation_forward(x, out=out) is out
    assert torch.equal(out.detach(), torch.relu(x))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: x.to_sparse(), r"x is a tensor of layout torch.sparse_coo; .*x.to_dense\(\)"),
        (lambda x: x.to("meta"), "x is on PyTorch's meta device and has no data"),
        (lambda x: torch.conj(x.to(torch.complex64)), "x: dtype must be one of .* complex64"),
        (lambda x: x.to_mkldnn(), "x is a tensor of layout torch._mkldnn"),
    ],
)
def test_tensors_without_numbers_in_memory_are_refused(make, message):
    with pytest.raises(TypeError, match=message):
        ooc_cudnn.activation_forward(make(torch.randn(2, 3, 4)))


def test_expanded_tensors_are_read_and_not_written_to():
    """All images, channels or rows are one and the same."""
    x, w = torch.randn(1, 3, 9, 8), torch.randn(4, 3, 3, 3)
    for shape in ((5, 3, 9, 8), (1, 3, 9, 8)):
        seen = x[:, :1].expand(shape) if shape[0] == 1 else x.expand(shape)
        for limit in ("1MiB", "8KiB"):
            with ooc_cudnn.settings(memory_limit=limit):
                y = ooc_cudnn.convolution_forward(seen, w)
            assert torch.allclose(y, torch.nn.functional.conv2d(seen, w), atol=1e-4)
    with pytest.raises(ValueError, match="out is a broadcast view"):
        ooc_cudnn.activation_forward(torch.randn(5, 3, 9, 8), out=x.expand(5, 3, 9, 8))
