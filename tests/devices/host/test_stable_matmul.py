"""Products whose columns are the same to the last bit, however many stand beside them."""

import numpy as np
import pytest

from ooc_cudnn.devices.host.stable_matmul import COLUMNS, product, spare_elements


@pytest.mark.parametrize(("rows", "depth"), [(1, 1), (1, 40), (5, 3), (17, 300), (64, 27)])
def test_a_column_does_not_depend_on_the_others(rows, depth):
    random = np.random.default_rng(rows)
    matrix = random.standard_normal((rows, depth))
    columns = random.standard_normal((depth, 3 * COLUMNS + 7))
    spare = np.full(spare_elements(rows, depth, deterministic=True), np.nan)

    def made(start, stop):
        part = np.ascontiguousarray(columns[:, start:stop])
        out = np.full((rows, stop - start), np.nan)
        product(matrix, part, out, spare)
        return out

    whole = made(0, columns.shape[1])
    np.testing.assert_allclose(whole, matrix @ columns, rtol=1e-12, atol=1e-12)
    for start, stop in ((0, 1), (3, 3 + COLUMNS), (100, 190), (198, 199)):
        np.testing.assert_array_equal(made(start, stop), whole[:, start:stop])


def test_without_spare_memory_it_is_one_product():
    assert spare_elements(3, 4, deterministic=False) == 0
    matrix, columns = np.ones((2, 3)), np.ones((3, 5))
    out = np.empty((2, 5))
    product(matrix, columns, out, np.empty(0))
    assert (out == 3).all()
