"""Where CUDA cannot be used, the error names what is missing: a card before a package."""

import sys
from types import SimpleNamespace

import pytest

from ooc_cudnn.devices.cuda import cupy_import as cuda_import
from ooc_cudnn.devices.cuda import driver
from ooc_cudnn.devices.cuda.cupy_import import import_cupy
from ooc_cudnn.devices.cuda.driver import why_no_card
from ooc_cudnn.errors import DeviceUnavailableError


class NoCuda(Exception):
    """As CuPy's."""


def cupy(count):
    def devices():
        if isinstance(count, Exception):
            raise count
        return count

    runtime = SimpleNamespace(getDeviceCount=devices, CUDARuntimeError=NoCuda)
    return SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))


@pytest.mark.parametrize("module", [None, cupy(NoCuda("no driver"))])
def test_without_a_card_no_package_is_blamed(monkeypatch, module):
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setattr(cuda_import, "why_no_card", lambda: "there is no NVIDIA driver")
    with pytest.raises(DeviceUnavailableError) as raised:
        import_cupy(1)
    text = str(raised.value)
    assert text.startswith("device='cuda:1' cannot be used: there is no NVIDIA driver. Set ")
    assert "--device host" in text
    assert "pip" not in text


def test_with_one_the_package_is(monkeypatch):
    monkeypatch.setattr(cuda_import, "why_no_card", lambda: "")
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(DeviceUnavailableError, match=r"CuPy cannot be imported.*pip install"):
        import_cupy(0)
    monkeypatch.setitem(sys.modules, "cupy", cupy(NoCuda("driver too old")))
    with pytest.raises(DeviceUnavailableError, match=r"driver too old.*ooc-cudnn doctor"):
        import_cupy(0)
    monkeypatch.setitem(sys.modules, "cupy", cupy(2))
    with pytest.raises(
        DeviceUnavailableError, match=r"no GPU number 2.*has 2.*'cuda:0' or another"
    ):
        import_cupy(2)
    monkeypatch.setitem(sys.modules, "cudnn", None)
    with pytest.raises(DeviceUnavailableError, match=r"cuDNN cannot be used.*nvidia-cudnn"):
        import_cupy(1)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({}, "there is no NVIDIA driver on this machine"),
        ({"gpus": [], "status": 803}, "the NVIDIA driver does not start (cuInit returns 803)"),
        ({"gpus": []}, "the NVIDIA driver shows no card (CUDA_VISIBLE_DEVICES='')"),
        ({"gpus": [{"name": "H200"}]}, ""),
    ],
)
def test_why_there_is_no_card(monkeypatch, facts, reason):
    monkeypatch.setattr(driver, "driver_facts", lambda load: facts)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert why_no_card() == reason
