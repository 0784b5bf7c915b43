"""Setuptools' build backend, plus an editable install that needs setuptools and nothing else.

Before version 70.1, setuptools cannot write a wheel, an editable one included, without the package
``wheel``. A fresh Python 3.11 environment holds setuptools 65 without it, and a machine that is
offline cannot fetch it. There, and only there, the editable wheel is written here. As setuptools'
own, it holds a finder for the packages and not this folder's path, from which ``kernels`` and
``tests`` could be imported too.
"""

import base64
import hashlib
import importlib.util
import tomllib
import zipfile
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_sdist,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

Settings = dict[str, Any] | None

ROOT = Path(__file__).resolve().parent

FINDER = f"""\
import sys
from importlib.machinery import PathFinder


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in ("ooc_cudnn", "perfmodel"):
            return PathFinder.find_spec(name, [{str(ROOT)!r}])


sys.meta_path.append(Finder)
"""


def prepare_metadata_for_build_editable(folder: str, settings: Settings = None) -> str:
    """Write the metadata folder into `folder` and return its name (PEP 660)."""
    if _setuptools_writes_wheels():
        return build_meta.prepare_metadata_for_build_editable(folder, settings)
    name, files = _metadata()
    (Path(folder) / name).mkdir()
    for file, text in files.items():
        (Path(folder) / file).write_text(text, encoding="utf-8")
    return name


def build_editable(folder: str, settings: Settings = None, metadata: str | None = None) -> str:
    """Write the editable wheel into `folder` and return its name (PEP 660)."""
    if _setuptools_writes_wheels():
        return build_meta.build_editable(folder, settings, metadata)
    info, files = _metadata()
    stem = info.removesuffix(".dist-info")
    files["__editable___ooc_cudnn.py"] = FINDER
    files["__editable___ooc_cudnn.pth"] = "import __editable___ooc_cudnn\n"
    record = [f"{file},{_digest(text)},{len(text.encode())}\n" for file, text in files.items()]
    files[f"{info}/RECORD"] = "".join(record) + f"{info}/RECORD,,\n"
    wheel = f"{stem}-0.editable-py3-none-any.whl"
    with zipfile.ZipFile(Path(folder) / wheel, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return wheel


def _setuptools_writes_wheels() -> bool:
    return any(map(importlib.util.find_spec, ["wheel", "setuptools.command.bdist_wheel"]))


def _metadata() -> tuple[str, dict[str, str]]:
    """Return the metadata folder's name and the text of each file in it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {project['name']}",
        f"Version: {project['version']}",
        f"Summary: {project['description']}",
        f"Requires-Python: {project['requires-python']}",
        *(f"Requires-Dist: {requirement}" for requirement in project["dependencies"]),
    ]
    for extra, requirements in project["optional-dependencies"].items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f'Requires-Dist: {each} ; extra == "{extra}"' for each in requirements]
    scripts = [f"{name} = {target}" for name, target in project["scripts"].items()]
    info = f"{project['name']}-{project['version']}.dist-info"
    return info, {
        f"{info}/METADATA": "\n".join(lines) + "\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: build_backend\n"
        "Root-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "\n".join(["[console_scripts]", *scripts]) + "\n",
    }


def _digest(text: str) -> str:
    """Return the hash of `text` as RECORD files spell it."""
    digest = hashlib.sha256(text.encode()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
