"""The pages of the site say what the code does; `make docs` builds it, with warnings as errors."""

import ast
import functools
import importlib.util
import inspect
import re
from pathlib import Path

import pytest

import ooc_cudnn
from ooc_cudnn import errors
from ooc_cudnn.settings_table import SETTINGS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def page(name):
    return (DOCS / name).read_text(encoding="utf-8")


def settings_page():
    spec = importlib.util.spec_from_file_location("settings_page", DOCS / "settings_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_settings_page_is_that_of_the_table(tmp_path, monkeypatch, capsys):
    module = settings_page()
    assert module.main(["--check"]) == 0
    text = " ".join(page("settings.md").split())
    for setting in SETTINGS:
        assert f"## {setting.name} Default `{setting.default!r}`" in text
        assert setting.environment_variable in text
        for word in re.findall(r"\w{5,}", setting.meaning + setting.trade_off):
            assert word in text, (setting.name, word)
    # a page that is out of date is found, and mended
    stale = tmp_path / "settings.md"
    stale.write_text(page("settings.md").replace("OOC_CUDNN_VERIFY", "OOC_CUDNN_VERIFI"))
    monkeypatch.setattr(module, "PAGE", stale)
    assert module.main(["--check"]) == 1
    assert "out of date" in capsys.readouterr().err
    assert module.main([]) == 0
    assert stale.read_text(encoding="utf-8") == page("settings.md")


def test_the_reference_has_every_public_name():
    named = {
        name.removeprefix("ooc_cudnn.")
        for text in (DOCS / "reference").glob("*.md")
        for name in re.findall(
            r"^\.\. auto(?:function|class|exception):: (\S+)$", text.read_text("utf-8"), re.M
        )
    }
    wanted = {*ooc_cudnn.__all__, *ooc_cudnn.operations.__all__} - {"operations", "networks"}
    assert wanted - named == set()


def test_the_reference_has_every_name_of_the_door_to_pytorch():
    pytest.importorskip("torch")
    from ooc_cudnn import torch as door

    listed = set(re.findall(r"^\.\. auto\w+:: (\S+)$", page("reference/torch.md"), re.M))
    assert listed == set(door.__all__)


def test_the_reference_has_every_name_for_dask():
    pytest.importorskip("dask")
    from ooc_cudnn import dask as door

    text = page("reference/dask.md")
    listed = set(re.findall(r"^\.\. auto\w+:: (\S+)$", text, re.M))
    assert listed == set(door.__all__) - set(ooc_cudnn.__all__) | {"plan"}
    assert set(door.__all__) - listed <= set(re.findall(r"`(\w+)`", text))


def test_every_page_is_reached_from_the_front_page():
    listed = set()
    for name in ("index.md", "reference/index.md"):
        for tree in re.findall(r"```\{toctree\}\n(.*?)```", page(name), re.DOTALL):
            entries = [line for line in tree.splitlines() if line and line[0] != ":"]
            listed |= {Path(name).parent / f"{entry}.md" for entry in entries}
    pages = {
        path.relative_to(DOCS)
        for path in DOCS.rglob("*.md")
        if "_build" not in path.parts and path.parent.name != "notebooks"
    }
    assert pages - listed == {Path("index.md")}


# --- troubleshooting ----------------------------------------------------------------------------


@functools.cache
def templates():
    """Every string of the code in its literal parts, and whole messages of the memory errors."""
    found = []
    for folder in ("ooc_cudnn", "perfmodel"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    parts = [v.value for v in node.values if isinstance(v, ast.Constant)]
                    found.append("\0".join(parts))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    sizes = {"requested_bytes": 2**30, "available_bytes": 2**20, "purpose": "a ring"}
    for kind in (errors.DeviceOutOfMemoryError, errors.HostOutOfMemoryError):
        for limit in (2**30, None):
            found.append(str(kind(limit_bytes=limit, held_bytes=2**20, **sizes)))
            found.append(str(kind(limit_bytes=2**40, held_bytes=2**20, **sizes)))
    found.append(
        str(
            errors.VerificationError(
                function="f", region="r", expected=1.0, actual=2.0, error=1.0, tolerance=0.1
            )
        )
    )
    return found


QUOTES = [
    line
    for block in re.findall(r"```text\n(.*?)```", page("troubleshooting.md"), re.DOTALL)
    for line in block.splitlines()
]
FINDINGS = re.findall(r"^\| `([^`]+)` \|", page("troubleshooting.md"), re.MULTILINE)


def says(message, template):
    """Whether the fixed parts of a message stand in a string of the code, in their order."""
    at = 0
    for part in message.split("..."):
        at = template.find(part.strip(), at)
        if at < 0:
            return False
    return True


@pytest.mark.parametrize("message", [*QUOTES, *FINDINGS])
def test_every_quoted_message_is_one_of_the_code(message):
    assert len(re.sub(r"[^a-z]", "", message)) >= 10, "too short to tell"
    assert any(says(message, template) for template in templates())


def test_what_is_no_message_is_found_out():
    assert len(QUOTES) >= 40
    assert not any(says("... has no plan between ...", template) for template in templates())


def test_every_error_class_is_explained():
    classes = [
        name
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.OocError) and not name.startswith("_")
    ]
    assert len(classes) >= 6
    for name in classes:
        assert f"`{name}`" in page("troubleshooting.md") or f".{name}`" in page(
            "troubleshooting.md"
        ), name


# --- the tutorial -------------------------------------------------------------------------------


def test_the_tutorial_shows_the_plan_that_is_made():
    (shown,) = re.findall(r"```text\n(.*?)```", page("tutorial.md"), re.DOTALL)
    maps = ooc_cudnn.TensorSpec((512, 64, 256, 256), "float32", "pinned")
    filters = ooc_cudnn.TensorSpec((64, 64, 3, 3), "float32", "device")
    plan = ooc_cudnn.plan(
        "convolution_forward", x=maps, w=filters, padding=1, out=maps,
        machine="p100", memory_limit="4GiB",
    )  # fmt: skip
    assert [line.split() for line in shown.splitlines() if line] == [
        line.split() for line in plan.explain().splitlines() if line
    ]
