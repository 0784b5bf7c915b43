"""What runs kernels on the CPU does what a card does, and says what a kernel does wrong."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support import cuda_on_cpu
from tests.support.card import ON_CARD

pytestmark = pytest.mark.skipif(ON_CARD, reason="the kernels run on the card")

THREADS = 96


def run(body, *arrays, parameters="float *y", block=(THREADS,), blocks=3, arguments=None):
    """Run a kernel of these parameters and this body; returns its arrays as they are then."""
    cupy = cuda_on_cpu.module()
    arrays = [cupy.asarray(array) for array in arrays]
    code = f"__global__ void tried({parameters}) {{\n{body}\n}}"
    module = cupy.RawModule(code=code, options=("-std=c++17",), name_expressions=("tried",))
    kernel = module.get_function("tried").kernel
    kernel((blocks,), block, arguments or tuple(array.data.ptr for array in arrays), stream=None)
    return [cupy.asnumpy(array) for array in arrays]


def zeros(count=3 * THREADS, dtype=np.float32):
    return np.zeros(count, dtype)


PLACE = "const int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
REVERSED = (
    PLACE + "__shared__ float of_block[96];\nof_block[threadIdx.x] = i;\n"
    "BARRIER\ny[i] = of_block[95 - threadIdx.x];"
)  # fmt: skip


def test_threads_of_a_block_share_memory_and_wait_for_each_other():
    (y,) = run(REVERSED.replace("BARRIER", "__syncthreads();"), zeros())
    expected = np.arange(3 * THREADS).reshape(3, THREADS)[:, ::-1].ravel()
    assert np.array_equal(y, expected)


def test_a_missing_barrier_is_found():
    with pytest.raises(AssertionError, match="depends on the order"):
        run(REVERSED.replace("BARRIER", ""), zeros())


def test_shared_memory_begins_as_nan_in_each_block():
    body = PLACE + "__shared__ float kept[96];\nif (blockIdx.x == 1) kept[threadIdx.x] = 5;\n"
    (y,) = run(body + "y[i] = kept[threadIdx.x];", zeros())
    assert np.array_equal(np.isnan(y.reshape(3, -1)).all(axis=1), [True, False, True])


def test_three_axes_of_a_block():
    place = "threadIdx.x + 4 * (threadIdx.y + 3 * threadIdx.z)"
    body = f"y[{place}] = threadIdx.x * 100 + threadIdx.y * 10 + threadIdx.z;"
    (y,) = run(body, zeros(24), block=(4, 3, 2), blocks=1)
    z, row, x = np.unravel_index(np.arange(24), (2, 3, 4))
    assert np.array_equal(y, 100 * x + 10 * row + z)


SHUFFLES = {
    "__shfl_xor_sync(~0u, v, 5)": lambda lane: lane ^ 5,
    "__shfl_sync(~0u, v, 3, 8)": lambda lane: lane // 8 * 8 + 3,
    "__shfl_down_sync(~0u, v, 3)": lambda lane: np.where(lane + 3 < 32, lane + 3, lane),
    "__shfl_up_sync(~0u, v, 3, 16)": lambda lane: np.where(lane % 16 >= 3, lane - 3, lane),
    "(float)__popc(__ballot_sync(~0u, lane % 3 == 0))": lambda lane: np.full(32, 11),
    "(float)__ffs(__ballot_sync(~0u, lane > 6))": lambda lane: np.full(32, 8),
    "(float)__all_sync(~0u, lane < 32)": lambda lane: np.full(32, 1),
    "(float)__any_sync(~0u, lane > 31)": lambda lane: np.full(32, 0),
}


@pytest.mark.parametrize("expression", list(SHUFFLES))
def test_lanes_of_a_warp_exchange_values(expression):
    body = (
        PLACE + f"const int lane = threadIdx.x % 32;\nconst float v = lane;\ny[i] = {expression};"
    )
    (y,) = run(body, zeros())
    assert np.array_equal(y.reshape(-1, 32), [SHUFFLES[expression](np.arange(32))] * 9)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_double_is_rounded_once(dtype):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    numpy_type = np.dtype(np.float16 if dtype == "float16" else ml_dtypes.bfloat16)
    bits = 10 if dtype == "float16" else 7
    # half a last place, a little more, a little less; none of the little in a float
    tie = 1 + 2.0 ** -(bits + 1)
    x = np.array([tie, tie + 2.0**-40, tie - 2.0**-40, tie + 2.0**-bits, -tie - 2.0**-40, 1e300,
                  np.inf, np.nan, 1e-300, 0.1])  # fmt: skip
    one = 2.0**-bits
    expected = np.array([1, 1 + one, 1, 1 + 2 * one, -1 - one, np.inf, np.inf, np.nan, 0,
                         np.float64(np.array(0.1).astype(numpy_type))])  # fmt: skip
    kernel = "__double2half" if dtype == "float16" else "__double2bfloat16"
    name = "__half" if dtype == "float16" else "__nv_bfloat16"
    y, _ = run(
        f"y[threadIdx.x] = {kernel}(x[threadIdx.x]);", zeros(x.size, np.uint16), x,
        parameters=f"{name} *y, const double *x", block=(x.size,), blocks=1,
    )  # fmt: skip
    assert np.array_equal(y.view(numpy_type).astype(np.float64), expected, equal_nan=True)


WRONG = {
    "reads behind an array": ("y[i] = y[i + 1024];", "touches memory.*source:3"),
    "reads before an array": ("y[i] = y[i - 1024];", "touches memory.*source:3"),
    "a wide access": ("*(float2 *)(y + i) = {};", "misaligned.*source:3"),
    "an index": (
        "__shared__ float s[9];\ns[threadIdx.x] = 1;\ny[i] = s[0];",
        "leaves.*source:4",
    ),
    "an int": ("y[i] = (i + 2) * 0x7fffffff;", "overflows.*source:3"),
    "a zero": ("y[i] = 5 / (int)y[i];", "divides"),
    "some wait": ("if (i % 2) __syncthreads();", "thread .1, 0, 0.*line 3.*have ended: 48"),
    "elsewhere": ("if (i % 2)\n__syncthreads();\nelse\n__syncthreads();", "line 6.*line 4"),
    "lanes": ("if (i % 2) __syncwarp();", "line 3.*have ended"),
    "not in the mask": ("__syncwarp(1);", "not in the mask"),
    "shared memory": (
        "__shared__ double s[6145];\ns[i] = 1;\ny[i] = s[i + 1];",
        "49160 bytes of shared memory",
    ),
    "writes of two threads": ("y[0] = i;", "depends on the order"),
}


@pytest.mark.parametrize("fault", list(WRONG))
def test_what_is_wrong_is_told(fault):
    body, told = WRONG[fault]
    array = zeros(3 * THREADS)  # 1152 bytes
    with pytest.raises(AssertionError, match=told):
        run(PLACE + body, array)
    test_threads_of_a_block_share_memory_and_wait_for_each_other()  # runs go on


def test_writes_into_what_is_left_of_the_last_page_are_found():
    with pytest.raises(AssertionError, match="past the end of an array"):
        run(PLACE + "y[i + 1] = 1;", zeros())


def test_parameters_have_the_sizes_that_the_kernel_takes():
    parameters, body = "int n, float *y", "y[threadIdx.x] = n;"
    with pytest.raises(AssertionError, match=r"parameters of \[4, 8\] bytes, given \[8, 8\]"):
        run(body, zeros(), parameters=parameters, arguments=(5, 0))
