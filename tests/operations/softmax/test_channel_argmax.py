"""Labels of sites, under every split, and in a network."""

from __future__ import annotations

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.operations.softmax.channel_argmax import ArgmaxCall
from tests.support.every_split import check_every_split


@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (3, 2, 9), (1, 4, 3, 2, 4), (3, 5)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_under_every_split(random, dtype, shape):
    x = random.integers(-2, 2, shape).astype(dtype)
    call = ArgmaxCall(shape, dtype, "uint8")
    check_every_split(call, {"x": x}, {"y": x.argmax(1)[:, None].astype("f8")}, most=6)


def test_a_network_hands_out_labels_and_no_scores(random):
    net = ooc_cudnn.Network(seed=0)
    x = net.input("x", (2, 3, 32, 32))
    scores = net.convolution(x, 40, window=3, padding=1)
    labels = net.argmax(scores)
    assert (labels.shape, labels.dtype) == ((2, 1, 32, 32), "uint8")
    given = random.standard_normal(x.shape).astype("f4")
    with ooc_cudnn.settings(device="host", machine="host", memory_limit="1MiB"):
        expected = net.forward(scores, x=given).argmax(1)[:, None]
        with ooc_cudnn.profile() as p:
            found = net.forward(labels, x=given)
    np.testing.assert_array_equal(found, expected)
    (call,) = p.calls
    assert call.bytes_out == found.nbytes  # the scores stay where they are made


def test_what_does_not_hold_the_labels_is_refused():
    net = ooc_cudnn.Network()
    x = net.input("x", (1, 300, 4, 4))
    with pytest.raises(ValueError, match="uint8 cannot hold the labels of 300 channels"):
        net.argmax(x)
    with pytest.raises(TypeError, match="labels must be uint8"):
        net.argmax(x, dtype="float32")
    assert net.argmax(x, dtype="uint16").dtype == "uint16"
