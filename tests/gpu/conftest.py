"""Tests on the card: skipped where there is none; under the shipped H200 model, no calibration."""

from __future__ import annotations

import importlib
import os

import pytest

import perfmodel
from ooc_cudnn.devices import get_device
from ooc_cudnn.errors import DeviceUnavailableError
from ooc_cudnn.settings_table import SETTINGS

settings_module = importlib.import_module("ooc_cudnn.settings")


def pytest_collection_modifyitems(config, items):
    """Mark every test of this folder, and skip it where CUDA or cuDNN does not work."""
    _take_shard(config, items)
    here = [item for item in items if item.nodeid.startswith("tests/gpu/")]
    try:
        get_device("cuda")
        skip = None
    except DeviceUnavailableError as error:
        skip = pytest.mark.skip(reason=str(error))
    for item in here:
        item.add_marker(pytest.mark.gpu)
        if skip is not None:
            item.add_marker(skip)


def _take_shard(config, items):
    """Of all tests, those of one shard: `shards.py` says which, as in "3/14"."""
    shard = os.environ.get("OOC_TESTS_SHARD")
    if shard:
        at, count = map(int, shard.split("/"))
        kept = items[at::count]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
        items[:] = kept


@pytest.fixture(autouse=True)
def cuda_device(monkeypatch, tmp_path):
    """Run on the card, without what is stored there; forget settings and calls afterwards."""
    from ooc_cudnn.functions.call.call_cache import forget_calls
    from ooc_cudnn.memory.limit import forget_limits

    for setting in SETTINGS:
        monkeypatch.delenv(setting.environment_variable, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # no engines that were tuned
    settings_module._forget()
    settings_module.settings(device="cuda", machine=perfmodel.shipped("h200"), progress=False)
    forget_calls()
    forget_limits()
    yield get_device("cuda")
    settings_module._forget()
    forget_calls()
    forget_limits()


@pytest.fixture
def recorded(monkeypatch):
    """How many graphs were made."""
    made, record = [], type(get_device("cuda")).record

    def count(*arguments, **how):
        made.append(record(*arguments, **how))
        return made[-1]

    monkeypatch.setattr(type(get_device("cuda")), "record", count)
    return made
