"""NVIDIA's cudnn-frontend (the module `cudnn`): the one place that imports it.

What the library asks of it is there, under the same names, from 1.16 to 1.32 at least. What differs
between these versions, and matters here:

- Before 1.28 no plan says which engine it has (`get_engine_and_knobs_at_index`): nothing can be
  tuned then, and engines are known by the names of their plans.
- From about 1.28 on a graph is an object of Python. Its plans may be of engines that are not
  cuDNN's: written in Python, and compiled by a stack of their own (`is_cudnn_engine`).
- From 1.32 on handles are objects, and a graph without one asks for `cuda.bindings`, which
  ``pip install --no-deps`` leaves out. Here every graph has its handle.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

#: What the module is called.
NAME = "cudnn"
#: The versions that are known to work, and how to ask for one that brings no compiler stack.
OLDEST, REQUIREMENT = (1, 16), "nvidia-cudnn-frontend>=1.16,<1.29"

_CUDNNS = re.compile(r"eng(\d+)(?:_|$)")


def import_frontend() -> Any:
    """Import it.

    Raises
    ------
    ImportError
        If it is not installed; what else a broken one raises.
    """
    return importlib.import_module(NAME)


def is_cudnn_engine(plan: str) -> bool:
    """True if a plan, by its name, is of an engine of cuDNN itself: others are not known here.

    >>> is_cudnn_engine("eng20_k2=6"), is_cudnn_engine("eng5")
    (True, True)
    >>> is_cudnn_engine("frost_conv[TILE_M=128]"), is_cudnn_engine("backend_heuristics")
    (False, False)
    """
    return _CUDNNS.match(plan) is not None


def engine_of(plan: str) -> str:
    """Return the engine of a plan, without how it is set, by the plan's name.

    >>> engine_of("eng20_k2=6, symmetric rows")
    'eng20'
    """
    found = _CUDNNS.match(plan.partition(",")[0])
    return found[0].rstrip("_") if found else plan


def cudnn_version(version: int) -> str:
    """Write cudnnGetVersion's number.

    >>> cudnn_version(91900), cudnn_version(8907)
    ('9.19.0', '8.9.7')
    """
    unit = 10000 if version >= 90000 else 1000
    return f"{version // unit}.{version % unit // 100}.{version % 100}"
