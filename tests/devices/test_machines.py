"""Which machine model is taken, and what happens where there is none or a bad one."""

import dataclasses
import importlib
import json
import os
import re
import warnings

import pytest

from ooc_cudnn.devices import machines
from ooc_cudnn.devices.machines import (
    cache_directory,
    load_calibrated,
    machine_for,
    machine_key,
    machine_path,
)
from ooc_cudnn.settings import current
from ooc_cudnn.warnings_once import forget_warnings
from perfmodel import shipped
from tests.support.simulated_device import SimulatedDevice

HOST, H200 = shipped("host"), shipped("h200")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget_warnings()
    monkeypatch.setattr(machines, "_compared", set())
    return tmp_path


@pytest.fixture
def device():
    return SimulatedDevice(H200)


def fitted(device, **changes):
    return dataclasses.replace(
        H200, name="fitted", calibrated="2025-01-31", identity=device.identity(), **changes
    )


def test_a_given_one_is_taken_as_it_is(device, tmp_path):
    assert machine_for(device, HOST) is HOST
    assert machine_for(device, "host") == HOST
    fitted(device).save(tmp_path / "mine.json")
    assert machine_for(device, str(tmp_path / "mine.json")) == fitted(device)
    with pytest.raises(ValueError, match="did you mean 'h200'"):
        machine_for(device, "h20")
    with pytest.raises(ValueError, match="no such file"):
        machine_for(device, str(tmp_path / "other.json"))


def test_the_fitted_one_is_taken_in_silence(device):
    fitted(device).save(machine_path(device.identity()))
    assert machine_for(device, None) == fitted(device)


def test_without_one_the_shipped_is_taken_and_said_once(device):
    with pytest.warns(UserWarning, match="not calibrated.*'ooc-cudnn calibrate'"):
        assert machine_for(device, None) == H200
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert machine_for(device, None) == H200


@pytest.mark.parametrize(
    ("gpu", "name"),
    [("NVIDIA H200", "h200"), ("NVIDIA H100 80GB HBM3", "h100"), ("another card", "h200")],
)
def test_the_shipped_one_is_that_of_the_card_or_of_the_h200(monkeypatch, device, gpu, name):
    monkeypatch.setattr(device, "identity", lambda: {"gpu": gpu})
    with pytest.warns(UserWarning, match=f"shipped figures of '{name}', corrected"):
        assert machine_for(device, None) == shipped(name)


@pytest.mark.parametrize(
    ("gpu", "capability", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "8.0", "a100-80gb"),
        ("NVIDIA GeForce RTX 4090", "8.9", "rtx4090"),
        ("NVIDIA GeForce RTX 3080 Ti", "8.6", "rtx3090"),
    ],
)
def test_a_card_without_a_measured_profile_has_that_of_data_sheets(
    monkeypatch, device, gpu, capability, name
):
    memory = str(shipped(name).device_bytes)
    identity = {"gpu": gpu, "device_bytes": memory, "compute_capability": capability}
    monkeypatch.setattr(device, "identity", lambda: identity)
    with pytest.warns(UserWarning, match=f"of '{name}', not measured but from data sheets"):
        assert machine_for(device, None) is shipped(name)
    assert "compute" not in machine_key(identity)
    assert machine_key(identity) == machine_key({"gpu": gpu})


OLD = json.dumps({**H200.to_json(), "version": 1})
NEW = json.dumps({**H200.to_json(), "version": 99})


@pytest.mark.parametrize("content", ["", "{", '{"format": "other"}', '{"a": 1}', OLD, NEW])
def test_a_bad_file_is_said_and_not_used(device, content):
    path = machine_path(device.identity())
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.warns(UserWarning, match=f"{re.escape(str(path))}.*'ooc-cudnn calibrate'") as told:
        assert machine_for(device, None) == H200
    assert str(told[0].message).count("calibrate'") == 1


def test_a_file_that_cannot_be_read_is_said_and_not_used(device):
    path = machine_path(device.identity())
    path.mkdir(parents=True)
    with pytest.warns(UserWarning, match=f"{re.escape(str(path))} cannot be read") as told:
        assert machine_for(device, None) == H200
    assert str(told[0].message).count("calibrate'") == 1
    assert load_calibrated(device) is None


