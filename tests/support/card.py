"""CuPy where there is a card; elsewhere what runs the kernels on the CPU in its place.

`OOC_TESTS_KERNELS_ON_CPU=1` chooses the CPU where there is a card, too.
"""

from __future__ import annotations

import os
import sys
import zlib

from ooc_cudnn.devices.kernels import compiling, launch, launch_geometry, products
from tests.support import cuda_on_cpu
from tests.support.cuda_on_cpu.products import multiply


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
#: A grid of few blocks has so many.
FEW_BLOCKS = 2


def run_on_cpu(monkeypatch, test):
    """Have the library compile and launch kernels for the CPU, until `monkeypatch` ends.

    In every second test, by its name, a grid has few blocks, and each has much to do: on a card
    that happens in tensors of more than 2**31 elements only.
    """
    monkeypatch.setitem(sys.modules, "cupy", cuda_on_cpu.module())
    monkeypatch.setattr(compiling, "_current_device", None)
    monkeypatch.setattr(launch, "_prepared", {})
    monkeypatch.setattr(products, "multiply", multiply)
    if zlib.crc32(test.encode()) % 2:
        monkeypatch.setattr(launch_geometry, "LARGEST_GRID", FEW_BLOCKS)
