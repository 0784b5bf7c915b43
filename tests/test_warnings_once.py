"""Warnings: where they point, how often they come, and what they say of unknown variables."""

import importlib
import inspect
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn import TensorSpec
from ooc_cudnn.functions.call import call_cache
from ooc_cudnn.warnings_once import forget_warnings, warn, warn_once

settings_module = importlib.import_module("ooc_cudnn.settings")


@pytest.fixture(autouse=True)
def told_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget_warnings()
    yield
    forget_warnings()
    settings_module._forget()


def here():
    return inspect.currentframe().f_back.f_lineno


X = np.ones((1, 1, 4, 4), "f4")
CALLS = {
    "a function": lambda: ooc_cudnn.activation_forward(X),
    "a plan": lambda: ooc_cudnn.plan("activation_forward", x=TensorSpec(X.shape)),
    "in place": lambda: ooc_cudnn.add_tensor(X, np.ones_like(X)),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_uncalibrated_warning_points_at_the_users_line(name):
    call_cache.forget_calls()
    with (
        ooc_cudnn.settings(device="host", machine=None),
        pytest.warns(UserWarning, match="calibrated") as seen,
    ):
        CALLS[name]()
    (warning,) = seen
    assert warning.filename == __file__
    assert warning.lineno == CALLS[name].__code__.co_firstlineno


def test_so_does_the_one_of_many_pieces(monkeypatch):
    monkeypatch.setattr(call_cache, "MANY_PIECES", 1)
    with (
        ooc_cudnn.settings(device="host", machine="host", memory_limit="1KiB"),
        pytest.warns(UserWarning, match="raise memory_limit") as seen,
    ):
        ooc_cudnn.activation_forward(np.ones((64, 4, 4, 4), "f4"))
    assert (seen[0].filename, seen[0].lineno) == (__file__, here() - 1)


def test_what_stands_between_is_not_the_users_line():
    with pytest.warns(UserWarning, match="hello") as seen:
        warn("hello")
    assert (seen[0].filename, seen[0].lineno) == (__file__, here() - 1)


def test_once():
    with pytest.warns(UserWarning, match="hello"):
        warn_once("hello")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_once("hello")


def test_the_uncalibrated_warning_tells_how_its_figures_differ():
    """From those of machine="host": by trials alone, which `deterministic` leaves out."""
    x, w = TensorSpec((8, 16, 64, 64)), TensorSpec((16, 16, 3, 3))

    def planned():
        return ooc_cudnn.plan("convolution_forward", x=x, w=w, memory_limit="2MiB")

    with ooc_cudnn.settings(device="host", machine=None, deterministic=True):
        with pytest.warns(UserWarning, match="corrected by timing the launches.*as they are"):
            found = planned()
        with ooc_cudnn.settings(machine="host"):
            assert planned() == found


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("OOC_CUDNN_MEMORY_LIMT", "OOC_CUDNN_MEMORY_LIMIT"),
        ("OOC_CUDNN_ALLOW_TF_32", "OOC_CUDNN_ALLOW_TF32"),
        ("ooc_cudnn_verify", "OOC_CUDNN_VERIFY"),
    ],
)
def test_an_unknown_variable_is_told_with_the_nearest(monkeypatch, name, meant):
    monkeypatch.setenv(name, "1")
    settings_module._forget()
    with pytest.warns(UserWarning, match=f"variable {name} is no setting.*did you mean {meant}"):
        settings_module.current()
    settings_module._forget()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        settings_module.current()  # once a process


def test_an_unknown_variable_that_is_like_none_is_told_without_a_guess(monkeypatch):
    monkeypatch.setenv("OOC_CUDNN_FOO", "1")
    settings_module._forget()
    with pytest.warns(UserWarning, match=r"OOC_CUDNN_FOO is no setting, and is ignored\. There"):
        settings_module.current()


def test_known_variables_and_others_are_no_news(monkeypatch):
    monkeypatch.setenv("OOC_CUDNN_VERIFY", "0")
    monkeypatch.setenv("OOC_NOTEBOOK_QUICK", "1")
    settings_module._forget()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        settings_module.current()


def test_a_warning_that_is_an_error_leaves_the_settings_usable():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c",
         "import ooc_cudnn.settings as _; from ooc_cudnn.settings import current\n"
         "try: current()\nexcept UserWarning as warning: print(warning)\nprint(current().verify)"],
        env={**os.environ, "OOC_CUDNN_VERIFI": "3"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "did you mean OOC_CUDNN_VERIFY?" in done.stdout
    assert done.stdout.endswith("\n0\n")
