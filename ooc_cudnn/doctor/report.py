"""A `Diagnosis` written for a person."""

from __future__ import annotations

from collections.abc import Iterator

from ooc_cudnn.devices.cuda.frontend import cudnn_version
from ooc_cudnn.doctor.diagnosis import Check, Diagnosis, Library
from ooc_cudnn.doctor.rules import cuda_version, is_broken, judge, profile_of
from ooc_cudnn.units import format_bytes
from perfmodel import machine_label


def report(facts: Diagnosis) -> str:
    """Return everything that was found, then what is wrong and what mends it."""
    return "\n".join(_lines(facts))


def _lines(facts: Diagnosis) -> Iterator[str]:
    def row(name: str, value: str) -> str:
        return f"{name:<15}{value or 'none'}"

    names = facts.packages
    yield row("Python", facts.python)
    yield row("system", facts.system)
    yield row("packages", ", ".join(f"{name} {version}" for name, version in names.items()))
    driver = facts.driver or ("installed" if facts.driver_installed else "")
    if facts.driver_cuda:
        driver += f", CUDA up to {cuda_version(facts.driver_cuda)}"
    yield row("NVIDIA driver", driver)
    for index, gpu in enumerate(facts.gpus):
        yield row(
            f"GPU {index}",
            f"{gpu.name}, {format_bytes(gpu.memory_bytes)}, "
            f"compute capability {gpu.compute_capability}",
        )
        yield row("", f"nearest profile: {machine_label(profile_of(gpu))}")
    if facts.gpus:
        runtime = facts.cuda_runtime
        yield row("CUDA runtime", f"{cuda_version(runtime)}, CuPy's" if runtime else "")
        cupy = [f"{name} {names[name]}" for name in names if name.startswith("cupy")]
        yield row("CuPy", ", ".join(cupy))
        yield row("cuDNN frontend", names.get("nvidia-cudnn-frontend", ""))
        yield row("cuDNN", cudnn_version(facts.cudnn_backend) if facts.cudnn_backend else "")
    for name, value in facts.environment.items():
        yield row("environment", f"{name}={value}")
    yield from _loaded("loaded libcudnn", facts.libraries)
    if facts.libraries_here != facts.libraries:
        yield from _loaded("in this process", facts.libraries_here)
    yield ""
    yield row("convolution", f"host: {_outcome(facts.host_check)}")
    if facts.cuda_check is not None:
        yield row("", f"cuda: {_outcome(facts.cuda_check)}")
    yield row("cache", facts.cache + ("" if facts.cache_writable else " (not writable)"))
    for fit in facts.calibrations:
        state = f"of {fit.date}, {fit.path}" if fit.date else fit.failure or "none yet"
        yield row("calibration", f"{fit.device}: {state}")
    yield ""
    yield "settings"
    for setting in facts.settings:
        where = setting.environment_variable if setting.source == "environment" else setting.source
        yield f"  {setting.name:<19}{setting.value!s:<12} ({where})"
    findings = judge(facts)
    for level, title in (("broken", "Broken"), ("note", "Worth knowing")):
        some = [finding for finding in findings if finding.level == level]
        if some:
            yield ""
            yield title
        for finding in some:
            yield f"  - {finding.what}"
            if finding.remedy:
                yield f"      {finding.remedy}"
    yield ""
    yield "This set-up is broken: see above." if is_broken(facts) else "This set-up works."


def _loaded(title: str, libraries: tuple[Library, ...]) -> Iterator[str]:
    for index, library in enumerate(libraries):
        version = f"  {cudnn_version(library.version)}" if library.version is not None else ""
        deleted = "  (replaced since)" if library.deleted else ""
        yield f"{title if not index else '':<15} {library.path}{version}{deleted}"


def _outcome(check: Check) -> str:
    if check.error_size is None:
        return f"fails: {check.failure}"
    return f"runs; largest error {check.error_size:.1e}"
