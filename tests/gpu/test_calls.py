"""Tests of operations that cut calls on the host device, anew: on the card."""

from __future__ import annotations

import pytest

import tests.kernels.test_calls as on_the_host
from tests.support.forced import Forced

globals().update({n: test for n, test in vars(on_the_host).items() if n.startswith("test_")})


@pytest.fixture(autouse=True)
def on_the_card(monkeypatch):
    """What runs a call under a split takes the card."""
    chosen = {**Forced.__init__.__kwdefaults__, "device": "cuda"}
    monkeypatch.setattr(Forced.__init__, "__kwdefaults__", chosen)
