"""Inference of networks on dask arrays: blocks equal to one call on the whole."""

import numpy as np
import pytest

import ooc_cudnn

da = pytest.importorskip("dask.array", reason="the extra dask is not installed")

import dask  # noqa: E402

import ooc_cudnn.dask as ooc  # noqa: E402
from tests.dask.test_drawn_calls import drawn_chunks  # noqa: E402
from tests.fuzz.stream import Stream  # noqa: E402


@pytest.fixture(autouse=True)
def in_this_process(few_plans):
    with dask.config.set(scheduler="synchronous"), ooc_cudnn.settings(deterministic=True):
        yield


def images(*shape, dtype="float64"):
    return np.random.default_rng(0).integers(0, 5, shape).astype(dtype)


def of_whole_numbers(net):
    """Every sum is exact, whatever its order."""
    for at, (name, array) in enumerate(net.parameters.items()):
        drawn = np.random.default_rng(at).integers(-2, 3, array.shape)
        net.parameters[name] = drawn.astype(array.dtype)
    return net


def u_net(shape):
    """Maps that are read by two nodes, joined, scaled up and down, cropped and added."""
    net = ooc_cudnn.Network()
    x = net.input("image", shape, "float64")
    wide = net.activation(net.convolution(x, 3, window=3, padding=1))
    low = net.convolution(net.pooling(wide, window=2), 4, window=(3, 1), padding=(2, 0), dilation=2)
    up = net.transposed_convolution(net.activation(low), 3, window=2, stride=2)
    joined = net.concatenate([wide, up])
    y = net.convolution(joined, 3, window=3)
    inner = net.crop(wide, 1, y.shape[2:])
    return of_whole_numbers(net), net.activation(net.add(y, inner), "relu")


@pytest.mark.parametrize("chunks", [(1, 1, (5, 12, 7), (20,)), (2, 1, 12, (9, 11))])
def test_a_block_is_that_of_the_whole(chunks):
    x = images(2, 1, 24, 20)
    net, y = u_net(x.shape)
    made = ooc.forward(net, y, image=da.from_array(x, chunks))
    assert made.shape == y.shape
    assert made.name.startswith("forward-")
    np.testing.assert_array_equal(made, net.forward(y, image=x))


def test_a_map_that_a_chain_reads_twice_with_other_halos():
    net = ooc_cudnn.Network()
    x = net.input("image", (1, 2, 15), "float64")
    h = net.add(net.convolution(x, 2, window=3, padding=1), x)
    y = net.add(net.convolution(h, 2, window=3, padding=1), h)
    of_whole_numbers(net)
    given = images(1, 2, 15)
    made = ooc.forward(net, y, image=da.from_array(given, chunks=(1, 2, (9, 6))))
    np.testing.assert_array_equal(made, net.forward(y, image=given))


def test_blocks_of_an_axis_that_is_whole_read_what_they_need_of_it():
    net = ooc_cudnn.Network()
    x = net.input("image", (2, 2, 6, 4), "float64")
    y = net.interpolation(net.crop(x, (1, 2), (5, 2)), size=(8, 1))
    given = images(2, 2, 6, 4)
    made = ooc.forward(net, y, image=da.from_array(given, chunks=(2, 2, (2, 4), (3, 1))))
    np.testing.assert_array_equal(made, net.forward(y, image=given))


def test_a_block_that_sees_padding_alone_is_cut_out_of_a_larger_one():
    net = ooc_cudnn.Network()
    x = net.input("image", (1, 2, 15), "float64")
    y = net.pad(net.adaptive_pooling(x, 6), [(0, 3)])
    given = images(1, 2, 15)
    made = ooc.forward(net, y, image=da.from_array(given, chunks=(1, 2, (12, 3))))
    np.testing.assert_array_equal(made, net.forward(y, image=given))


@pytest.mark.parametrize("seed", [1, 7])
def test_drawn_networks(seed):
    pytest.importorskip("torch")  # what draws them draws PyTorch's twin, too
    from tests.support.drawn_networks import drawn_network

    net, *_ = drawn_network(seed, rows=9)
    maps = [node.y for node in net.graph.nodes.values() if len(node.y.shape) > 2]
    y = [each for each in maps if max(each.shape[2:]) > 2][-1]
    read = {name for phase in net.forward_phases(y).phases for name in phase.reads}
    given = {
        name: np.random.default_rng(seed).standard_normal(tensor.shape)
        for name, tensor in net.graph.tensors.items()
        if tensor.kind == "input" and name in read
    }
    cut = {
        name: da.from_array(each, chunks=drawn_chunks(Stream(seed, name), each.shape))
        for name, each in given.items()
    }
    expected = net.forward(y, **given)
    size = np.abs(expected).max()
    np.testing.assert_allclose(ooc.forward(net, y, **cut), expected, rtol=0, atol=1e-12 * size)


def test_networks_that_differ_in_where_maps_lie_have_names_of_their_own():
    """What is joined or cropped is a view: phases are the same, and blocks were another's."""
    given = images(1, 2, 14, 12)
    image = da.from_array(given, chunks=(1, 2, 5, 5))

    def joined(net, x, order):
        maps = [net.convolution(x, 2, window=1) for _ in range(2)]
        return net.concatenate(maps[::order])

    def cropped(net, x, first):
        return net.crop(net.activation(x), first, (8, 8))

    for part, ways in ((joined, (1, -1)), (cropped, (1, 3))):
        found = []
        for way in ways:
            net = ooc_cudnn.Network()
            y = net.convolution(
                part(net, net.input("image", given.shape, "float64"), way), 2, window=3
            )
            made = ooc.forward(of_whole_numbers(net), y, image=image)
            found.append((made, net.forward(y, image=given)))
        (one, other) = dask.compute(found[0][0], found[1][0])
        assert found[0][0].name != found[1][0].name
        np.testing.assert_array_equal(one, found[0][1])
        np.testing.assert_array_equal(other, found[1][1])


