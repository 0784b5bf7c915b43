"""What users hand in, made uniform: specs, placements, overlaps."""

from __future__ import annotations

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.arrays.operands import array_ref, check_apart


def test_specs_of_layouts(host_device):
    x = np.zeros((2, 3, 4, 5), "f4")
    assert array_ref(x, host_device, name="x").spec.order == "channels_first"
    last = np.zeros((2, 4, 5, 3), "f4").transpose(0, 3, 1, 2)
    assert array_ref(last, host_device, name="x").spec.order == "channels_last"
    for view in (x.swapaxes(2, 3), x[..., ::2], x[::-1], np.broadcast_to(x[:1], x.shape)):
        spec = array_ref(view, host_device, name="x").spec
        assert spec.order is None
        assert spec.shape == view.shape
        assert tuple(s * 4 for s in spec.strides) == view.strides
    assert array_ref(x[:, :, 1:3], host_device, name="x").spec.order == "channels_first"
    assert array_ref(x[:, 1:], host_device, name="x").spec.order == "channels_first"
    assert array_ref(last[:, :, 1:3], host_device, name="x").spec.order == "channels_last"


@pytest.mark.parametrize(
    "shape", [(1, 3, 4, 5), (2, 1, 4, 5), (2, 3, 1, 5), (2, 3, 4, 1), (1, 1, 1, 1)]
)
def test_strides_of_axes_of_extent_one_do_not_matter(host_device, shape):
    x = np.zeros(shape, "f4")
    odd = np.lib.stride_tricks.as_strided(
        x, shape, tuple(4096 if e == 1 else s for e, s in zip(shape, x.strides, strict=True))
    )
    assert array_ref(odd, host_device, name="x").spec == array_ref(x, host_device, name="x").spec


def test_fields_of_a_record_are_refused(host_device):
    records = np.zeros(10, [("a", "f4"), ("b", "i2")])
    with pytest.raises(ValueError, match=r"x: strides .* multiples of the element size"):
        array_ref(records["a"], host_device, name="x")


def test_nothing_and_scalars(host_device):
    for array in (np.zeros(()), np.zeros((0, 1)), np.zeros((3, 0))):
        with pytest.raises(ValueError, match="x must not be empty"):
            array_ref(array, host_device, name="x")


def test_placements(host_device, tmp_path):
    mapped = np.memmap(tmp_path / "a", "f4", "w+", shape=(4, 4))
    for view in (mapped, mapped[1:], np.asarray(mapped), mapped.T, mapped[::-1].reshape(-1)[:0:-1]):
        if np.shares_memory(view, mapped):
            assert ooc_cudnn.placement(view) == "disk"
    assert ooc_cudnn.placement(mapped + 1) in ("pageable", "disk")
    x = np.zeros((4, 8), "f4")
    with ooc_cudnn.pin(x[:2]):
        assert ooc_cudnn.placement(x[:2]) == "pinned"
        assert ooc_cudnn.placement(x[1]) == "pinned"
        assert ooc_cudnn.placement(x) == "pageable"
        # Part of it lies in pinned memory, part does not.
        assert ooc_cudnn.placement(x[:, :2]) == "pageable"
        assert ooc_cudnn.placement(x[:2][::-1]) == "pinned"
        assert ooc_cudnn.placement(x[2::-1]) == "pageable"
    assert ooc_cudnn.placement(x[:2]) == "pageable"


def test_check_apart(host_device):
    memory = np.zeros(100, "f4")

    def wrapped(view):
        return array_ref(view, host_device, name="x")

    check_apart({"x": wrapped(memory[:50])}, wrapped(memory[50:]))
    check_apart({"x": wrapped(memory[::2])}, wrapped(memory[1::2]))
    for view in (memory[49:], memory[::-1], memory[48:60:2]):
        with pytest.raises(ValueError, match="out overlaps x in memory"):
            check_apart({"x": wrapped(memory[:50])}, wrapped(view))


def test_a_device_array_is_known_through_its_views():
    x = ooc_cudnn.empty((4, 4))
    for view in (x, x[1:], x.T, x.reshape(-1), x[::-1]):
        assert ooc_cudnn.placement(view) == "device"


def test_torch(host_device):
    torch = pytest.importorskip("torch")
    tensor = torch.arange(24.0).reshape(2, 3, 4)[:, 1:]
    wrapped = array_ref(tensor, host_device, name="x")
    assert wrapped.spec.shape == (2, 2, 4)
    assert wrapped.spec.strides == (12, 4, 1)
    assert wrapped.pointer == tensor.data_ptr()
    wrapped.array[0, 0, 0] = -1
    assert tensor[0, 0, 0] == -1
    assert wrapped.restore(np.ones((2, 2), "f4")).dtype == torch.float32
    assert array_ref(torch.arange(3), host_device, name="labels").spec.dtype == "int64"
    with pytest.raises(TypeError, match=r"x.*complex64"):
        array_ref(torch.zeros(3, dtype=torch.complex64), host_device, name="x")
    with pytest.raises((TypeError, ValueError, BufferError, RuntimeError)):
        array_ref(torch.zeros(3, device="meta"), host_device, name="x")
