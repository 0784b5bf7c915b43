"""What is installed: every package, every kernel, every shipped machine profile."""

import re
import tomllib
from pathlib import Path

import pytest

import ooc_cudnn

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


def test_what_is_cited_is_this_version_and_four_papers():
    yaml = pytest.importorskip("yaml")
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["cff-version"] == "1.2.0"
    assert (cited["title"], cited["license"]) == ("ooc_cudnn", "MIT")
    assert cited["version"] == ooc_cudnn.__version__
    years = [paper["year"] for paper in cited["references"]]
    assert years == [2017, 2016, 2024, 2016]
    assert all(paper["title"] and paper["authors"] for paper in cited["references"])


def test_the_versions_of_python_that_are_named_are_those_that_are_allowed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [c.rsplit(" ", 1)[1] for c in project["classifiers"] if "Python :: 3." in c]
    assert project["requires-python"] == f">={named[0]}"
    assert named == sorted(named)
    assert project["version"] == ooc_cudnn.__version__


def test_public_ci_makes_what_ci_does_on_the_versions_that_are_named():
    yaml = pytest.importorskip("yaml")
    text = (ROOT / ".github/workflows/ci.yml").read_text()
    jobs = yaml.safe_load(text)["jobs"]
    targets = jobs["make"]["strategy"]["matrix"]["target"]
    assert f"for target in {' '.join(targets)};" in (ROOT / ".ci/run").read_text()
    (wheels,) = (step["run"] for step in jobs["wheels"]["steps"] if "run" in step)
    (docs, _) = (step["run"] for step in jobs["docs"]["steps"] if "run" in step)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    assert re.findall(r"python(3\.\d+)", wheels) == named
    makefile = (ROOT / "Makefile").read_text()
    assert all(
        f"\n{target}:" in makefile
        for target in (*targets, *(run.split()[1] for run in (wheels, docs)))
    )


def test_the_recipe_of_conda_says_what_the_project_says():
    yaml = pytest.importorskip("yaml")
    recipe = yaml.safe_load((ROOT / "conda/recipe.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert recipe["package"] == {"name": project["name"], "version": project["version"]}
    needed = {name.replace(" ", "") for name in recipe["requirements"]["run"]}
    assert needed == {*project["dependencies"], f"python{project['requires-python']}"}
    (command,) = recipe["build"]["python"]["entry_points"]
    assert dict([command.split(" = ")]) == project["scripts"]
    assert (ROOT / recipe["about"]["license_file"]).exists()
