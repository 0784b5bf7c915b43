"""What users build: names, parameters, files, other sizes, and errors that name the node."""

import math
import pickle

import numpy as np
import pytest
import torch

import ooc_cudnn
from tests.support.interpreter import run_step


def small(image=6, *, seed=0, dtype="float64", n=2):
    """Two convolutions with batch norm between them."""
    net = ooc_cudnn.Network(seed=seed)
    x = net.input("x", (n, 3, image, image), dtype)
    h = net.batch_normalization(net.convolution(x, 4, window=3, padding=1))
    y = net.convolution(net.activation(h), 2, window=1, name="head")
    return net, y


NAMES = [
    "convolution_1.w", "convolution_1.b", "batch_normalization_1.scale",
    "batch_normalization_1.bias", "head.w", "head.b",
]  # fmt: skip


def test_parameters_have_stable_names_in_the_order_of_making():
    net, y = small()
    assert list(net.parameters) == NAMES
    assert list(net.running) == [f"batch_normalization_1.running_{n}" for n in ("mean", "variance")]
    assert (y.name, y.shape, y.dtype) == ("head", (2, 2, 6, 6), "float64")
    assert repr(net) == "Network of 4 nodes and 130 parameters"


def test_parameters_are_drawn_after_he_from_the_seed():
    net = ooc_cudnn.Network(seed=3)
    x = net.input("x", (1, 64, 4, 4))
    net.convolution(x, 128, window=3, name="a")
    w = net.parameters["a.w"]
    assert w.dtype == np.float32
    assert w.std() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.02)
    assert abs(w.mean()) < 0.001
    assert not net.parameters["a.b"].any()
    again = ooc_cudnn.Network(seed=3)
    again.convolution(again.input("x", (1, 64, 4, 4)), 128, window=3, name="b")
    _ = again.parameters["b.b"]  # whichever is asked for first
    assert np.array_equal(again.parameters["b.w"], w)
    other = ooc_cudnn.Network(seed=4)
    other.convolution(other.input("x", (1, 64, 4, 4)), 128, window=3)
    assert not np.array_equal(other.parameters["convolution_1.w"], w)


def test_parameters_may_be_given_and_replaced_by_arrays_of_any_framework():
    net = ooc_cudnn.Network()
    x = net.input("x", (1, 3, 4, 4))
    given = np.ones((2, 3, 1, 1), "float32")
    net.convolution(x, 2, window=1, w=given)
    assert net.parameters["convolution_1.w"] is given
    net.parameters["convolution_1.w"] = tensor = torch.zeros(2, 3, 1, 1)
    assert net.parameters["convolution_1.w"] is tensor
    net.parameters["convolution_1.b"] += 1  # in place
    assert net.parameters["convolution_1.b"].tolist() == [1, 1]
    with pytest.raises(ValueError, match=r"convolution_1.w must have shape \(2, 3, 1, 1\), not"):
        net.parameters["convolution_1.w"] = np.ones((2, 3), "float32")
    with pytest.raises(TypeError, match=r"convolution_1.w must be float32, not float64"):
        net.parameters["convolution_1.w"] = np.ones((2, 3, 1, 1))
    with pytest.raises(TypeError, match=r"convolution_1.w must be an array"):
        net.parameters["convolution_1.w"] = 1.0
    with pytest.raises(KeyError, match="none of convolution_1"):
        net.parameters["head.w"] = given
    with pytest.raises(TypeError, match="belongs to the network"):
        del net.parameters["convolution_1.w"]
    net.parameters["convolution_1.w"].resize_(2, 3)
    with pytest.raises(ValueError, match=r"convolution_1.w must have shape \(2, 3, 1, 1\), not"):
        net.parameters.checked()


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_a_file_brings_everything_back(tmp_path, dtype):
    net, _ = small(seed=1, dtype=dtype)
    net.running["batch_normalization_1.running_mean"] += 1
    net.save(tmp_path / "net.npz")
    other, _ = small(seed=2, dtype=dtype, n=5)
    there = other.parameters["head.w"]
    other.load(tmp_path / "net.npz")
    assert other.parameters["head.w"] is there  # read into what there is
    for mine, its in ((net.parameters, other.parameters), (net.running, other.running)):
        for name in mine:
            assert np.array_equal(mine[name], its[name]), name
            assert mine[name].dtype == its[name].dtype
    assert [path.name for path in tmp_path.iterdir()] == ["net.npz"]


