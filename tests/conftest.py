"""What all tests share: the host device, its shipped machine model, and nothing remembered."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import threading

# A shell's background jobs ignore Ctrl-C, and so do their children. Tests press it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Workers share the machine: what PyTorch and BLAS would do on more threads waits for them.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests plan, and users' plans stay theirs: also what is made before the first test.
os.environ["OOC_CUDNN_PLAN_CACHE"] = "0"

import numpy as np
import pytest

import perfmodel
from ooc_cudnn.settings_table import SETTINGS
from tests.support import sampling

# No tests in there, and what needs a card raises where it is imported without one.
collect_ignore = ["support"]

try:
    import hypothesis
except ImportError:
    pass  # a card's machine needs pytest alone
else:
    # The same examples every time, however long they take. `make fuzz` draws others.
    hypothesis.settings.register_profile(
        "steady",
        deadline=None,
        derandomize=True,
        suppress_health_check=[
            hypothesis.HealthCheck.function_scoped_fixture,
            hypothesis.HealthCheck.too_slow,
        ],
    )
    hypothesis.settings.load_profile("steady")

settings_module = importlib.import_module("ooc_cudnn.settings")

# Collecting garbage each 700 objects takes an eighteenth of all tests' time, and finds little.
gc.set_threshold(50_000, 20, 100)


@pytest.fixture(autouse=True, scope="module")
def old_objects_are_left_alone():
    """What modules and earlier tests hold is not looked at whenever a test collects garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def guards_are_not_timed():
    """TorchDynamo clears the caches to time the guards of each capture, for its log: 16 ms."""
    if "torch" not in sys.modules:  # no test that is collected asks for it
        yield
        return
    from torch._dynamo import guards

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guards, "profile_guard_manager", lambda *_: 0.0, raising=False)
        yield


@pytest.fixture(autouse=True)
def host_device(request, monkeypatch):
    """Run on the host device with the shipped model; forget settings and remembered calls."""
    if "gpu" in request.node.path.parts or "perfmodel" in request.node.path.parts:
        yield None
        return
    for setting in SETTINGS:
        monkeypatch.delenv(setting.environment_variable, raising=False)
    monkeypatch.setenv("OOC_CUDNN_PLAN_CACHE", "0")
    settings_module._forget()
    settings_module.settings(device="host", machine=perfmodel.shipped("host"), progress=False)
    sampling.short_search()
    from ooc_cudnn.devices import get_device
    from ooc_cudnn.functions.call.call_cache import forget_calls
    from ooc_cudnn.memory.limit import forget_limits

    device = get_device("host")
    forget_calls()
    forget_limits()
    device.release_caches()
    if os.environ.get("OOC_TESTS_HOST_RUNS_KERNELS"):
        from tests.support.kernels_on_host import install

        install(monkeypatch, device, request.node.nodeid)
    yield device
    settings_module._forget()
    forget_calls()
    forget_limits()
    device.release_caches()


@pytest.fixture(scope="module")
def plans_are_kept():
    """Tests of a module that ask for the same plan share it: it hangs on what is asked alone."""
    from ooc_cudnn.functions.call import call_cache, plan_chain

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(call_cache, "forget_plans", lambda: None)
        patch.setattr(plan_chain, "REMEMBERED_PLANS", 10**4)
        yield
    plan_chain.forget_plans()


@pytest.fixture(scope="module")
def searches_are_shared():
    """Tests of a module that ask for one call under many limits share what is known of its pieces.

    (`tests.support.searches`)
    """
    from tests.support import searches

    with searches.shared():
        yield


@pytest.fixture
def few_plans(monkeypatch, searches_are_shared):
    """Compare few plans: for tests of what is computed, which any plan computes."""
    from tests.support.few_plans import compare_few

    compare_few(monkeypatch)


@pytest.fixture
def fewest_plans(monkeypatch, few_plans):
    """Of those one, in `make test`: for values of models."""
    from tests.support.few_plans import compare_fewest

    compare_fewest(monkeypatch)


@pytest.fixture
def random():
    """A generator that gives each test the same numbers every time."""
    return np.random.default_rng(20)


@pytest.fixture
def no_threads_left():
    """Fail if the library leaves a thread behind."""
    yield
    gc.collect()
    gc.freeze()  # as above, for the next test
    streams = {f"ooc_cudnn {stream}" for stream in ("copy_in", "compute", "copy_out")}
    left = [thread.name for thread in threading.enumerate() if thread.name in streams]
    assert not left


def pytest_collection_modifyitems(config, items):
    """Leave out nightly and drawn tests unless asked for, and cases that are not in the sample."""
    out = set()
    if "nightly" not in config.option.markexpr:
        out |= {item for item in items if item.get_closest_marker("nightly")}
    if "drawn" not in config.option.markexpr and not sampling.is_whole(config):
        out |= {item for item in items if item.get_closest_marker("drawn")}
    if not sampling.is_whole(config):
        out |= sampling.left_out(items)
    config.hook.pytest_deselected(items=[item for item in items if item in out])
    items[:] = [item for item in items if item not in out]
