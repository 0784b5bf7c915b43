"""One convolution on a device with engines: tuned, planned and called."""

import numpy as np

import ooc_cudnn
from ooc_cudnn.functions import tune
from ooc_cudnn.operations.convolution import Convolution
from ooc_cudnn.tensor import TensorSpec

X, W = TensorSpec((8, 4, 16, 16)), TensorSpec((4, 4, 3, 3))
#: A result of `X` and `W`, and of one of its images.
RESULTS = 8 * 4 * 16 * 16
IMAGE = RESULTS // 8
KIB = 2**10


def tuned(**options):
    options = {"x": X, "w": W, "padding": 1} | options
    return tune.tune("convolution_forward", **options)


def planned(**options):
    options = {"x": X, "w": W, "padding": 1} | options
    return ooc_cudnn.plan("convolution_forward", **options)


def call(random, **settings):
    """The convolution of `X` and `W`: how far it is from the reference."""
    x, w = random.standard_normal(X.shape, "f4"), random.standard_normal(W.shape, "f4")
    with ooc_cudnn.settings(**settings):
        y = ooc_cudnn.convolution_forward(x, w, padding=1)
    expected = Convolution.of(X.shape, W.shape, padding=1).reference(x, w)
    return np.abs(y - expected).max() / np.abs(expected).max()


def numbers(measured):
    return [option.engine.number for option in measured.options]
