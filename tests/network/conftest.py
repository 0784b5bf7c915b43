"""What all tests of networks share: what is known of calls, whatever their memory limit."""

from __future__ import annotations

import pytest

from tests.support import searches


@pytest.fixture(autouse=True, scope="module")
def searches_of_networks_are_shared():
    """A call that is planned under another limit has the pieces and the costs that it had."""
    with searches.shared():
        yield
