"""Products whose columns do not depend on how many others are computed beside them.

BLAS sums in another order for matrices of another shape: the last bits of a convolution change with
the piece, or the chunk of an array, that a site lies in. In `deterministic` all products have the
same number of columns, so every site's sums are made in the same order.
"""

from __future__ import annotations

import numpy as np

from ooc_cudnn.devices.host.chunks import Array

#: Of each product: a multiple of what the kernels of BLAS take at once (2 to 8), and enough that
#: the filters are packed for much work.
COLUMNS = 64


def spare_elements(rows: int, depth: int, *, deterministic: bool) -> int:
    """Scratch of a product (rows, depth) . (depth, columns) whose columns are to be alike."""
    return (rows + depth) * COLUMNS if deterministic else 0


def product(matrix: Array, columns: Array, out: Array, spare: Array) -> None:
    """Write ``matrix @ columns``, so many columns at a time where there is `spare` memory.

    Parameters
    ----------
    matrix : array, shape (rows, depth)
    columns : array, shape (depth, n)
    out : array, shape (rows, n)
    spare : array
        Of `spare_elements`; none where columns need not be alike.
    """
    if not spare.size:
        np.matmul(matrix, columns, out=out)
        return
    (rows, depth), count = matrix.shape, columns.shape[1]
    whole = count - count % COLUMNS
    for start in range(0, whole, COLUMNS):
        np.matmul(matrix, columns[:, start : start + COLUMNS], out=out[:, start : start + COLUMNS])
    if whole < count:
        padded = spare[: depth * COLUMNS].reshape(depth, COLUMNS)
        result = spare[depth * COLUMNS :].reshape(rows, COLUMNS)
        padded[:, : count - whole] = columns[:, whole:]
        padded[:, count - whole :] = 0
        np.matmul(matrix, padded, out=result)
        out[:, whole:] = result[:, : count - whole]
