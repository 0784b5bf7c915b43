"""The device with engines that a test says."""

import pytest

from tests.support.tuned import engines_maker


@pytest.fixture
def make(monkeypatch, tmp_path):
    """Make the device with given engines; its machine model says 1 us a result for all of them."""
    return engines_maker(monkeypatch, tmp_path)
