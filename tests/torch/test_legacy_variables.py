"""`torch.autograd.Variable` in forward, which TorchDynamo by itself refuses."""

import pytest

from tests.torch.idioms import legacy_variables
from tests.torch.idioms.judge import EQUAL, under_an_ample

pytestmark = pytest.mark.usefixtures("fewest_plans")

NAMED = {idiom.name: idiom for idiom in legacy_variables.CASES}
OF_ITS_OWN = "Variable(y, requires_grad=True)"


@pytest.mark.parametrize("name", [each for each in NAMED if each != OF_ITS_OWN])
def test_what_dynamo_refuses_is_computed(name):
    assert under_an_ample(NAMED[name])[0].kind == EQUAL


def test_a_leaf_that_forward_makes_is_refused():
    assert "leave requires_grad out" in under_an_ample(NAMED[OF_ITS_OWN])[0].why
