"""A grid of blocks: what it says of each is what the block by itself says."""

import itertools

import pytest

import ooc_cudnn
from ooc_cudnn.network.tiled.tile_grid import Grid
from ooc_cudnn.network.tiled.tile_step import step_of_tile


def strided(shape):
    """Chunks that begin in the middle of strides, and rows that read padding alone."""
    net = ooc_cudnn.Network()
    x = net.input("image", shape, "float64")
    low = net.pooling(net.convolution(x, 3, window=3, padding=2, stride=2), window=2)
    return net, net.transposed_convolution(low, 2, window=2, stride=3)


@pytest.mark.parametrize(
    "cuts",
    [
        ((0, 1, 2), (0, 2), (0, 5, 9, 14, 17), (0, 4, 8, 12, 14)),
        ((0, 1, 2), (0, 2), (0, 1, 2, 3, 17), (0, 14)),
    ],
)
def test_blocks_of_a_kind_run_the_same_step(cuts):
    net, y = strided((2, 1, 24, 18))
    assert y.shape == tuple(each[-1] for each in cuts)
    step = net.forward_phases(y)
    kinds = {}
    count = 0
    for place in Grid(step, cuts):
        alone = step_of_tile(step, y.name, place.region)
        assert place.inputs == alone.inputs
        beyond = tuple(
            (a - b, c - d) for (a, c), (b, d) in zip(alone.output, place.region, strict=True)
        )
        assert kinds.setdefault(place.kind, (alone.step, beyond)) == (alone.step, beyond)
        count += 1
    assert count == len(list(itertools.product(*(each[1:] for each in cuts))))
    assert len(kinds) < count
