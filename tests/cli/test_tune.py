"""`ooc-cudnn tune`, on a device whose engines are known."""

import pytest

import ooc_cudnn
from ooc_cudnn import cli, devices
from ooc_cudnn.devices.tuning_database import engines_path, tables_of
from ooc_cudnn.engines.workload import Effort
from ooc_cudnn.functions.tune.tune import tune
from ooc_cudnn.tensor import TensorSpec
from tests.support.clock import Clock
from tests.support.engines_device import EnginesDevice
from tests.support.fake_cudnn import FakeEngine

CALL = ("convolution", "--x", "8x4x16x16", "--w", "4x4x3x3", "--padding", "1")


@pytest.fixture
def device(monkeypatch, tmp_path):
    """A device with two engines; the second one is faster."""
    Clock(monkeypatch, look_seconds=1e-12)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    engines = [FakeEngine(100, 3e-8), FakeEngine(101, 1e-8, 8 * 2**10, build_seconds=2.0)]
    made = EnginesDevice(engines, monkeypatch)
    monkeypatch.setitem(devices._resolved, "host", made)
    return made


def run(capsys, *arguments):
    status = cli.main(["tune", *arguments])
    return status, *capsys.readouterr()


def test_it_prints_what_it_found_and_the_file(capsys, device):
    status, out, err = run(capsys, *CALL, "--memory-limit", "1MiB")
    assert (status, err) == (0, "")
    head, columns, first, second, last = out.splitlines()
    assert head.startswith("convolution/tf32/channels_first: window 3x3")
    assert head.endswith("; 4 to 4 in 1, result 8x4x16x16")
    assert columns.split() == ["engine", "seconds", "workspace", "error"]
    assert first.split()[0] == "eng101"
    assert "8.00 KiB" in first
    assert second.split()[0] == "eng100"
    assert last == f"saved in {engines_path(device)}"
    assert engines_path(device).exists()


def test_without_a_function_it_tries_every_engine_where_some_were(capsys, device):
    assert run(capsys)[:2] == (0, "nothing is left to measure\n")
    x, w = TensorSpec((8, 4, 16, 16)), TensorSpec((4, 4, 3, 3))
    with ooc_cudnn.settings(memory_limit=2**20):
        tune("convolution_forward", x=x, w=w, padding=1, effort=Effort(every=False))
    assert not any(measured.is_complete for measured in tables_of(device))
    status, out, _ = run(capsys)
    assert status == 0
    assert "eng101" in out
    assert all(measured.is_complete for measured in tables_of(device))
