"""Tests of operations that cut calls on the host device, anew: kernels run in place of NumPy."""

# ruff: noqa: F401  # what is imported are the tests

from __future__ import annotations

import pytest

from tests.functions.test_every_split import test_every_split as test_functions
from tests.operations.attention.test_calls import test_backward as test_attention_gradient
from tests.operations.attention.test_calls import test_forward as test_attention
from tests.operations.attention.test_heads import test_under_every_split as test_heads
from tests.operations.elementwise.test_activation_bitmask import (
    test_forward_and_backward as test_masks,
)
from tests.operations.elementwise.test_broadcast_reduction import (
    test_gradients_of_what_is_broadcast,
    test_prelu_and_its_gradients,
    test_prelu_in_a_chain,
)
from tests.operations.elementwise.test_cast import test_every_split as test_casts
from tests.operations.elementwise.test_cast_scale import test_under_every_split as test_images
from tests.operations.elementwise.test_dropout import test_the_mask_is_the_same_under_every_split
from tests.operations.elementwise.test_reshape import test_every_split as test_reshape
from tests.operations.losses.test_launches import (
    test_cross_entropy_in_every_type,
    test_cross_entropy_is_pytorchs_under_every_split,
    test_losses_of_elements_are_pytorchs_under_every_split,
    test_losses_of_elements_in_every_type,
)
from tests.operations.normalization.test_local_response import (
    test_every_split as test_local_response,
)
from tests.operations.normalization.test_set_reduction import (
    test_batch_normalization_in_phases,
    test_batch_normalization_in_sweeps_is_deterministic_if_told,
    test_group_normalization,
    test_layer_normalization_of_each_site,
)
from tests.operations.pooling.test_indices import (
    test_forward_and_backward as test_pooling_indices,
)
from tests.operations.resampling.test_forward import test_every_split as test_resampling
from tests.operations.resampling.test_forward import (
    test_every_split_of_the_gradient as test_resampling_gradient,
)
from tests.support.card import ON_CARD
from tests.support.kernels_on_host import install

pytestmark = pytest.mark.skipif(ON_CARD, reason="tests/gpu runs calls on the card")


@pytest.fixture(autouse=True)
def kernels(request, host_device, monkeypatch):
    install(monkeypatch, host_device, request.node.nodeid)
