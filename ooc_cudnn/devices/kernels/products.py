"""Products of many small matrices, by the cuBLAS that CuPy has loaded.

It is called directly: CuPy's own function declines on a stream that is being recorded, and a step
with one such product would be issued launch by launch.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from typing import Any, NamedTuple

import numpy as np

from ooc_cudnn.devices.kernels.arguments import real_type
from ooc_cudnn.devices.kernels.compile_ahead import collected

#: cuBLAS's numbers of element types (cudaDataType), and of arithmetic (cublasComputeType_t).
_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
_COMPUTE_32F, _COMPUTE_64F, _COMPUTE_32F_FAST_TF32 = 68, 70, 77
_DEFAULT_ALGORITHM = -1


class Matrices(NamedTuple):
    """Matrices of one shape, in device memory; of each, rows follow each other.

    Attributes
    ----------
    pointer : int
        Of the first element of the first.
    dtype : str
    rows, columns : int
    step : int
        From a row to the next, in elements.
    apart : int
        From a matrix to the next, in elements.
    """

    pointer: int
    dtype: str
    rows: int
    columns: int
    step: int
    apart: int


def multiply(
    left: Matrices,
    right: Matrices,
    result: Matrices,
    count: int,
    *,
    turned: tuple[bool, bool] = (False, False),
    factor: float = 1.0,
    adds: bool = False,
    allow_tf32: bool = False,
    stream: Any = None,
) -> None:
    """Write ``result = factor * left @ right``, for each of `count` matrices.

    Parameters
    ----------
    left, right : Matrices
        Of one dtype.
    result : Matrices
        Of that dtype, or of float32 where it is a half type. Sums are made in float32, or float64.
    turned : (bool, bool)
        Whether left and right are transposed first.
    adds : bool
        Whether to add to what is there.
    stream : CuPy stream, optional
        Its current stream when left out.
    """
    if collected() is not None:
        return  # there is nothing to compile
    import cupy

    dtype = left.dtype
    compute = _COMPUTE_64F if dtype == "float64" else _COMPUTE_32F
    if dtype == "float32" and allow_tf32:
        compute = _COMPUTE_32F_FAST_TF32
    kind = real_type(dtype)
    alpha, beta = np.array(factor, kind), np.array(float(adds), kind)
    # cuBLAS has columns that follow each other: to it each matrix is transposed, and so is
    # the product: right comes first.
    first, second = right, left
    with stream or contextlib.nullcontext():
        handle = cupy.cuda.device.get_cublas_handle()
        current = cupy.cuda.get_current_stream().ptr
    library = _library()
    _check(library.cublasSetStream_v2(handle, current))
    status = library.cublasGemmStridedBatchedEx(
        handle,
        int(turned[1]),
        int(turned[0]),
        result.columns,
        result.rows,
        left.rows if turned[0] else left.columns,
        alpha.ctypes.data,
        *(first.pointer, _TYPES[first.dtype], first.step, first.apart),
        *(second.pointer, _TYPES[second.dtype], second.step, second.apart),
        beta.ctypes.data,
        *(result.pointer, _TYPES[result.dtype], result.step, result.apart),
        count,
        compute,
        _DEFAULT_ALGORITHM,
    )
    _check(status)


@functools.cache
def _library() -> ctypes.CDLL:
    """The library, which a handle of CuPy's has loaded, with what it is given."""
    import cupy

    library = ctypes.CDLL(f"libcublas.so.{cupy.cuda.runtime.runtimeGetVersion() // 1000}")
    number, pointer, far = ctypes.c_int, ctypes.c_void_p, ctypes.c_longlong
    matrix = pointer, number, number, far
    library.cublasSetStream_v2.argtypes = [pointer, pointer]
    library.cublasGemmStridedBatchedEx.argtypes = [
        pointer, *(number,) * 5, pointer, *matrix, *matrix, pointer, *matrix, number, number, number
    ]  # fmt: skip
    return library


def _check(status: int) -> None:
    """Raise RuntimeError where cuBLAS could not do something."""
    if status:
        raise RuntimeError(f"cuBLAS returned {status} for a product of matrices")
