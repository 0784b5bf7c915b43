"""Functions on dask arrays: dask's conventions, borders, what is refused."""

import numpy as np
import pytest

import ooc_cudnn

da = pytest.importorskip("dask.array", reason="the extra dask is not installed")

import dask  # noqa: E402

import ooc_cudnn.dask as ooc  # noqa: E402
from ooc_cudnn.dask.chunks import join  # noqa: E402


@pytest.fixture(autouse=True)
def in_this_process():
    with dask.config.set(scheduler="synchronous"):
        yield


def whole_numbers(*shape, dtype="float64", seed=0):
    """Small integers: sums of products are exact in any order."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


X, W = whole_numbers(3, 4, 17, 13), whole_numbers(6, 4, 3, 3, seed=1)
CHUNKS = (2, 4, (5, 1, 11), (6, 7))


def test_it_is_an_array_of_dask():
    x = da.from_array(X, chunks=CHUNKS)
    y = ooc.convolution_forward(x, W, padding=1)
    assert isinstance(y, da.Array)
    assert y.shape == (3, 6, 17, 13)
    assert y.chunks == ((2, 1), (6,), (5, 1, 11), (6, 7))
    assert y.dtype == y._meta.dtype == "float64"
    assert type(y._meta) is np.ndarray
    assert y.name.startswith("convolution_forward-")
    assert y.name == ooc.convolution_forward(x, W, padding=1).name
    assert y.name != ooc.convolution_forward(x, W, padding=2).name
    expected = ooc_cudnn.convolution_forward(X, W, padding=1)
    np.testing.assert_array_equal(y.blocks[1, 0, 2, 0].compute(), expected[2:, :, 6:, :6])
    np.testing.assert_array_equal((y + 1)[:, 2].sum(axis=0).compute(), (expected + 1)[:, 2].sum(0))


def test_what_a_mask_leaves_of_chunks_may_be_nothing():
    x = da.from_array(X, chunks=(1, 4, 9, 13))
    picked = x[da.from_array(np.array([False, True, True]), chunks=1)].compute_chunk_sizes()
    assert picked.chunks[0] == (0, 1, 1)
    y = ooc.convolution_forward(picked, W, padding=1)
    np.testing.assert_array_equal(y, ooc_cudnn.convolution_forward(X[1:], W, padding=1))


def test_a_block_reads_its_chunk_and_the_halo_alone():
    read = []

    def chunk(block_info):
        where = block_info[None]["array-location"]
        read.append(tuple(start for start, _ in where[2:]))
        return X[tuple(slice(*each) for each in where)]

    x = da.map_blocks(chunk, chunks=((3,), (4,), (4, 4, 4, 5), (6, 7)), dtype="float64")
    y = ooc.convolution_forward(x, W, padding=1)
    read.clear()
    y.blocks[0, 0, 0, 0].compute()
    assert set(read) == {(0, 0), (4, 0), (0, 6), (4, 6)}
    halo = [task for key, task in y.dask.layers[y.name].items() if "halo_x" in str(key[0])]
    rows = {cut.stop - cut.start for *_, cuts in halo for cut in cuts if cut.stop}
    assert rows == {1}


@pytest.mark.parametrize(
    "how",
    [
        {"padding": ((3, 0), (0, 2)), "stride": (3, 2)},
        {"padding": 4, "dilation": (4, 3)},
        {"stride": 5},
        {"padding": 1, "groups": 2},
    ],
    ids=str,
)
def test_convolutions_and_their_gradients_are_those_of_one_call(how, searches_are_shared):
    """In chunks smaller than the halo, and windows larger than a chunk."""
    w = W[:, : 4 // how.get("groups", 1)]
    given = X[:2, :, :9, :11]
    x = da.from_array(given, chunks=(2, 4, (5, 1, 3), (2, 9)))
    y = ooc_cudnn.convolution_forward(given, w, **how)
    np.testing.assert_array_equal(ooc.convolution_forward(x, w, **how), y)
    dy = whole_numbers(*y.shape, seed=2)
    cut = da.from_array(dy, chunks=(1, 6, 2, 4))
    np.testing.assert_array_equal(
        ooc.convolution_backward_data(w, cut, input_shape=given.shape, **how),
        ooc_cudnn.convolution_backward_data(w, dy, input_shape=given.shape, **how),
    )
    np.testing.assert_array_equal(
        ooc.convolution_backward_filter(x, cut, filter_shape=w.shape, alpha=0.5, **how),
        ooc_cudnn.convolution_backward_filter(given, dy, filter_shape=w.shape, alpha=0.5, **how),
    )
    np.testing.assert_array_equal(
        ooc.convolution_backward_bias(cut), ooc_cudnn.convolution_backward_bias(dy)
    )


def test_what_keeps_channels_apart_may_be_cut_along_them():
    x = da.from_array(X, chunks=(3, 3, 9, 13))
    pooled = ooc.pooling_forward(x, window=3, padding=1, stride=2)
    assert pooled.chunks[1] == (3, 1)
    np.testing.assert_array_equal(
        pooled, ooc_cudnn.pooling_forward(X, window=3, padding=1, stride=2)
    )
    added = ooc.add_tensor(X[:1, :, :1], x, alpha=2.0, beta=-1.0)
    np.testing.assert_array_equal(added, 2 * X[:1, :, :1] - X)


def test_stored_images_travel_as_they_are():
    stored = (np.abs(X) * 25).astype("uint8")
    x = da.from_array(stored, chunks=CHUNKS)
    y = ooc.convolution_forward(x, W, padding=1)
    halo = [key for key in y.dask.layers[y.name] if "halo_x" in str(key[0])]
    assert halo
    assert all(dask.get(dict(y.dask), key).dtype == "uint8" for key in halo)
    np.testing.assert_array_equal(
        y, ooc_cudnn.convolution_forward(stored.astype("float64"), W, padding=1)
    )


def test_batch_normalization_is_to_the_last_bit_where_chunks_hold_whole_images():
    x = np.random.default_rng(0).standard_normal((5, 3, 40, 30))
    dy = np.random.default_rng(1).standard_normal(x.shape)
    scale, bias = np.float64([1, 2, 3]), np.float64([3, 2, 1])
    with ooc_cudnn.settings(deterministic=True):
        one = ooc_cudnn.batch_normalization_forward_training(x, scale, bias)
        one += ooc_cudnn.batch_normalization_backward(x, dy, scale)
        for chunks, exact in (((2, 3, 40, 30), True), ((2, 3, 11, 30), False)):
            many = ooc.batch_normalization_forward_training(da.from_array(x, chunks), scale, bias)
            many += ooc.batch_normalization_backward(da.from_array(x, chunks), dy, scale)
            for expected, found in zip(one, dask.compute(*many), strict=True):
                size = np.abs(expected).max()
                np.testing.assert_allclose(
                    found, expected, rtol=0, atol=0 if exact else 1e-13 * size
                )


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: ooc.convolution_forward(x.rechunk({1: 2}), W), ValueError,
         r"x is cut along its channels, into \(2, 2\), but convolution_forward needs all.*rechunk"),
        (lambda x: ooc.convolution_forward(x[x[:, 0, 0, 0] > 0], W), ValueError,
         "x has chunks of unknown sizes.*compute_chunk_sizes"),
        (lambda x: ooc.convolution_forward(x, W, out=np.zeros(3)), TypeError,
         "takes no out: they are not written in place"),
        (lambda x: ooc.convolution_forward(x, W, beta=0.5), TypeError, "takes no beta"),
        (lambda x: ooc.convolution_forward(x, W[:, :3]), ValueError, "w must have shape"),
        (lambda x: ooc.convolution_forward(x.astype("complex128"), W), TypeError, "x: dtype"),
        (lambda x: ooc.convolution_forward(3, W), TypeError, "x must be an array, not int"),
        (lambda x: ooc_cudnn.activation_forward(x), TypeError, "ooc_cudnn.dask has the functions"),
        (lambda x: ooc.pooling_forward(x, window=40), ValueError, "window"),
        (lambda x: ooc.convolution_forward(x, W, paddin=1), TypeError, "paddin"),
    ],
)  # fmt: skip
def test_what_is_refused_when_the_array_is_made(call, error, words):
    with pytest.raises(error, match=words):
        call(da.from_array(X, chunks=CHUNKS))


def test_a_chunk_that_is_not_what_dask_says_is_named():
    x = da.from_array(X, chunks=CHUNKS).map_blocks(lambda block: block[:, :, 1:], dtype="float64")
    with pytest.raises(ValueError, match=r"a chunk of x has shape .* where the dask array says"):
        ooc.activation_forward(x).compute()


def test_chunks_that_do_not_fit_each_other_are_refused():
    """Smaller ones than dask says left what they did not fill as it was in memory."""

    def without_a_row(block, block_info=None):
        return block[:, :, :-1] if block_info[0]["chunk-location"][3] == 1 else block

    x = da.from_array(X, chunks=CHUNKS).map_blocks(without_a_row, dtype=X.dtype)
    with pytest.raises(ValueError, match=r"a chunk has shape .* where those beside it leave"):
        ooc.convolution_forward(x, W, padding=1).compute()


def test_a_blocks_input_need_not_be_pinned():
    """Where the limit of pinned memory has no room, it is gathered elsewhere."""
    with ooc_cudnn.settings(device="host", host_memory_limit=1):
        found = join([[[[X[:, :1]]], [[X[:, 1:]]]]])
        assert ooc_cudnn.placement(found) == "pageable"
    np.testing.assert_array_equal(found, X)
