"""Chains whose windows have layouts of their own, on the card."""

from __future__ import annotations

import pytest

import ooc_cudnn

pytest.importorskip("cupy")
pytest.importorskip("torch")
from tests.support.mixed_layouts import SEVERAL, run_in_any_layouts


@pytest.mark.parametrize("name", SEVERAL)
def test_any_layouts(name):
    with ooc_cudnn.settings(allow_tf32=False):  # bounds are those of float32
        assert run_in_any_layouts(name, splits=2, device="cuda") >= 4
