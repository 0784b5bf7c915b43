"""Run cuDNN's functions on tensors larger than GPU memory.

Data stays in host memory or on disk; each call is cut into pieces that flow through the card over
three streams, and a performance model fitted on your machine decides how to cut.

>>> import numpy as np, ooc_cudnn
>>> x, w = np.ones((1, 3, 32, 32), "float32"), np.ones((8, 3, 3, 3), "float32")
>>> with ooc_cudnn.settings(device="host", machine="host", memory_limit="64KiB"):
...     y = ooc_cudnn.convolution_add_activation_forward(x, w, np.zeros(8, "float32"), padding=1)
>>> y.shape
(1, 8, 32, 32)

`Network`, `networks` and `calibrate` are imported when they are first asked for: the planner of
networks is half of the library, and a single call needs none of it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ooc_cudnn import functions, operations
from ooc_cudnn.arrays.copying import memcpy
from ooc_cudnn.arrays.making import empty, malloc, zeros
from ooc_cudnn.arrays.operands import placement
from ooc_cudnn.arrays.pinning import pin
from ooc_cudnn.call_planner.plan import Plan
from ooc_cudnn.errors import (
    DeviceOutOfMemoryError,
    OocError,
    PlanInfeasibleError,
    VerificationError,
)
from ooc_cudnn.functions import *  # noqa: F403  # the public functions, listed there
from ooc_cudnn.functions.call.plan_api import plan
from ooc_cudnn.profiling import profile
from ooc_cudnn.settings import settings
from ooc_cudnn.tensor import TensorSpec
from ooc_cudnn.version import __version__ as __version__  # it is public, too
from perfmodel import MachineModel

if TYPE_CHECKING:
    from ooc_cudnn import networks
    from ooc_cudnn.calibration import calibrate
    from ooc_cudnn.network.network import Network

__all__ = [
    "DeviceOutOfMemoryError",
    "MachineModel",
    "Network",
    "OocError",
    "Plan",
    "PlanInfeasibleError",
    "TensorSpec",
    "VerificationError",
    "calibrate",
    "empty",
    "malloc",
    "memcpy",
    "networks",
    "operations",
    "pin",
    "placement",
    "plan",
    "profile",
    "settings",
    "zeros",
]
__all__ += functions.__all__

#: Name to the module that has it, or is it.
_LATER = {
    "Network": "ooc_cudnn.network.network",
    "calibrate": "ooc_cudnn.calibration",
    "networks": "ooc_cudnn.networks",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for by name for the first time."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(_LATER[name])
    globals()[name] = found = getattr(module, name, module)
    return found


def __dir__() -> list[str]:
    """Names that users need; the package's other modules are its own."""
    modules = ("errors", "memory", "types")
    return sorted([*__all__, *modules, *(name for name in globals() if name[:2] == "__")])
