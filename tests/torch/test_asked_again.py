"""What is like what was there before, and another: types, objects, their order. All is seen."""

import pytest

from tests.torch.idioms import alike
from tests.torch.idioms.judge import EQUAL, EQUAL_SINCE_2_13, REFUSED, under_an_ample

pytestmark = pytest.mark.usefixtures("fewest_plans")


@pytest.mark.parametrize("idiom", alike.CASES[:-2], ids=lambda idiom: idiom.name)
def test_what_is_another_is_captured_anew(idiom):
    verdict, _ = under_an_ample(idiom)
    assert verdict.kind == EQUAL, verdict.why


def test_a_method_that_is_kept_is_a_key_or_is_refused():
    assert under_an_ample(alike.BY_A_STORED_METHOD)[0].kind == EQUAL_SINCE_2_13


def test_what_a_hook_moves_is_refused():
    assert under_an_ample(alike.MOVED_LATE)[0].kind == REFUSED
