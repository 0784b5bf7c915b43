"""One call of every public function, large enough to be cut: for what holds of them all."""

from __future__ import annotations

from tests.support import calls, chains, normalization
from tests.support.calls import ConvolutionCase, FusedCase, PoolingCase

X, W = (3, 4, 12, 8), (5, 4, 3, 3)
GEOMETRY = {"padding": ((1, 0), 1)}
POOLING = {"window": 3, "stride": 2, "padding": 1}
RECIPE = (
    chains.conv(4, 3, padding=1), chains.bias(), chains.act(), chains.conv(4, 3, padding=1),
    chains.norm(), chains.tensor("add"), chains.act("elu"), chains.pool(3, stride=2, padding=1),
)  # fmt: skip


def sample(dtype="float32", alpha=1.0, beta=0.0):
    """Calls by name: the function's, and more where a function goes several ways."""
    scale = {"dtype": dtype, "alpha": alpha, "beta": beta}
    convolution = ConvolutionCase("sample", X, W, GEOMETRY, **scale)
    pooled = PoolingCase("sample", X, POOLING, **scale)
    fused = FusedCase("sample", X, W, GEOMETRY, {"window": 3, "pooling_stride": 2}, **scale)
    found = {
        f"convolution_backward_{which}": calls.gradient_call(convolution, which)
        for which in ("data", "filter", "bias")
    }
    found |= {
        "add_tensor": calls.add_tensor_call((1, 4, 12, 1), X, dtype, 0.5, -1.5),
        "activation_forward": calls.activation_forward_call(X, "elu", None, **scale),
        "activation_backward": calls.activation_backward_call(X, "gelu", None, **scale),
        "pooling_forward": calls.pooling_forward_call(pooled, "max"),
        "pooling_forward average": calls.pooling_forward_call(pooled, "average_exclude_padding"),
        "pooling_backward": calls.pooling_backward_call(pooled, "max"),
        "pooling_backward average": calls.pooling_backward_call(pooled, "average_exclude_padding"),
        "softmax_forward": calls.softmax_forward_call(X, "accurate", "channel", **scale),
        "softmax_forward instance": calls.softmax_forward_call(X, "log", "instance", **scale),
        "softmax_backward": calls.softmax_backward_call(X, "accurate", "channel", **scale),
        "softmax_backward instance": calls.softmax_backward_call(X, "log", "instance", **scale),
        "batch_normalization_forward_training": normalization.training_call(X, **scale),
        "batch_normalization_forward_inference": normalization.inference_call(X, **scale),
        "batch_normalization_backward": normalization.backward_call(X, **scale),
        "batch_normalization_backward anew": normalization.backward_call(X, saved=False, **scale),
        "convolution_add_activation_pooling_forward": calls.fused_pooling_call(fused),
        "convolution_add_activation_backward": calls.fused_backward_call(fused),
        "chain_forward": chains.make_call(X, RECIPE, **scale),
    }
    for name, call in found.items():
        call.name = name
        assert name.startswith(call.function)
    return found


#: Names of the calls.
NAMES = tuple(sample())
#: The public functions that are sampled.
FUNCTIONS = tuple(dict.fromkeys(name.split()[0] for name in NAMES))
