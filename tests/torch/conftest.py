"""What tests of PyTorch's models share."""

import pytest

from tests.support.few_plans import compare_few


@pytest.fixture
def few_plans(monkeypatch, searches_are_shared):
    """Compare few plans: for tests of what is computed, which any plan computes."""
    compare_few(monkeypatch)