def test_the_file_of_another_network_is_refused(tmp_path):
    net, _ = small()
    path = tmp_path / "net.npz"
    before = net.parameters["head.w"].copy()
    other = ooc_cudnn.Network()
    x = other.input("x", (1, 3, 6, 6), "float64")
    other.convolution(x, 4, window=3, padding=1)
    other.save(path)
    with pytest.raises(ValueError, match="the file of another network: 4 nodes here, 1 there"):
        net.load(path)
    other.activation(x)
    other.save(path)
    with pytest.raises(ValueError, match=r"node 1 here is batch_normalization_1 \(BatchNormali"):
        net.load(path)
    small(dtype="float32")[0].save(path)
    with pytest.raises(ValueError, match=r"convolution_1.w here is float64 \[4, 3, 3, 3\], there"):
        net.load(path)
    path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"net\.npz is no file that Network.save wrote"):
        net.load(path)
    np.savez(path, a=np.ones(3))
    with pytest.raises(ValueError, match="is no file that"):
        net.load(path)
    assert np.array_equal(net.parameters["head.w"], before)
    with pytest.raises(FileNotFoundError):
        net.load(tmp_path / "nowhere.npz")


def test_a_file_that_is_broken_changes_nothing(tmp_path):
    """Nor does one that cannot be read into what is there."""
    net, _ = small(seed=1)
    path, broken = tmp_path / "net.npz", tmp_path / "broken.npz"
    net.save(path)
    other, _ = small(seed=2)
    before = {name: array.copy() for name, array in other.parameters.items()}
    whole, arrays = path.read_bytes(), dict(np.load(path))
    for cut in (0, 1, len(whole) // 2, len(whole) - 1):
        broken.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match=r"is no file that Network\.save wrote"):
            other.load(broken)
    less = {name: array for name, array in arrays.items() if name != "head.b"}
    for held in (
        less,
        {**less, "head.b": np.zeros(7)},
        {**arrays, "graph": np.frombuffer(b"[1]", np.uint8)},
    ):
        np.savez(broken, **held)
        with pytest.raises(ValueError, match=r"is no file that Network\.save wrote"):
            other.load(broken)
    other.parameters["head.b"].flags.writeable = False
    with pytest.raises(ValueError, match=r"head\.b is read-only"):
        other.load(path)
    for name, array in before.items():
        assert np.array_equal(other.parameters[name], array), name


def test_a_file_is_as_readable_as_others(tmp_path):
    net, _ = small()
    net.save(tmp_path / "net.npz")
    (tmp_path / "other").touch()
    modes = {path.stat().st_mode for path in tmp_path.iterdir()}
    assert len(modes) == 1


def test_the_same_network_for_other_sizes_shares_its_parameters():
    net, y = small()
    larger = net.resized(x=(1, 3, 9, 8))
    assert larger.graph.tensors["head"].shape == (1, 2, 9, 8)
    assert larger.parameters is net.parameters
    x = np.random.default_rng(0).standard_normal((2, 3, 6, 6))
    given = {"x": x, **net.parameters, **net.running}
    whole = run_step(net.forward_phases(y), given)["head"]
    one = net.resized(x=(1, 3, 6, 6))
    found = run_step(one.forward_phases(one.graph.tensors["head"]), {**given, "x": x[:1]})["head"]
    assert np.allclose(found, whole[:1], rtol=1e-12)
    with pytest.raises(ValueError, match="'y' is no input"):
        net.resized(y=(1, 3, 9, 8))


def test_a_layer_that_takes_one_size_alone_says_so():
    net, y = small()
    net.linear(y, 5, name="last")
    assert net.resized(x=(7, 3, 6, 6)).graph.tensors["last"].shape == (7, 5)
    with pytest.raises(ValueError, match=r"last: last\.w has shape \(5, 72\), and would have"):
        net.resized(x=(1, 3, 9, 9))


def test_a_size_that_does_not_fit_takes_nothing_from_the_network():
    """Both share their parameters."""
    net, _ = small()
    before = dict(net.parameters)
    for shape in ((1, 3, 6), (1, 4, 6, 6), (2, 3, 6, 6, 1)):
        with pytest.raises(ValueError, match="convolution_1"):
            net.resized(x=shape)
        assert all(net.parameters[name] is array for name, array in before.items())


def test_a_name_that_a_parameter_would_have_leaves_no_parameter_behind():
    net = ooc_cudnn.Network()
    x = net.input("x", (1, 2, 3, 3))
    net.activation(x, name="c.b")
    with pytest.raises(ValueError, match=r"c: there is a tensor named 'c.b'"):
        net.convolution(x, 2, window=1, name="c")
    assert list(net.parameters) == []
    assert list(net.graph.tensors) == ["x", "c.b"]


def test_names_of_tensors_that_a_step_makes_are_its_own():
    """A map named as another one made again took its place: gradients were wrong."""
    net = ooc_cudnn.Network()
    x = net.input("x", (2, 2, 3, 3), "float64")
    for name in ("h remade", "h [1]", "h band 0", "h\tas 1x2"):
        with pytest.raises(ValueError, match="must not hold blanks"):
            net.activation(x, name=name)
        with pytest.raises(ValueError, match="must not hold blanks"):
            net.input(name, (1,))
    y = net.batch_normalization(x, name="n")
    y = net.activation(y, name="n.saved_mean")
    loss = net.mean_squared_error(y, net.input("target", y.shape, "float64"))
    with pytest.raises(ValueError, match=r"n: 'n\.saved_mean' names both a .* and a"):
        net.plan(loss, machine="h200")


