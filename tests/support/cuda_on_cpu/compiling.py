"""g++ makes a library of a kernel's instance, and one of `threads.cpp`. Both are kept on disk."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.support.sampling import EVERY

HERE = Path(__file__).parent
#: Misaligned accesses, indices outside of arrays of known size, overflow of signed integers trap.
#: Local variables that are not set begin as nonsense.
CHECKS = (
    "-fsanitize=alignment,bounds,signed-integer-overflow",
    "-fsanitize-undefined-trap-on-error",
    "-ftrivial-auto-var-init=pattern",
)
#: A sample takes longer to compile than to run. Every case, or tests of the host device that run
#: kernels, do not.
LEVEL = "-O1" if EVERY or os.environ.get("OOC_TESTS_HOST_RUNS_KERNELS") else "-O0"
OPTIONS = (LEVEL, "-g1", "-fPIC", "-shared", "-w", "-ffp-contract=off", *CHECKS)
#: Without the C++ library, whose search and start-up code take a third of the time.
LIBRARIES = ("-x", "none", "-nostdlib", "-lm", "-lc", "-lgcc")


@functools.cache
def compiler() -> str | None:
    """The C++ compiler; None where there is none, or none that knows 16-bit floats."""
    command = shutil.which("g++")
    if command is None:
        return None
    source = "_Float16 half(float x) { return (_Float16)x; }"
    options = ("-std=c++17", "-fsyntax-only", "-ftrivial-auto-var-init=pattern", "-x", "c++", "-")
    knows = subprocess.run([command, *options], input=source.encode(), capture_output=True)
    return command if knows.returncode == 0 else None


@functools.cache
def cache_folder() -> Path:
    """Where libraries are kept, by the content of all that they are made of."""
    folder = Path(tempfile.gettempdir()) / f"ooc_cudnn_cuda_on_cpu_{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


@functools.cache
def own_sources() -> bytes:
    """The contents of this folder's headers and sources."""
    return b"".join(path.read_bytes() for path in sorted(HERE.glob("*.[hc]*")))


def library(source: str, options: tuple[str, ...]) -> Path:
    """Compile `source`, unless that was done before."""
    command = (compiler() or "g++", *options)
    # Headers are told by what they hold (`OOC_CUDNN_HEADERS`): other checkouts have the same.
    what = (option for option in command if not option.startswith("-I"))
    content = "\0".join((*what, source)).encode() + own_sources()
    path = cache_folder() / f"{hashlib.sha256(content).hexdigest()[:32]}.so"
    if not path.exists():
        unfinished = path.with_suffix(f".{os.getpid()}")  # other processes may do the same
        made = subprocess.run(
            [*command, "-o", str(unfinished), "-x", "c++", "-", *LIBRARIES],
            input=source.encode(),
            capture_output=True,
        )
        if made.returncode != 0:
            raise RuntimeError(f"g++ refuses the kernel:\n{made.stderr.decode()}")
        unfinished.replace(path)
    return path


@functools.cache
def threads() -> ctypes.CDLL:
    """`threads.cpp`, whose functions and variables every kernel uses."""
    options = ("-std=c++17", "-O2", "-fPIC", "-shared")
    path = library((HERE / "threads.cpp").read_text(encoding="utf-8"), options)
    loaded = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    loaded.cuda_on_cpu_map.restype = ctypes.c_void_p
    loaded.cuda_on_cpu_map.argtypes = (ctypes.c_size_t, ctypes.c_size_t)
    loaded.cuda_on_cpu_unmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
    loaded.cuda_on_cpu_shared_bytes.restype = ctypes.c_longlong
    loaded.cuda_on_cpu_shared_bytes.argtypes = (ctypes.c_void_p,)
    return loaded


def kernel_library(code: str, options: tuple[str, ...], expression: str) -> Path:
    """One instance of a kernel, which `options` tell where to find its headers."""
    source = f'#line 1 "the source"\n{code}\nCUDA_ON_CPU_KERNEL({expression})\n'
    return library(source, (*options, f"-I{HERE}", "-include", "cuda_on_cpu.h", *OPTIONS))


def line_of(path: Path, offset: int) -> str:
    """Where in the source an instruction of a library comes from, as far as binutils can tell."""
    command = ("addr2line", "--inlines", "--exe", str(path), hex(offset))
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""
    lines = [Path(line).name for line in told.replace("<stdin>", "the source").split("\n") if line]
    return ", in ".join(lines)
