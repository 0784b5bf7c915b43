"""What tests of PyTorch's models share."""

import pytest

from ooc_cudnn.network import deciding, planning


@pytest.fixture
def few_plans(monkeypatch, searches_are_shared):
    """Compare few plans: for tests of what is computed, which any plan computes.

    What is left keeps, makes again, offloads and streams; tests of networks compare all plans.
    """
    monkeypatch.setattr(planning, "BEST_OF", ("keep", "remake"))
    monkeypatch.setattr(deciding, "SHARES_HELD", (1.0,))
    monkeypatch.setattr(planning, "VDNN", ())
    monkeypatch.setattr(planning, "WAYS", ())