def test_a_network_can_be_pickled():
    net, y = small()
    again = pickle.loads(pickle.dumps(net))
    for name, array in net.parameters.items():
        assert np.array_equal(again.parameters[name], array), name
    x = np.ones((2, 3, 6, 6))
    assert np.array_equal(again.forward(again.graph.tensors["head"], x=x), net.forward(y, x=x))


def test_errors_name_the_node_and_leave_the_network_as_it_was():
    net, y = small()
    tensors, nodes = dict(net.graph.tensors), dict(net.graph.nodes)
    parameters = list(net.parameters)
    x, other = net.graph.tensors["x"], ooc_cudnn.Network().input("x", (2, 3, 6, 7), "float64")
    for build, kind, message in (
        (lambda: net.convolution(y, 4, window=9), ValueError, "convolution_2: w of window"),
        (lambda: net.convolution(y, 0, window=1), ValueError, "convolution_2: channels must be"),
        (lambda: net.convolution(y, 4, window=1, groups=3), ValueError, "groups must divide cX=2"),
        (
            lambda: net.convolution(y, 4, window=1, w=np.ones(3)),
            ValueError,
            r"convolution_2: convo",
        ),
        (
            lambda: net.convolution(y, 4, window=1, bias=False, b=np.ones(4)),
            ValueError,
            "b must be",
        ),
        (lambda: net.convolution(y, 4, window=1, bias=1), TypeError, "bias must be True or False"),
        (lambda: net.convolution(y, 4, window=1, w=x), ValueError, "but x is no parameter"),
        (lambda: net.convolution(y, 4, windows=1), TypeError, "convolution_2: .* 'windows'"),
        (lambda: net.convolution(other, 4, window=1), ValueError, "x 'x' is not a tensor of this"),
        (lambda: net.convolution(None, 4, window=1), TypeError, "x must be a tensor of this netw"),
        (lambda: net.add(x, y), ValueError, r"add_1: b must have the shape of a, \(2, 3, 6, 6\)"),
        (lambda: net.add(x, y, name="x"), ValueError, "name 'x' is taken"),
        (lambda: net.add(x, y, name=3), TypeError, "name must be a string"),
        (lambda: net.concatenate(x), TypeError, "concatenate_1: parts must be a list"),
        (lambda: net.concatenate([]), TypeError, "concatenate_1: parts must be a list"),
        (lambda: net.activation(x, "reluu"), ValueError, "activation_2: mode must be one of"),
        (lambda: net.pooling(x, window=2, mode="min"), ValueError, "pooling_1: mode must be one"),
        (lambda: net.softmax(x, mode="x"), ValueError, "softmax_1: mode must be one of"),
        (lambda: net.linear(x, 1.5), ValueError, "linear_1: features must be"),
        (lambda: net.batch_normalization(x, epsilon=-1), ValueError, "epsilon must be from 0"),
        (
            lambda: net.batch_normalization(x, exponential_average_factor=math.nan),
            ValueError,
            "exponential_average_factor must be finite, not nan",
        ),
        (
            lambda: net.batch_normalization(x, scale=np.ones(4)),
            ValueError,
            r"scale must have shape",
        ),
        (lambda: net.input("x", (1, 2)), ValueError, "taken"),
        (lambda: net.input("z", (1, 0)), ValueError, "z: shape must hold positive ints"),
        (lambda: net.input("z", (1,), "complex64"), TypeError, "z: dtype must be one of"),
        (lambda: net.input("z", (2**50,)), ValueError, "z of shape .* is larger than any memory"),
        (lambda: net.convolution(y, 2**50, window=1), ValueError, "larger than any memory"),
        (lambda: net.pad(x, 2**24), ValueError, "pad_1 of shape .* is larger than any memory"),
        (lambda: net.input("z", (1,), "int64", gradient=True), TypeError, "has no gradient"),
        (lambda: ooc_cudnn.Network(seed=-1), ValueError, "seed must be"),
    ):
        with pytest.raises(kind, match=message):
            build()
        assert (net.graph.tensors, net.graph.nodes) == (tensors, nodes), message
        assert list(net.parameters) == parameters, message


def test_images_and_labels_are_no_maps():
    net = ooc_cudnn.Network()
    labels = net.input("labels", (4,), "int64")
    assert (labels.nbytes, labels.is_floating) == (32, False)
    with pytest.raises(TypeError, match="activation_1: x must be a floating tensor, but labels is"):
        net.activation(labels)


def test_a_name_that_is_none_is_told():
    net = ooc_cudnn.Network()
    net.linear(net.input("x", (2, 3)), 4, name="last")
    for ask in (lambda: net.parameters["w"], lambda: net.parameters.update(w=np.ones(3))):
        with pytest.raises(KeyError, match=r"'w' is none of last\.w, last\.b"):
            ask()
