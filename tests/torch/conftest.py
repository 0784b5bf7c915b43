"""What all tests of the door for PyTorch share: plans."""

from __future__ import annotations

import pytest

from tests.support import shared_plans


@pytest.fixture(autouse=True, scope="module")
def plans_of_steps_are_shared():
    """A step that is asked for again under the same limit has the plan that it had before."""
    with shared_plans.shared():
        yield
