"""Faults on the card: Ctrl-C at random moments, memory that is refused, forks."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.devices import get_device
from ooc_cudnn.errors import DeviceOutOfMemoryError, HostOutOfMemoryError, PlanInfeasibleError
from ooc_cudnn.functions.call.call_cache import forget_calls
from ooc_cudnn.memory import release
from tests.fuzz import interruptions
from tests.support.left_behind import in_use, left_behind
from tests.support.refusals import Refusing

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]


def test_ctrl_c_at_random_moments(tmp_path):
    arguments = ["--device", "cuda", "--count", "40", "--quick", "--output", str(tmp_path)]
    assert interruptions.main(arguments) == 0


@pytest.mark.parametrize("setting", ["cuda", "auto"])
def test_a_forked_child_is_told_to_spawn(setting):
    """In a process of its own: pytest's has more threads than a fork should meet."""
    code = """if True:
        import os, sys, warnings
        import numpy as np, ooc_cudnn, ooc_cudnn.errors
        warnings.simplefilter("ignore")
        ooc_cudnn.settings(device=sys.argv[1], memory_limit="64MiB")
        x, w = np.ones((8, 16, 256, 256), "f4"), np.ones((16, 16, 3, 3), "f4")
        ooc_cudnn.convolution_forward(x, w, padding=1)
        child = os.fork()
        if child == 0:
            try:
                ooc_cudnn.convolution_forward(x, w, padding=1)
            except ooc_cudnn.errors.DeviceUnavailableError as error:
                ooc_cudnn.settings(device="host")
                y = ooc_cudnn.convolution_forward(x[:1], w, padding=1)
                os._exit(0 if "spawn" in str(error) and y[0, 0, 1, 1] == 144 else 3)
            except BaseException:
                os._exit(4)
            os._exit(5)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        y = ooc_cudnn.convolution_forward(x, w, padding=1)
        assert y[0, 0, 1, 1] == 144
        print("fine")
    """
    found = subprocess.run(
        [sys.executable, "-c", code, setting],
        cwd=ROOT, capture_output=True, text=True, timeout=250, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])},
    )  # fmt: skip
    assert found.stdout == "fine\n", found


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("placement", ["pageable", "device"])
def test_every_allocation_is_refused_in_turn(monkeypatch, placement, for_good):
    """Of the block, of results, of pinned memory and of staging slabs."""
    own = DeviceOutOfMemoryError, HostOutOfMemoryError, PlanInfeasibleError
    device = get_device("cuda")
    random = np.random.default_rng(3)
    x = random.integers(-3, 4, (16, 16, 256, 256)).astype(np.float32)
    w = random.integers(-3, 4, (16, 16, 3, 3)).astype(np.float32)
    driver = Refusing(monkeypatch, (device.arena, "_allocate"), (device, "allocate_pinned"))

    def fresh(refused=range(0)):
        forget_calls()
        release()
        driver.begin(refused)
        limit = "24MiB" if placement == "pageable" else "1GiB"
        with ooc_cudnn.settings(device="cuda", memory_limit=limit, progress=False):
            given = x
            if placement == "device":
                given = ooc_cudnn.empty(x.shape)
                ooc_cudnn.memcpy(given, x)
            y = ooc_cudnn.convolution_forward(given, w, padding=1)
            return np.array(y.get() if hasattr(y, "get") else y)

    expected = fresh()
    fresh()
    count, held = driver.asked, in_use()
    assert count > 0
    for at in range(count):
        with contextlib.suppress(own):
            refused = range(at, 10**9 if for_good else at + 1)
            assert np.array_equal(fresh(refused), expected), at
        assert np.array_equal(fresh(), expected), at
        assert left_behind(held) == [], at