NO_FILES = {
    "pipe": os.mkfifo,
    "device": lambda path: os.symlink("/dev/zero", path),
    "folder": os.mkdir,
    "such file": lambda path: os.symlink("nowhere", path),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_file_is_said_and_not_used(device, tmp_path, kind):
    """Reading a pipe waited for ever, a link to /dev/zero took all memory."""
    path = machine_path(device.identity())
    path.parent.mkdir(parents=True)
    NO_FILES[kind](path)
    if kind != "such file":  # that is as good as none
        with pytest.warns(UserWarning, match=f"{re.escape(str(path))} cannot be read.*calibrate'"):
            assert machine_for(device, None) == H200
    NO_FILES[kind](tmp_path / "mine.json")
    with pytest.raises(ValueError, match=rf"machine=.*mine\.json.* {kind}"):
        machine_for(device, str(tmp_path / "mine.json"))


def test_a_model_is_read_again_when_another_file_takes_its_place(device, tmp_path):
    """Two files written in one tick of the file system's clock are two."""
    path = tmp_path / "mine.json"
    fitted(device).save(path)
    assert machine_for(device, str(path)) == fitted(device)
    other = fitted(device, step_seconds=1e-4)
    stamp = path.stat().st_mtime_ns
    other.save(path)
    os.utime(path, ns=(stamp, stamp))
    assert machine_for(device, str(path)) == other


def test_a_file_from_elsewhere_is_refused(device):
    path = machine_path(device.identity())
    elsewhere = {**device.identity(), "gpu": "NVIDIA A100"}
    dataclasses.replace(fitted(device), identity=elsewhere).save(path)
    expected = "gpu is 'NVIDIA A100' there, 'NVIDIA H200' here; to replace it, run"
    with pytest.warns(UserWarning, match=expected):
        assert machine_for(device, None) == H200


def test_one_from_elsewhere_is_taken_on_request_with_the_differences(device, tmp_path):
    identity = {**device.identity(), "gpu": "NVIDIA A100", "device_bytes": "1", "note": "other"}
    del identity["simulated"]
    elsewhere = dataclasses.replace(fitted(device), identity=identity)
    elsewhere.save(tmp_path / "a100.json")
    with pytest.warns(UserWarning, match="fitted on another machine") as caught:
        assert machine_for(device, str(tmp_path / "a100.json")) == elsewhere
    (warning,) = caught
    message = str(warning.message)
    assert "gpu is 'NVIDIA A100' there, 'NVIDIA H200' here" in message
    assert "simulated is unknown there" in message
    assert "device_bytes" not in message
    assert "note" not in message
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        assert machine_for(device, str(tmp_path / "a100.json")) == elsewhere
        # what was fitted here, and what is shipped, is taken in silence
        fitted(device).save(tmp_path / "here.json")
        machine_for(device, tmp_path / "here.json")
        machine_for(device, "p100")


def test_the_environment_names_one_too(device, tmp_path, monkeypatch):
    elsewhere = dataclasses.replace(fitted(device), identity={"gpu": "NVIDIA A100"})
    elsewhere.save(tmp_path / "a100.json")
    monkeypatch.setenv("OOC_CUDNN_MACHINE", str(tmp_path / "a100.json"))
    importlib.import_module("ooc_cudnn.settings")._forget()
    with pytest.warns(UserWarning, match="gpu is 'NVIDIA A100' there"):
        assert machine_for(device, current().machine) == elsewhere


@pytest.mark.parametrize("content", ["", "{", OLD, NEW])
def test_a_bad_file_on_request_is_an_error(device, tmp_path, content):
    path = tmp_path / "mine.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=f"{re.escape(str(path))}.*'ooc-cudnn calibrate'"):
        machine_for(device, path)


def test_a_file_written_meanwhile_is_seen(device):
    path = machine_path(device.identity())
    fitted(device).save(path)
    first = machine_for(device, None)
    assert machine_for(device, None) is first
    fitted(device, quality={"duplex": {"spread": 0.5}}).save(path)
    os.utime(path, ns=(1, 1))
    assert machine_for(device, None).quality == {"duplex": {"spread": 0.5}}


def test_the_key_is_a_file_name_and_tells_machines_apart():
    identity = {"gpu": "NVIDIA H200 / SXM: 141GB", "driver": "570.86", "cudnn": "9.8"}
    key = machine_key(identity)
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,150}", key)
    assert machine_key({**identity, "device_bytes": "1", "note": "x"}) == key
    assert machine_key({**identity, "gpu": "NVIDIA H200 - SXM  141GB"}) != key
    for name in identity:
        assert machine_key({**identity, name: "other"}) != key
    assert len(machine_key({"gpu": "x" * 1000, "host": "../../etc"})) < 150
    assert "/" not in machine_key({"host": "../../etc"})


def test_where_files_are_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache" / "ooc_cudnn"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == tmp_path / ".cache" / "ooc_cudnn"
