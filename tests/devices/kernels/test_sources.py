"""The CUDA sources compile, and what decides which kernel runs is right. No GPU needed."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ooc_cudnn.devices.kernels import launch_geometry
from ooc_cudnn.devices.kernels.compiling import sources_folder
from ooc_cudnn.devices.kernels.convolution_direct import plan as plan_direct
from ooc_cudnn.devices.kernels.pointwise import plan_pointwise
from ooc_cudnn.devices.kernels.relayout import plan_relayout
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.convolution.forward import Convolution
from tests.support.sampling import EVERY

NVCC = shutil.which(os.environ.get("NVCC") or "nvcc")
#: `make check` asks for the oldest and the newest that nvcc knows, and Hopper.
ARCHITECTURES = os.environ.get("OOC_TESTS_ARCHITECTURES", "sm_75 sm_90").split()
#: Where relayouts spilled registers once.
SPILLED_ONCE = "sm_90"

INSTANCES = {
    "pointwise.cu": [
        "pointwise<float, float, float, RELU, false, false, 4, 4, false, false, true>",
        "pointwise<__half, float, __half, GELU, true, false, 4, 4, true, true, true>",
        "pointwise<__nv_bfloat16, float, float, SWISH, false, false, 4, 4, false, false, true>",
        "pointwise<__half, __half, __half, IDENTITY, true, true, 8, 4, false, false, true>",
        "pointwise<__half, __half, float, CLIPPED_RELU, false, true, 1, 8, true, false, true>",
        "pointwise<__half, __half, __half, RELU, false, false, 8, 8, true, true, true>",
        "pointwise<double, double, double, ELU, true, true, 2, 4, true, true, true>",
        "pointwise<double, double, double, TANH, false, false, 1, 4, true, true, false>",
    ],
    "relayout.cu": [
        "copy_strided<unsigned short, 8, 4, true, true>",
        "copy_strided<unsigned long long, 1, 4, false, false>",
        "transpose<unsigned short, 128, 64, 8, 8, true, WHOLE, SHIFTED, SHIFTED>",
        "transpose<unsigned int, 1024, 3, 4, 4, true, WHOLE, ALIGNED, FLAT>",
        "transpose<unsigned int, 64, 64, 4, 4, true, SPLIT_P, ALIGNED, ALIGNED>",
        "transpose<unsigned long long, 32, 64, 2, 2, true, SPLIT_Q, ALIGNED, SHIFTED>",
        "transpose<unsigned long long, 5, 384, 2, 2, false, WHOLE, FLAT, ALIGNED>",
        "fill_zero<uint4>",
        "fill_zero<unsigned char>",
    ],
    "unfold.cu": [
        "unfold_columns<unsigned short, 8>",
        "unfold_columns<unsigned int, 4>",
    ],
    "spin.cu": ["spin"],
    "attention_small.cu": [
        "small_attention<__nv_bfloat16, float, 32>",
        "small_attention<__half, unsigned char, 16>",
        "small_attention_gradient<__nv_bfloat16, float, 32, true>",
        "small_attention_gradient<__half, __half, 64, false>",
        "small_bias_sums<float>",
    ],
    "attention.cu": [
        "attention_weights<float, float, 32>",
        "attention_weights<__half, unsigned char, 256>",
        "attention_weights<__nv_bfloat16, float, 32>",
        "attention_gradient<double, unsigned char, 32>",
        "attention_gradient<__half, __half, 256>",
        "attention_bias_sums<float, float>",
        "attention_bias_sums<__half, float>",
    ],
    "cast_scale.cu": [
        "cast_scale<int, unsigned char, __half, 8, 4>",
        "cast_scale<long long, unsigned short, float, 1, 4>",
    ],
    "channel_argmax.cu": [
        "channel_argmax<int, __half, unsigned char, 8>",
        "channel_argmax<long long, double, long long, 1>",
    ],
    "dropout.cu": ["dropout<int, __half, 8, 2>", "dropout<long long, double, 1, 2>", "advance<1>"],
    "image_softmax.cu": [
        "image_peaks<__nv_bfloat16, 8, 4, false>",
        "image_sums<__half, LOG_BACKWARD, 8, 4, false>",
        "image_sums<float, ACCURATE_BACKWARD, 1, 8, true>",
        "join_image_peaks<256>",
        "join_image_sums<256>",
        "image_outcomes<double, LOG, 2, 4, false>",
        "image_outcomes<__half, ACCURATE_BACKWARD, 8, 4, false>",
    ],
    "interpolation.cu": [
        "interpolate_lanes<int, float, false, 4, 4>",
        "interpolate_lanes<int, __half, true, 8, 4>",
        "interpolate_lanes<long long, double, false, 1, 4>",
        "interpolate_rows<int, float, true, 4, 4>",
        "interpolate_rows<int, __nv_bfloat16, false, 4, 4>",
        "interpolate_rows<long long, double, true, 2, 4>",
    ],
    "masks.cu": [
        "slope_mask<int, __half, LEAKY_RELU, 8>",
        "slope_mask<long long, double, CLIPPED_RELU, 1>",
        "masked_gradient<int, __nv_bfloat16, 8>",
        "masked_gradient<int, float, 4>",
    ],
    "op_tensor.cu": [
        "op_tensor<int, float, ADD, true, CONSTANT, 4, 4>",
        "op_tensor<int, __half, MAXIMUM, true, PACKED, 8, 4>",
        "op_tensor<int, __nv_bfloat16, MULTIPLY, true, CARRIED, 8, 4>",
        "op_tensor<long long, double, MINIMUM, false, STRIDED, 1, 4>",
    ],
    "pooling.cu": [
        "pool_rows<int, float, MAX, 1, 2, 2, 1, 2, 2, 0, 4, 4, 4>",
        "pool_rows<int, __half, MAX, 1, 3, 3, 1, 2, 2, 1, 8, 8, 8>",
        "pool_rows<long long, __half, AVERAGE_EXCLUDE_PADDING, 3, 3, 3, 2, 2, 2, 0, 2, 1, 2>",
        "pool_rows<int, double, AVERAGE_INCLUDE_PADDING, 1, 1, 1, 1, 3, 2, 0, 2, 2, 1>",
        "pool_windows<int, __nv_bfloat16, MAX, 8, 1, 3, 3, 1, 2, 2, 2, false, true>",
        "pool_windows<int, float, AVERAGE_EXCLUDE_PADDING, 4, 1, 2, 2, 1, 2, 2, 1, false, false>",
        "pool_windows<long long, double, MAX, 2, 3, 3, 3, 1, 2, 2, 1, false, false>",
        "pool_windows<int, float, MAX, 1, 1, 3, 3, 1, 2, 2, 6, true, true>",
        "pool_by_warp<int, float, MAX, 4, 1, 30, 30, 1, 2, 2>",
        "pool_by_warp<long long, double, AVERAGE_EXCLUDE_PADDING, 1, 1, 30, 30, 1, 2, 2>",
    ],
    "pooling_gradient.cu": [
        "unpool_planes<int, float, MAX, 3028, 1, 28, 28, 5, true, false, 3, 3, 2, 2>",
        "unpool_planes<int, __nv_bfloat16, AVERAGE_EXCLUDE_PADDING, 6064, 2, 28, 28, 7, true, "
        "true, 3, 3, 2, 2>",
        "unpool_planes<long long, double, MAX, 42, 1, 1, 14, 1, true, false, 1, 1, 1, 3>",
        "unpool_strips<int, float, MAX, 4, 1, 8, 2, false, false, true, 1, 3, 3, 1, 2, 2>",
        "unpool_strips<long long, float, MAX, 1, 2, 1, 2048, true, false, true, 1, 2, 2, 1, 2, 2>",
        "unpool_strips<int, __half, AVERAGE_INCLUDE_PADDING, 2, 1, 8, 1, false, false, false, 2, "
        "2, 2, 3, 3, 3>",
        "unpool_tile<int, float, MAX, true, 1, 4, 1, 1, 60, 60, 1, 1, 30, 30, 1, 20, 20>",
        "unpool_tile<int, double, MAX, false, 2, 1, 1, 1, 16, 16, 8, 3, 3, 3, 2, 2, 2>",
        "unpool_direct<int, float, MAX, 1, 20, 20, 1, 1, 1>",
        "unpool_direct<long long, __half, AVERAGE_EXCLUDE_PADDING, 1, 20, 20, 1, 1, 1>",
    ],
    "pooling_indices.cu": [
        "pooling_indices<int, float, 4, 1, 3, 3, 1, 2, 2, true, true>",
        "pooling_indices<long long, __half, 1, 2, 2, 2, 2, 1, 3, false, false>",
        "pooling_from_indices<int, __nv_bfloat16, 8, 1, 3, 3, 1, 2, 2>",
        "pooling_from_indices<int, double, 1, 1, 3, 3, 1, 2, 3>",
        "pooling_indices_rows<int, float, 4, 4, 1, 2, 2, 1, 2, 2, true, true>",
        "pooling_indices_rows<long long, __half, 4, 1, 3, 3, 3, 1, 2, 2, false, false>",
        "pooling_from_indices_rows<int, float, 8, 1, 2, 2, 1, 2, 2>",
        "pooling_from_indices_rows<long long, double, 2, 3, 3, 13, 1, 2, 1>",
    ],
    "softmax_columns.cu": [
        "softmax_columns<__nv_bfloat16, ACCURATE, 2, 24>",
        "softmax_columns<__half, LOG_BACKWARD, 1, 2>",
        "softmax_columns_swept<float, ACCURATE_BACKWARD, 4, 4>",
        "softmax_columns_swept<double, LOG, 1, 8>",
    ],
    "resampling.cu": [
        "resample<float, NEAREST, false>",
        "resample<__half, WINDOWS, false>",
        "resample<double, WINDOWS, true>",
        "resample_gradient<__nv_bfloat16, NEAREST>",
        "resample_gradient<double, WINDOWS>",
        "resample_max_gradient<__half>",
    ],
    "gather_nhwc.cu": [
        "gather_nhwc<int, float, true, 4, 4>",
        "gather_nhwc<long long, __half, true, 8, 4>",
        "gather_nhwc<int, double, true, 1, 4>",
        "gather_nhwc<int, __nv_bfloat16, false, 8, 1>",
        "gather_nhwc<long long, float, false, 1, 1>",
    ],
    "gather_nchw.cu": [
        "gather_nchw<int, float, true, 4, 4>",
        "gather_nchw<long long, __half, true, 8, 4>",
        "gather_nchw<int, __nv_bfloat16, false, 8, 4>",
        "gather_nchw<long long, double, false, 2, 4>",
    ],
    "local_response_lanes.cu": [
        "local_response_lanes<int, float, 2, 2, THREE_QUARTERS, 4, 2>",
        "local_response_lanes<long long, double, 8, 8, ANY, 1, 2>",
        "local_response_lanes_backward<int, float, 2, 2, THREE_QUARTERS, 4>",
        "local_response_lanes_backward<int, __half, 2, 1, HALF, 8>",
        "local_response_lanes_backward<long long, __nv_bfloat16, 8, 8, ONE, 1>",
    ],
    "local_response_walk.cu": [
        "local_response_walk<int, float, 2, 2, THREE_QUARTERS, 4>",
        "local_response_walk<long long, __half, 2, 1, HALF, 8>",
        "local_response_walk_backward<int, float, 2, 2, THREE_QUARTERS, 4>",
        "local_response_walk_backward<long long, double, 8, 8, ANY, 1>",
    ],
    "local_response_wide.cu": [
        "local_response_wide<float, THREE_QUARTERS>",
        "local_response_wide_backward<__half, ANY>",
    ],
    "losses.cu": [
        "cross_entropy<float, long long, 1>",
        "cross_entropy<double, int, 32>",
        "cross_entropy_backward<__half, unsigned char, 1>",
        "cross_entropy_backward<__nv_bfloat16, long long, 32>",
        "label_weights<unsigned char, float>",
        "class_sums<float, long long>",
        "class_sums<double, unsigned char>",
        "class_sums_backward<__half, int, 1>",
        "class_sums_backward<double, long long, 32>",
        "row_totals<float>",
        "element_loss<float, SQUARED>",
        "element_loss<double, SIGMOID>",
        "element_loss_backward<__half, SIGMOID>",
        "loss_total",
    ],
    "set_statistics.cu": [
        "set_partials<float, true, RELU, true>",
        "set_partials<__half, false, IDENTITY, false>",
        "set_partials<double, true, IDENTITY, false>",
        "set_partials<__nv_bfloat16, true, SWISH, false>",
        "set_partials<__half, true, SWISH, true>",
        "normalise_sets<__nv_bfloat16, SWISH, true, 8>",
        "normalise_sets<__half, GELU, true, 8>",
        "normalise_sites_backward<__half, 4>",
        "normalise_sites_backward<float, 32>",
        "normalise_sites_backward<double, 0>",
        "normalise_sites_backward<float, 24, __nv_bfloat16>",
        "site_products<float, __nv_bfloat16, 4>",
        "site_products<__half, __half, 4>",
        "site_products<double, double, 4>",
        "set_partials<float, true, IDENTITY, false, __half>",
        "set_partials<float, true, IDENTITY, true, __nv_bfloat16>",
        "normalise_sets<float, IDENTITY, false, 4, __nv_bfloat16, float>",
        "normalise_sets<float, IDENTITY, true, 1, float, __half>",
        "set_totals<true>",
        "set_totals<false>",
        "fold_images<1>",
        "fold_images<3>",
        "merge_groups<3>",
        "group_sums<float>",
        "normalise_sets<__half, RELU, true, 8>",
        "normalise_sets<__nv_bfloat16, LEAKY_RELU, false, 4>",
        "normalise_sets<double, IDENTITY, true, 1>",
    ],
    "gradient_sums.cu": [
        "gradient_partials<float, RELU, false, false, 4, 4, true, true>",
        "gradient_partials<__half, TANH, false, true, 8, 2, false, false>",
        "gradient_partials<float, RELU, true, true, 4, 4, true, true>",
        "gradient_partials<double, LEAKY_RELU, true, true, 2, 4, true, false>",
    ],
    "normalise.cu": [
        "normalise<float, RELU, false, true, 4, 4, true, true>",
        "normalise<__nv_bfloat16, IDENTITY, true, false, 8, 2, false, false>",
        "normalise_backward<float, RELU, 4, 4, true, true>",
        "normalise_backward<double, IDENTITY, 2, 4, true, false>",
    ],
    "channel_reduction.cu": [
        "channel_partials<float, PRODUCTS, 4, 4, true, true>",
        "channel_totals<float, double, MOMENTS>",
    ],
    "activation_backward.cu": [
        "activation_backward<int, float, RELU, false, 4, 2>",
        "activation_backward<int, __half, GELU, true, 8, 2>",
        "activation_backward<long long, __nv_bfloat16, ELU, true, 8, 2>",
        "activation_backward<int, double, SWISH, true, 2, 2>",
        "activation_backward<int, float, TANH, false, 1, 2>",
    ],
    "softmax.cu": [
        "softmax_rows<float, ACCURATE_BACKWARD, 4, 5, 512>",
        "softmax_staged<float, ACCURATE, 4, 12, 1, 16384>",
        "softmax_long<__half, LOG_BACKWARD, 8, 4, 1024>",
    ],
    "welford_merge.cu": [
        "merge_moments",
        "add_states",
        "merge_image_maximum",
        "moments_result<float, RUNNING_VARIANCE>",
    ],
    "convolution_direct.cu": [
        "convolution_direct<float, float, 4>",
        "convolution_direct<__half, float, 1>",
        "convolution_direct<__nv_bfloat16, __nv_bfloat16, 4>",
        "convolution_direct<double, double, 1>",
    ],
    "convolution_direct_backward.cu": [
        "convolution_direct_data<float, float, 4>",
        "convolution_direct_data<__half, float, 1>",
        "convolution_direct_data<__nv_bfloat16, __nv_bfloat16, 4>",
        "convolution_direct_filter<float, float, 1>",
        "convolution_direct_filter<__half, float, 4>",
        "convolution_direct_filter<double, double, 4>",
    ],
}


def test_every_source_is_compiled_here():
    """Seven were not: nothing is compiled of a template by itself."""
    assert {path.name for path in sources_folder().glob("*.cu")} == set(INSTANCES)


@pytest.mark.parametrize("source", sorted(INSTANCES))
def test_a_source_begins_with_the_memory_traffic_it_needs(source: str):
    lines = (sources_folder() / source).read_text(encoding="utf-8").splitlines()
    head = " ".join(itertools.takewhile(lambda line: line.startswith("//"), lines))
    assert "Memory traffic" in head


def compiled():
    """Sources and the architectures they are compiled for: in turns, or all of them."""
    sources = sorted(INSTANCES)
    if EVERY:
        return list(itertools.product(sources, ARCHITECTURES))
    found = {source: ARCHITECTURES[at % len(ARCHITECTURES)] for at, source in enumerate(sources)}
    if SPILLED_ONCE in ARCHITECTURES:
        found["relayout.cu"] = SPILLED_ONCE
    return list(found.items())


# `make check` asks for it by name.
@pytest.mark.every_case
@pytest.mark.skipif(NVCC is None, reason="nvcc is not installed")
@pytest.mark.parametrize(("source", "architecture"), compiled())
def test_source_compiles_without_warnings(source: str, architecture: str, tmp_path: Path):
    folder = sources_folder()
    # Gather the address of a template instance makes the compiler build it.
    table = ",\n".join(f"    (void *)&{instance}" for instance in INSTANCES[source])
    unit = tmp_path / "unit.cu"
    unit.write_text(f'#include "{folder / source}"\nvoid *instances[] = {{\n{table}}};\n')
    options = ["-std=c++17", f"-arch={architecture}", "-cubin", "-Werror", "all-warnings"]
    command = [str(NVCC), *options, "-Xptxas", "-v", "-o", str(tmp_path / "unit.cubin"), str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Compiling entry function") == len(INSTANCES[source]), done.stderr
    if source == "relayout.cu" and architecture == SPILLED_ONCE:  # what made it slow once
        assert done.stderr.count(" 0 bytes spill stores") == len(INSTANCES[source]), done.stderr


def packed(sizes: tuple[int, int, int], order: str) -> tuple[int, int, int]:
    _, c, s = sizes
    return (c * s, s, 1) if order == "first" else (c * s, 1, c)


@pytest.mark.parametrize("keep_channel", [False, True])
@pytest.mark.parametrize("orders", list(itertools.product(["first", "last"], repeat=2)))
@pytest.mark.parametrize("pitch", [0, 4])
@pytest.mark.parametrize("sizes", list(itertools.product([1, 2, 3], [1, 2, 5], [1, 4, 7])))
def test_rows_address_the_same_elements(sizes, pitch, orders, keep_channel):
    """Walking (outer, middle, inner) meets the addresses that walking (n, c, s) meets."""
    strides = []
    for order in orders:
        _, c, s = packed((sizes[0], sizes[1], sizes[2] + pitch), order)
        strides.append((_ + pitch, c, s))
    rows = launch_geometry.common_rows(sizes, strides, keep_channel=keep_channel)
    expected = {
        tuple(sum(i * step for i, step in zip(index, stride, strict=True)) for stride in strides)
        + ((index[1],) if keep_channel else ())
        for index in itertools.product(*map(range, sizes))
    }
    met = [
        tuple(
            sum(i * step for i, step in zip(index, stride, strict=True)) for stride in rows.strides
        )
        + ((index[2 if rows.inner_is_channel else 1],) if keep_channel else ())
        for index in itertools.product(*map(range, rows.sizes))
    ]
    assert len(met) == len(set(met))
    assert set(met) == expected


def test_packed_layouts_move_in_16_byte_packs():
    shape = (2, 64, 8, 8)
    first = DeviceView(4096, "float16", shape, (4096, 64, 8, 1))
    last = DeviceView(4096, "float16", shape, (4096, 1, 512, 64))
    bias = DeviceView(256, "float16", (64,), (1,))
    for view in (first, last):
        launch = plan_pointwise(view, view, None, None, bias, None, "relu", "float16")
        assert launch is not None
        assert "__half, __half, __half, RELU, false, false, 8, 8," in launch.expression
    odd = DeviceView(4098, "float16", shape, first.strides)
    launch = plan_pointwise(odd, first, None, None, bias, None, "relu", "float16")
    assert launch is not None
    assert "__half, __half, __half, RELU, false, false, 1, 8," in launch.expression


def test_relayout_chooses_copy_or_transpose():
    shape = (2, 64, 100)
    first = DeviceView(4096, "float32", shape, (6400, 100, 1))
    last = DeviceView(4096, "float32", shape, (6400, 1, 64))
    names = {
        (a, b): plan_relayout(x, y).expression.split("<")[0]
        for (a, x), (b, y) in itertools.product([("first", first), ("last", last)], repeat=2)
    }
    assert names == {
        ("first", "first"): "copy_strided",
        ("last", "last"): "copy_strided",
        ("first", "last"): "transpose",
        ("last", "first"): "transpose",
    }


@pytest.mark.parametrize("item_bytes", [2, 4, 8])
def test_transpose_tiles_fit_shared_memory(item_bytes: int):
    shapes = itertools.product(range(2, 270), (2, 49, 1000, 10**6), (False, True))
    for channels, spatial, wanted in shapes:
        whole = wanted and launch_geometry.may_be_whole(channels, item_bytes)
        tile_c, tile_s = launch_geometry.transpose_tile(channels, spatial, item_bytes, whole=whole)
        assert tile_c == channels if whole else 1 <= tile_c <= min(channels, 64)
        assert 1 <= tile_s <= min(spatial, 1024)
        # the exact pitch of relayout.cu, both ways
        for p, q in ((tile_c, tile_s), (tile_s, tile_c)):
            pitch = (p | 1) if q >= 32 else p + -(-32 // q)
            assert q * pitch * item_bytes <= 48 * 1024


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("complex64", (1, 1), (1, 1)), "dtype"),
        (("float32", (1, 1), (1,)), "number of axes"),
        (("float32", (1, -1), (1, 1)), "negative"),
    ],
)
def test_view_refuses(arguments, message: str):
    with pytest.raises(ValueError, match=message):
        DeviceView(0, *arguments)


def test_view_flattens_or_says_why_not():
    assert DeviceView(0, "float32", (2, 3, 4, 1, 5), (90, 30, 5, 77, 1)).flat() == (
        (2, 3, 20),
        (90, 30, 1),
    )
    assert DeviceView(0, "float32", (2, 3), (3, 1)).flat() == ((2, 3, 1), (3, 1, 1))
    with pytest.raises(ValueError, match="do not flatten"):
        DeviceView(0, "float32", (2, 3, 4, 5), (90, 30, 6, 1)).flat()
    with pytest.raises(ValueError, match="n and c"):
        DeviceView(0, "float32", (2,), (1,)).flat()


def test_plans_refuse_operands_that_do_not_fit():
    a = DeviceView(0, "float32", (1, 2, 3), (6, 3, 1))
    b = DeviceView(0, "float32", (1, 2, 4), (8, 4, 1))
    half = DeviceView(0, "float16", (1, 2, 3), (6, 3, 1))
    bias = DeviceView(0, "float32", (3,), (1,))

    def pointwise(value, *, addend=None, shift=None, old=None, mode="relu", dtype="float32"):
        plan_pointwise(a, value, addend, None, shift, old, mode, dtype)

    pointwise(half)  # a cast
    with pytest.raises(ValueError, match="value has shape"):
        pointwise(b)
    with pytest.raises(ValueError, match="shift has shape"):
        pointwise(a, shift=bias)
    with pytest.raises(ValueError, match="value is float16"):
        pointwise(half, dtype="bfloat16")
    with pytest.raises(ValueError, match="mode is"):
        pointwise(a, mode="relu6")
    with pytest.raises(ValueError, match="keeps type and shape"):
        plan_relayout(a, half)
    convolution = Convolution.of((1, 2, 3), (2, 2, 1))
    w = DeviceView(0, "float32", (2, 2, 1), (2, 1, 1))
    with pytest.raises(ValueError, match="do not fit the operation"):
        plan_direct(convolution, a, a, a)
    with pytest.raises(ValueError, match="an input is float16"):
        plan_direct(convolution, half, w, a)
    with pytest.raises(ValueError, match="the result is float16"):
        plan_direct(convolution, a, w, half)
