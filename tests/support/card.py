"""CuPy where there is a card; elsewhere what runs the kernels on the CPU in its place.

`OOC_TESTS_KERNELS_ON_CPU=1` chooses the CPU where there is a card, too.
"""

from __future__ import annotations

import os

from tests.support import cuda_on_cpu


def _cupy():
    if not os.environ.get("OOC_TESTS_KERNELS_ON_CPU"):
        try:
            import cupy
        except ImportError:
            return None
        if cupy.cuda.is_available():
            return cupy
    return None


_found = _cupy()
ON_CARD = _found is not None
cupy = _found if ON_CARD else cuda_on_cpu.module()
