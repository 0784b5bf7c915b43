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
    net, outputs = network(case)
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
