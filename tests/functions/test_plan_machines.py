"""Every function can be planned for every machine whose profile is shipped, without a card."""

from dataclasses import replace
from itertools import product

import pytest

from ooc_cudnn.functions.call.decorator import FUNCTIONS
from ooc_cudnn.functions.call.plan_api import plan
from ooc_cudnn.operations import AddTensor, Convolution, Pooling
from ooc_cudnn.tensor import DTYPES, TensorSpec
from perfmodel import shipped_names

X = TensorSpec((32, 32, 24, 24))
POOLED = TensorSpec((32, 32, 12, 12))
W = TensorSpec((32, 32, 3, 3), placement="device")
B = TensorSpec((32,), placement="device")
MOMENTS = {"scale": B, "bias": B}
#: Arguments of each function; operands of x's kind in float32.
CALLS = {
    "convolution_forward": {"x": X, "w": W, "padding": 1},
    "convolution_backward_data": {"w": W, "dy": X, "padding": 1},
    "convolution_backward_filter": {"x": X, "dy": X, "padding": 1},
    "convolution_backward_bias": {"dy": X},
    "add_tensor": {"b": B, "y": X},
    "activation_forward": {"x": X},
    "activation_backward": {"y": X, "dy": X, "x": X, "mode": "gelu"},
    "pooling_forward": {"x": X, "window": 2},
    "pooling_backward": {"y": POOLED, "dy": POOLED, "x": X, "window": 2},
    "softmax_forward": {"x": X},
    "softmax_backward": {"y": X, "dy": X},
    "batch_normalization_forward_training": {"x": X, **MOMENTS},
    "batch_normalization_forward_inference": {"x": X, **MOMENTS, "mean": B, "variance": B},
    "batch_normalization_backward": {
        "x": X, "dy": X, "scale": B, "saved_mean": B, "saved_inverse_variance": B,
    },
    "convolution_add_activation_forward": {"x": X, "w": W, "b": B, "padding": 1},
    "convolution_add_activation_pooling_forward": {
        "x": X, "w": W, "b": B, "padding": 1, "window": 2,
    },
    "convolution_add_activation_backward": {"x": X, "w": W, "y": X, "dy": X, "padding": 1},
}  # fmt: skip
LIMIT = X.nbytes // 2


def of_dtype(arguments, dtype):
    """The same operands in another dtype; parameters of batch norms stay float32 beside halves."""
    kept = {B} if "scale" in arguments and dtype in ("float16", "bfloat16") else set()
    return {
        name: TensorSpec(value.shape, dtype, value.placement)
        if isinstance(value, TensorSpec) and value not in kept
        else value
        for name, value in arguments.items()
    }


def test_no_function_is_left_out():
    assert set(CALLS) | {"chain_forward"} == set(FUNCTIONS)


@pytest.mark.parametrize(("machine", "dtype"), [*product(shipped_names(), DTYPES)])
def test_every_function_is_planned(machine, dtype):
    for function, arguments in CALLS.items():
        found = plan(function, machine=machine, memory_limit=LIMIT, **of_dtype(arguments, dtype))
        assert found.machine == machine
        assert found.seconds > 0, function
        assert min(found.copy_in_seconds, found.compute_seconds) > 0, function
        assert found.device_bytes <= LIMIT


def test_a_plan_says_where_its_machine_was_not_measured():
    """One of a call, and one of chains one after the other."""
    operations = [Convolution(W, padding=1), Pooling(window=2)]
    label = "on rtx4090 (not measured: from data sheets): "
    for calls in ({"function": "activation_forward"}, {"function": "chain_forward",
                                                       "operations": operations}):  # fmt: skip
        found = plan(x=X, machine="RTX 4090", memory_limit=LIMIT, **calls)
        assert found.machine == "rtx4090"
        assert label in found.explain().splitlines()[0]
    assert "measured" not in plan("activation_forward", x=X, machine="h100").explain()


@pytest.mark.parametrize("machine", shipped_names())
def test_a_chain_is_planned(machine):
    operations = [Convolution(W, padding=1), AddTensor(B), Pooling(window=2)]
    found = plan("chain_forward", x=X, operations=operations, machine=machine, memory_limit=LIMIT)
    assert found.seconds > 0
    assert found.device_bytes <= LIMIT


@pytest.mark.parametrize("placement", ["pageable", "disk"])
@pytest.mark.parametrize("machine", shipped_names())
def test_slower_placements_take_longer(machine, placement):
    seconds = [
        plan("activation_forward", x=replace(X, placement=where), machine=machine,
             memory_limit=LIMIT).seconds
        for where in ("pinned", placement)
    ]  # fmt: skip
    assert seconds[0] <= seconds[1]


def test_a_plan_is_a_line_where_it_is_looked_at():
    found = plan("activation_forward", x=X, machine="h200", memory_limit="1MiB")
    said = repr(found)
    assert said.startswith("<Plan: activation_forward on h200, ")
    assert said.endswith(" of memory_limit 1.00 MiB>")
    assert len(said) < 200
