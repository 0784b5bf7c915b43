"""What tests on dask arrays share."""

import pytest

from tests.fuzz.cases import DRAWING


@pytest.fixture
def in_float64(monkeypatch):
    """Drawn calls are of float64."""
    for module in DRAWING:
        if hasattr(module, "draw_dtype"):
            monkeypatch.setattr(module, "draw_dtype", lambda stream: "float64")
