"""Tests of functions plan the same calls under many limits and splits."""

import pytest

#: What these modules test is planning itself: they plan anew, as the library does.
PLANNING = ("test_plan", "test_plan_machines", "test_row_axes")


@pytest.fixture(autouse=True, scope="module")
def searches_of_other_modules_are_shared(request):
    if request.path.stem not in PLANNING:
        request.getfixturevalue("searches_are_shared")
