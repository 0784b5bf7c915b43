"""Keywords that others use are answered with what they are called here; so are missing packages."""

import subprocess
import sys

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.keywords import SYNONYMS, meant

X, W = np.ones((1, 3, 8, 8), "float32"), np.ones((4, 3, 3, 3), "float32")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"strides": 2}, "it is called 'stride' here$"),
        ({"paddin": 1}, "it is called 'padding' here$"),
        ({"bias": X}, r": convolution_add_activation_forward\(x, w, b, .*\) adds one"),
        ({"colour": 1}, "olour'$"),
    ],
)
def test_of_functions(given, said):
    with pytest.raises(TypeError, match=rf"^convolution_forward\(\) has no argument '.*{said}"):
        ooc_cudnn.convolution_forward(X, W, **given)


def test_of_builders_and_the_network_stays_as_it_was():
    net = ooc_cudnn.Network()
    x = net.input("x", X.shape)
    said = r"^convolution_1: convolution\(\) has no .* 'kernel_size': it is called 'window' here$"
    with pytest.raises(TypeError, match=said):
        net.convolution(x, 4, kernel_size=3)
    with pytest.raises(TypeError, match="'strides': it is called 'stride' here"):
        net.pooling(x, window=2, strides=2)
    assert net.convolution(x, 4, window=3).name == "convolution_1"


def test_of_pytorchs_door():
    torch = pytest.importorskip("torch")
    import ooc_cudnn.torch as ooc

    model = torch.nn.Conv2d(3, 4, 3).eval()
    for call in (
        lambda: ooc.limit(model, limit="1MiB"),
        lambda: ooc.infer(model, X, limit="1MiB"),
        lambda: ooc.plan(model, X, limit="1MiB"),
        lambda: ooc.plan_infer(model, X, limit="1MiB"),
    ):
        with pytest.raises(TypeError, match="'limit': it is called 'memory_limit' here"):
            call()
    assert "forward" not in vars(model)


def test_a_name_that_is_taken_is_not_proposed_again():
    with pytest.raises(TypeError, match=r"has no argument 'strides'$"):
        ooc_cudnn.convolution_forward(X, W, stride=1, strides=2)


def test_errors_of_a_call_itself_are_as_they_were():
    with pytest.raises(TypeError, match=r"^w must be float32 like x, not float64"):
        ooc_cudnn.convolution_forward(X, W.astype("float64"), padding=1)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'w'"):
        ooc_cudnn.convolution_forward(X)


def test_synonyms_are_of_names_that_there_are():
    assert meant("weights", ("x", "w")) == "w"
    assert not any(name in meanings for name, meanings in SYNONYMS.items())


_IMPORTS = """
import importlib, sys
sys.modules["pytorch_lightning"] = None
for package, room in zip(sys.argv[1::2], sys.argv[2::2]):
    sys.modules[package] = None
    try:
        importlib.import_module(f"ooc_cudnn.{room}")
    except ImportError as error:
        print(error)
"""


def test_a_room_names_the_extra_that_brings_its_package():
    """One process, in which one package after the other is missing, PyTorch the last."""
    rooms = {"distributed": "dask", "monai": "monai", "lightning": "lightning", "torch": "torch"}
    code = [sys.executable, "-c", _IMPORTS, *(each for pair in rooms.items() for each in pair)]
    ran = subprocess.run(code, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == [
        f'ooc_cudnn.{room} needs {package}: pip install "ooc_cudnn[{room}]"'
        for package, room in rooms.items()
    ]
