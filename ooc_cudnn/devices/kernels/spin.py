"""A kernel that keeps a stream busy, for measuring."""

from __future__ import annotations

from typing import Any

import numpy as np

from ooc_cudnn.devices.kernels import compiling


def spin(seconds: float, stream: Any = None) -> None:
    """Keep a stream busy for so long."""
    function = compiling.function(compiling.current_device(), "spin.cu", "spin")
    function((1,), (1,), (np.uint64(seconds * 1e9),), stream=stream)
