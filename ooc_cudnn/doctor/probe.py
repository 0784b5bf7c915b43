"""Facts about CUDA, found in a process of its own: a broken cuDNN may end it.

Run as ``python -m ooc_cudnn.doctor.probe [module...]``. Each fact is printed as one line of JSON as
soon as it is known, so that a crash loses only what comes after it. Modules named on the command
line are imported first, as the user's program does: what they load may clash with what the library
loads.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.cuda.driver import driver_facts
from ooc_cudnn.devices.cuda.frontend import NAME as FRONTEND
from ooc_cudnn.devices.cuda.frontend import import_frontend

Emit = Callable[[str, Any], None]

MAPS = Path("/proc/self/maps")
_LIBRARY = re.compile(r"(/\S.*?/libcudnn[^/]*\.so[^/]*?)( \(deleted\))?$")


def main(modules: Sequence[str]) -> int:
    """Print every fact."""
    probe(_print, modules)
    return 0


def probe(emit: Emit, modules: Iterable[str] = ()) -> None:
    """Find out everything, in the order in which it can go wrong; nothing raises.

    `emit` is given the name of each fact and its value; `modules` are imported first.
    """
    imported = {name: _attempt(partial(_import, name)) for name in modules}
    emit("imports", imported)
    driver = _attempt(lambda: driver_facts(ctypes.CDLL))
    emit("driver", driver)
    has_card = bool(driver.get("gpus"))
    emit("libraries", libraries())
    if not has_card:
        return
    for fact, name, describe in (("cupy", "cupy", _cupy), ("frontend", FRONTEND, _frontend)):
        if _is_installed(name):
            emit(fact, _attempt(describe))
            emit("libraries", libraries())
    if _is_installed("cupy") and _is_installed(FRONTEND):
        emit("started", "a small convolution")
        emit("convolution", _attempt(lambda: {"error_size": convolution_error("cuda")}))
        emit("identity", _attempt(lambda: dict(get_device("cuda").identity())))
        emit("libraries", libraries())


def _is_installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def libraries() -> list[dict[str, Any]]:
    """Every libcudnn in this process: path, version (None if it does not say), deleted or not."""
    try:
        text = MAPS.read_text()
    except OSError:  # not Linux
        return []
    paths: dict[str, bool] = {}
    for line in text.splitlines():
        match = _LIBRARY.search(line)
        if match:
            paths[match[1]] = paths.get(match[1], False) or bool(match[2])
    return [
        {
            "path": path,
            "version": None if deleted else _library_version(path),
            "deleted": deleted,
        }
        for path, deleted in sorted(paths.items())
    ]


def _library_version(path: str) -> int | None:
    """Version that cudnnGetVersion returns; None for the parts of cuDNN beside libcudnn.so."""
    if not os.path.basename(path).startswith("libcudnn.so"):
        return None
    try:
        get = _opened(path).cudnnGetVersion
    except (AttributeError, OSError):
        return None
    get.restype = ctypes.c_size_t
    return int(get())


def _opened(path: str) -> Any:
    """Open a library only if it is loaded: looking must not change what there is to see."""
    return ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)


def convolution_error(device: str) -> float:
    """Run a small convolution + bias + ReLU; return its largest error against plain loops."""
    import numpy as np

    from ooc_cudnn.functions import convolution_add_activation_forward
    from ooc_cudnn.settings import settings

    random = np.random.default_rng(0)
    x = random.standard_normal((2, 3, 12, 10)).astype(np.float32)
    w = random.standard_normal((4, 3, 3, 3)).astype(np.float32)
    b = random.standard_normal(4).astype(np.float32)
    machine = "host" if device == "host" else "h200"
    with settings(
        device=device, machine=machine, memory_limit="64MiB", allow_tf32=False, progress=False,
        verify=0, overlap=True,
    ):  # fmt: skip
        y = convolution_add_activation_forward(x, w, b, padding=1)
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    expected = np.zeros(y.shape) + b.astype(np.float64).reshape(1, -1, 1, 1)
    for i in range(3):
        for j in range(3):
            seen = padded[:, :, i : i + 12, j : j + 10]
            expected += np.einsum("oc,nchw->nohw", w[:, :, i, j].astype(np.float64), seen)
    return float(np.abs(y - np.maximum(expected, 0)).max())


def _cupy() -> dict[str, Any]:
    cupy = importlib.import_module("cupy")
    return {"version": cupy.__version__, "cuda": int(cupy.cuda.runtime.runtimeGetVersion())}


def _frontend() -> dict[str, Any]:
    cudnn = import_frontend()
    return {"version": cudnn.__version__, "backend": int(cudnn.backend_version())}


def _import(name: str) -> dict[str, Any]:
    return {"version": str(getattr(importlib.import_module(name), "__version__", ""))}


def _attempt(function: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Result of a function, or what it raised, as one line."""
    try:
        return function()
    except Exception as error:
        message = " ".join(str(error).split())
        facts = {"error": f"{type(error).__name__}: {message}"}
        remedy = getattr(error, "remedy", None)
        if isinstance(remedy, str):
            facts["remedy"] = remedy
        return facts


def _print(fact: str, value: Any) -> None:
    sys.stdout.write(json.dumps({"fact": fact, "value": value}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
