"""The CUDA sources under `kernels/`, compiled on first use.

CuPy compiles every kernel with `-ftz=true`, so float32 arithmetic takes subnormal numbers (below
1.2e-38) as zero.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ooc_cudnn.activity import activity
from ooc_cudnn.settings import current


def sources_folder() -> Path:
    """Return the folder of the .cu files: in the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parents[2]
    installed = package / "kernels"
    return installed if installed.is_dir() else package.parent / "kernels"


_compiled: dict[tuple[int, str, str], Any] = {}
_compiling: dict[tuple[int, str, str], threading.Lock] = {}  # one of each kernel at a time


def _compile_options(folder: Path) -> tuple[str, ...]:
    # CuPy's cache on disk knows the source and the options but not the headers, so their hash
    # is an option: a changed header must not meet a stale binary.
    headers = b"".join(path.read_bytes() for path in sorted(folder.glob("*.cuh")))
    digest = hashlib.sha256(headers).hexdigest()[:16]
    return ("-std=c++17", f"-I{folder}", f"-DOOC_CUDNN_HEADERS=0x{digest}")


def function(device: int, source: str, expression: str, struct_bytes: int = 0) -> Any:
    """The kernel `expression` (a template instance) of `kernels/<source>`, on `device`.

    Its first parameter is a struct of so many bytes, where that is not 0.
    """
    key = (device, source, expression)
    function = _compiled.get(key)
    if function is None:
        import cupy

        with _compiling.setdefault(key, threading.Lock()):
            function = _compiled.get(key)
            if function is None:
                folder = sources_folder()
                code = (folder / source).read_text(encoding="utf-8")
                if struct_bytes:
                    code += (
                        f"static_assert(STRUCT_BYTES<decltype({expression})> == {struct_bytes});"
                    )
                with activity(f"compiling {source}", current().progress):
                    module = cupy.RawModule(
                        code=code,
                        options=_compile_options(folder),
                        name_expressions=(expression,),
                    )
                    function = _compiled[key] = module.get_function(expression).kernel
    return function


def is_compiled(device: int, source: str, expression: str) -> bool:
    """True if a kernel was compiled for a device."""
    return (device, source, expression) in _compiled


_current_device: Callable[[], int] | None = None


def current_device() -> int:
    """The number of the GPU that is current on the calling thread."""
    global _current_device
    if _current_device is None:
        import cupy

        _current_device = cupy.cuda.runtime.getDevice
    return _current_device()
