"""A normalization that rounds what it makes, beside one behind which a cast does."""

from unittest import mock

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.network.graph import autodiff

pytest.importorskip("ml_dtypes")

SHAPE = (2, 6, 3, 5)


def network(case):
    """A network, what is asked of it, and whether its cast is folded."""
    net = ooc_cudnn.Network()
    x = net.input("x", SHAPE, gradient=True)
    kind = {"of a half type": "float16", "of float64": "float64"}.get(case, "float32")
    h = net.cast(x, kind) if kind != "float32" else x
    if case in ("there and back", "there, and read beside"):
        h = net.cast(net.convolution(net.cast(x, "bfloat16"), 6, window=1), "float32", name="wide")
    wide = h
    h = net.layer_normalization(h, epsilon=1e-3, name="norm", **NORMS.get(case, {}))
    cast = net.cast(h, {"of a half type": "float32"}.get(case, "bfloat16"), name="cast")
    y = net.convolution(cast, 4, window=1, name="conv")
    beside = {
        "read beside": lambda: [net.activation(h, "relu")],
        "asked for": lambda: [h],
        "there, and read beside": lambda: [net.activation(wide, "relu")],
        "cast twice": lambda: [net.cast(h, "float16")],
    }.get(case, list)()
    return net, [y, *beside]


NORMS = {"of images": {"over": "image"}}
#: By case the casts that are no phases.
FOLDED = {"alone": {"cast"}, "there and back": {"cast", "wide"}, "there, and read beside": {"cast"}}
KEPT = ["read beside", "asked for", "cast twice", "of a half type", "of float64", "of images"]


def results(case):
    """Outputs and gradients; and the names of phases."""
    net, outputs = (network_of_groups if case in GROUPS else network)(case)
    random = np.random.default_rng(1)
    for each in net.parameters.values():
        each[...] = random.standard_normal(each.shape)
    given = 3 + random.standard_normal(SHAPE).astype("float32")
    step = net.pausing_step(*outputs)
    with ooc_cudnn.settings(device="host", machine="host", memory_limit="64KiB"):
        paused = step.forward(x=given)
        ys = [np.array(y) for y in paused.outputs]
        dys = [random.standard_normal(y.shape).astype(y.dtype) for y in ys]
        gradients = paused.backward(dys)
        names = [task.name for task in step.plan.tasks]
    return [*ys, *(np.array(gradients[name]) for name in sorted(gradients))], names


def network_of_groups(case):
    """A group norm with an activation between casts, and what is asked of it."""
    mode, coef, dtype, further = GROUPS[case]
    net = ooc_cudnn.Network()
    x = net.input("x", SHAPE, gradient=True)
    half = net.convolution(net.cast(x, dtype), 6, window=1, name="first")
    h = wide = net.cast(half, "float32", name="wide") if further != "of float32" else x
    h = net.group_normalization(h, groups=2, epsilon=1e-3, name="norm")
    if mode:
        h = net.activation(h, mode, coef=coef or None, name="act")
    y = net.convolution(net.cast(h, dtype, name="cast"), 4, window=1, name="conv")
    beside = {"read beside": [h], "asked for": [h], "wide": [wide]}.get(further, [])
    if further == "read beside":
        beside = [net.activation(h, "relu")]
    return net, [y, *beside]


#: Mode, coef, half type, and what else there is.
GROUPS = {
    "groups": (None, 0, "bfloat16", ""),
    "groups in float16": (None, 0, "float16", ""),
    "swish": ("swish", 1.5, "bfloat16", ""),
    "swish in float16": ("swish", 1, "float16", ""),
    "relu": ("relu", 0, "bfloat16", ""),
    "leaky_relu": ("leaky_relu", 0.1, "bfloat16", ""),
    "mish": ("mish", 0, "bfloat16", ""),
    "gelu": ("gelu", 0, "float16", ""),
    "gelu_tanh": ("gelu_tanh", 0, "bfloat16", ""),
    "hardswish": ("hardswish", 0, "bfloat16", ""),
    "relu in float16": ("relu", 0, "float16", ""),
    "leaky_relu that folds back": ("leaky_relu", -0.5, "bfloat16", ""),
    "relu6": ("clipped_relu", 6, "bfloat16", ""),
    "tanh": ("tanh", 0, "bfloat16", ""),
    "elu": ("elu", 1, "bfloat16", ""),
    "swish, read beside": ("swish", 1, "bfloat16", "read beside"),
    "swish, asked for": ("swish", 1, "bfloat16", "asked for"),
    "swish, of float32": ("swish", 1, "bfloat16", "of float32"),
    "swish, wide": ("swish", 1, "bfloat16", "wide"),
}
FOLDED |= {key: {"cast", "wide"} for key in list(GROUPS)[:10]}
KEPT += list(GROUPS)[10:]


@pytest.mark.usefixtures("few_plans")
@pytest.mark.parametrize("case", [*FOLDED, *KEPT])
def test_a_folded_cast_changes_no_bit(case):
    found, names = results(case)
    with mock.patch.object(autodiff, "fold_casts", lambda nodes, asked: nodes):
        expected, unfolded = results(case)
    casts = [{name.split()[0] for name in each} & {"cast", "wide"} for each in (names, unfolded)]
    assert casts[1] - casts[0] == FOLDED.get(case, set())
    assert len(found) == len(expected) >= 5
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert one.tobytes() == other.tobytes()