def test_parameters_are_those_of_when_the_array_was_made():
    net = ooc_cudnn.Network()
    y = net.convolution(net.input("image", (1, 1, 12, 8), "float64"), 2, window=3)
    of_whole_numbers(net)
    given = images(1, 1, 12, 8)
    image = da.from_array(given, chunks=(1, 1, 5, 8))
    made, expected = ooc.forward(net, y, image=image), net.forward(y, image=given)
    for array in net.parameters.values():
        array[...] = 7
    np.testing.assert_array_equal(made, expected)
    assert ooc.forward(net, y, image=image).name != made.name


def test_stored_images_are_widened_where_they_are_computed():
    net = ooc_cudnn.Network()
    x = net.input("image", (1, 3, 30, 10), "uint8")
    y = net.convolution(net.image(x, mean=2.0, scale=0.5), 2, window=5, stride=3, padding=(4, 0))
    of_whole_numbers(net)
    y = net.local_response_normalization(y, 3)
    stored = images(1, 3, 30, 10, dtype="uint8")
    made = ooc.forward(net, y, image=da.from_array(stored, chunks=(1, 3, 8, 10)))
    halo = [key for key in made.dask.layers[made.name] if "halo_image" in str(key[0])]
    assert {dask.get(dict(made.dask), key).dtype.name for key in halo} == {"uint8"}
    np.testing.assert_array_equal(made, net.forward(y, image=stored))


@pytest.mark.parametrize("chunks", [(2, 2, 12, 8), (2, 2, (5, 7), 3)])
def test_what_is_made_of_whole_images_is_reduced_over_chunks(chunks):
    net = ooc_cudnn.Network()
    x = net.input("image", (3, 2, 12, 8), "float64")
    h = net.activation(net.instance_normalization(net.convolution(x, 4, window=3, padding=1)))
    h = net.group_normalization(net.convolution(h, 4, window=3, padding=1), 2)
    squeezed = net.activation(net.linear(net.global_average(h), 4), "sigmoid")
    h = net.activation(net.multiply(h, squeezed))
    y = net.linear(net.global_max(h), 5)
    given = images(3, 2, 12, 8)
    cut = da.from_array(given, chunks=chunks)
    for output in (h, y):
        made = ooc.forward(net, output, image=cut)
        np.testing.assert_allclose(made, net.forward(output, image=given), rtol=0, atol=1e-13)


def test_a_map_may_be_joined_with_what_is_made_of_its_mean():
    """Both lie in one tensor, and the part that needed the mean was asked for to make the mean."""
    net = ooc_cudnn.Network()
    x = net.input("image", (2, 2, 7, 6), "float64")

    def scaled(h):
        squeezed = net.activation(net.linear(net.global_average(h), h.shape[1]), "sigmoid")
        return net.multiply(h, squeezed)

    maps = [net.convolution(x, 2, window=3, padding=1)]
    for _ in range(2):
        maps.append(scaled(maps[-1]))
    dense = net.concatenate([*maps, net.activation(net.crop(maps[0], 0, (7, 6)))])
    more = net.concatenate([dense, net.instance_normalization(dense)])
    y = net.convolution(more, 2, window=3, padding=1)
    given = images(2, 2, 7, 6)
    cut = da.from_array(given, chunks=(1, 2, (2, 5), (4, 2)))
    for output in (net.concatenate(maps[1:]), dense, y):
        made = ooc.forward(net, output, image=cut)
        np.testing.assert_allclose(made, net.forward(output, image=given), rtol=0, atol=1e-13)


def test_what_cannot_be_reduced_is_named():
    net = ooc_cudnn.Network()
    x = net.input("image", (1, 2, 12, 8), "float64")
    y = net.softmax(net.convolution(x, 1, window=3), mode="instance")
    with pytest.raises(ValueError, match=r"softmax_1 forward needs whole images"):
        ooc.forward(net, y, image=da.zeros((1, 2, 12, 8), chunks=(1, 2, 6, 8)))


def test_wrong_inputs_are_refused_when_the_array_is_made():
    net, y = u_net((1, 1, 12, 12))
    wide = da.zeros((1, 1, 24, 12), chunks=(1, 1, 6, 6))
    with pytest.raises(ValueError, match=r"network.resized\(image=\(1, 1, 24, 12\)\)"):
        ooc.forward(net, y, image=wide)
    with pytest.raises(TypeError, match="image must be float64, not float32"):
        ooc.forward(net, y, image=wide[:, :, :12].astype("float32"))
    with pytest.raises(TypeError, match="needs image and has no input images"):
        ooc.forward(net, y, images=wide)
    with pytest.raises(TypeError, match="must be a Network, not dict"):
        ooc.forward({}, y)
    loss = net.mean_squared_error(y, net.input("wanted", y.shape, "float64"))
    with pytest.raises(ValueError, match=r"of shape \(1,\) is no map of 1 images"):
        ooc.forward(net, loss, image=wide[:, :, :12], wanted=da.zeros(y.shape))
