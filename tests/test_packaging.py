"""What is installed: every package, every kernel, every shipped machine profile."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def folder_of(package: str) -> Path:
    return ROOT / SETUPTOOLS["package-dir"].get(package, package.replace(".", "/"))


def test_every_package_of_the_tree_is_installed():
    in_tree = {
        ".".join(init.parent.relative_to(ROOT).parts)
        for top in ("ooc_cudnn", "perfmodel")
        for init in (ROOT / top).rglob("__init__.py")
    }
    assert in_tree == set(SETUPTOOLS["packages"]) - {"ooc_cudnn.kernels", "perfmodel.machines"}


def test_every_data_file_of_the_tree_is_installed():
    installed = {
        file
        for package, patterns in SETUPTOOLS["package-data"].items()
        for pattern in patterns
        for file in folder_of(package).glob(pattern)
    }
    in_tree = {
        file
        for top in ("ooc_cudnn", "perfmodel", "kernels")
        for file in (ROOT / top).rglob("*")
        if file.is_file() and file.suffix not in {".py", ".pyc", ".md"}
    }
    assert in_tree == installed
