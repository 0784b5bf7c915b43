"""Tests of functions plan the same calls under many limits and splits."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def searches_of_all_modules_are_shared(searches_are_shared):
    return searches_are_shared
