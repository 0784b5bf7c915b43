"""The import graph: no circle among modules, no arrow from a room to one above it.

Every import counts, inside functions and under TYPE_CHECKING, too: who reads the one file needs
the other.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from ooc_cudnn.devices.host.device import RUNNERS as HOST
from ooc_cudnn.devices.kernels.runners import RUNNERS as KERNELS

ROOT = Path(__file__).resolve().parents[1]
INSTALLED = ("ooc_cudnn", "perfmodel")

#: Ground floor first. A module imports modules of its own room, and of rooms before it.
#: `ooc_cudnn` itself is the front door: what users import.
ROOMS = (
    ("perfmodel",),
    tuple(f"ooc_cudnn.{name}" for name in (
        "activity", "errors", "extras", "fork_safety", "interrupts", "keywords", "plotting",
        "progress",
        "settings", "settings_table", "tensor", "types", "units", "version", "warnings_once",
    )),
    ("ooc_cudnn.operations.core",),
    ("ooc_cudnn.operations.elementwise",),
    ("ooc_cudnn.operations.external",),
    ("ooc_cudnn.operations.normalization", "ooc_cudnn.operations.pooling"),
    ("ooc_cudnn.operations.convolution", "ooc_cudnn.operations.resampling",
     "ooc_cudnn.operations.softmax", "ooc_cudnn.operations.losses",
     "ooc_cudnn.operations.attention"),
    ("ooc_cudnn.operations.chain",),
    ("ooc_cudnn.operations.chain_forms", "ooc_cudnn.operations"),
    ("ooc_cudnn.memory",),
    ("ooc_cudnn.devices",),
    ("ooc_cudnn.arrays",),
    ("ooc_cudnn.call_planner",),
    ("ooc_cudnn.pipeline", "ooc_cudnn.profiling"),
    ("ooc_cudnn.engines",),
    ("ooc_cudnn.functions.call",),
    ("ooc_cudnn.functions.api", "ooc_cudnn.functions.tune"),
    ("ooc_cudnn.functions",),
    ("ooc_cudnn.network.solver", "ooc_cudnn.network.ir"),
    ("ooc_cudnn.network.graph", "ooc_cudnn.network.cost"),
    ("ooc_cudnn.network.passes",),
    ("ooc_cudnn.network.lowering", "ooc_cudnn.network.policies"),
    ("ooc_cudnn.network.bound",),
    ("ooc_cudnn.network.search",),
    ("ooc_cudnn.network.report",),
    ("ooc_cudnn.network.runtime",),
    ("ooc_cudnn.network.tiled", "ooc_cudnn.network.tradeoff"),
    ("ooc_cudnn.network",),
    ("ooc_cudnn.networks",),
    tuple(f"ooc_cudnn.torch.{name}" for name in (
        "cards", "errors", "options", "places", "stored", "thread_patches",
    )),
    ("ooc_cudnn.torch.autograd",),
    ("ooc_cudnn.torch.tracing",),
    ("ooc_cudnn.torch.lowering",),
    ("ooc_cudnn.torch.runtime",),
    ("ooc_cudnn.torch.capture.guards", "ooc_cudnn.torch.capture.dynamo_patches"),
    ("ooc_cudnn.torch.capture",),
    ("ooc_cudnn.torch",),
    ("ooc_cudnn.dask", "ooc_cudnn.lightning", "ooc_cudnn.monai", "ooc_cudnn.nnunet"),
    ("ooc_cudnn.nnunet_trainers",),
    ("ooc_cudnn.calibration",),
    ("ooc_cudnn",),
    ("ooc_cudnn.doctor",),
    ("ooc_cudnn.bench",),
    ("ooc_cudnn.demo",),
    ("ooc_cudnn.cli",),
)  # fmt: skip

_OUTSIDE = re.compile(r"(benchmarks|examples|notebooks|tests)([./]|$)")


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def sources() -> dict[str, Path]:
    """Every installed module, by name."""
    return {name_of(path): path for top in INSTALLED for path in sorted((ROOT / top).rglob("*.py"))}


def names_imported(tree: ast.AST, package: str) -> Iterator[str]:
    """Every name that a module of a package imports, from wherever in the module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level]
            origin = ".".join([*(above if node.level else ()), *filter(None, [node.module])])
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def texts(tree: ast.AST) -> Iterator[str]:
    """Every piece of text in a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def module_of(name: str) -> str | None:
    """The installed module that a name is, or is in."""
    while name and name not in sources():
        name = name.rpartition(".")[0]
    return name or None


@cache
def tree_of(name: str) -> ast.Module:
    return ast.parse(sources()[name].read_text(encoding="utf-8"))


@cache
def graph() -> dict[str, frozenset[str]]:
    """What each installed module imports of the others."""
    found = {}
    for name, path in sources().items():
        package = name if path.stem == "__init__" else name.rpartition(".")[0]
        modules = map(module_of, names_imported(tree_of(name), package))
        found[name] = frozenset(module for module in modules if module) - {name}
    return found


def circle(arrows: dict[str, frozenset[str]]) -> list[str]:
    """The modules of one circle, or none."""
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def floor(module: str) -> int:
    """Where the room of a module stands in the list."""
    rooms = {room: at for at, row in enumerate(ROOMS) for room in row}
    if module in rooms:
        return rooms[module]
    above = module.rpartition(".")[0]
    assert above != "ooc_cudnn", f"{module} is in no room: add it to ROOMS"
    return floor(above)


#: Files of devices/host, devices/kernels and kernels that serve operations of other modules than
#: that of their name, or several: the modules, under operations/.
SHARED = {
    "channel_reduction": {
        "elementwise.broadcast_reduction", "elementwise.gradient_reductions",
        "normalization.batch_launches", "softmax.channels",
    },
    "linear": {"convolution.forward", "convolution.gradients"},
    "elementwise": {"core.pointwise", "normalization.batch_launches", "softmax.channels"},
    "fused_convolution": {"convolution.fused_forward", "convolution.gradients"},
    "gradient_sums": {"elementwise.gradient_reductions", "normalization.batch_launches"},
    "image_softmax": {"softmax.channels"},
    "masks": {"elementwise.activation_bitmask"},
    "normalise": {"normalization.batch_launches", "softmax.channels"},
    "runners": {"core.pointwise", "elementwise.reshape"},
    "set_statistics": {"normalization.set_reduction", "normalization.layer_in_chain"},
}  # fmt: skip
#: Sources of kernels that do not begin with the name of the module that launches them.
LAUNCHED_BY = {
    "activation_backward": "elementwise", "op_tensor": "elementwise", "welford_merge": "normalise",
}  # fmt: skip


def stems(module: str) -> set[str]:
    """What files of an operation's module, `room.name`, are called in the layers below."""
    room, _, name = module.partition(".")
    return {room, name, f"{room}_{name}"}


def test_an_operation_has_one_stem_in_all_layers():
    """A file is called as the operation's module, its room or both; or `SHARED` tells of it."""
    wrong, used = set(), set()
    for runners in (HOST, KERNELS):
        for operation, runner in runners.items():
            module = operation.__module__.removeprefix("ooc_cudnn.operations.")
            stem = runner.__module__.rpartition(".")[2]
            if module in SHARED.get(stem, ()):
                used.add((stem, module))
            elif stem not in stems(module):
                wrong.add((stem, module))
    assert wrong == set()
    assert used == {(stem, module) for stem, modules in SHARED.items() for module in modules}


def test_kernels_are_named_as_what_launches_them():
    modules = {path.stem for path in (ROOT / "ooc_cudnn/devices/kernels").glob("*.py")}
    for path in (ROOT / "kernels").glob("*.cu"):
        by = LAUNCHED_BY.get(path.stem)
        begins = {name for name in modules if f"{path.stem}_".startswith(f"{name}_")}
        assert by in modules if by else begins, path.name
    assert {f"{stem}.cu" for stem in LAUNCHED_BY} <= {p.name for p in (ROOT / "kernels").iterdir()}


def test_no_circle_among_modules():
    assert circle(graph()) == []


def test_no_arrow_leads_upwards():
    upwards = {
        (module, other)
        for module, others in graph().items()
        for other in others
        if floor(other) > floor(module)
    }
    assert upwards == set()


#: What a docstring does not begin with: the words say nothing of what is returned or done.
_VAGUE = {
    "As", "By", "From", "How", "If", "In", "Of", "So", "That", "Under", "Until", "What", "Whatever",
    "When", "Where", "Whether", "Which", "Who", "Whose", "Without",
}  # fmt: skip


def test_docstrings_begin_with_a_verb_or_a_noun():
    vague = {
        (name, text.partition("\n")[0])
        for name in sources()
        for node in ast.walk(tree_of(name))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and (text := ast.get_docstring(node))
        and text.split()[0].rstrip(",.:;") in _VAGUE
    }
    assert vague == set()


def test_nothing_installed_reaches_into_the_checkout():
    reaching = {
        name
        for name in sources()
        if any(_OUTSIDE.match(each) for each in (*names_imported(tree_of(name), name),
                                                 *texts(tree_of(name))))
    }  # fmt: skip
    assert reaching == set()


def test_every_way_to_import_is_seen():
    tree = ast.parse(
        "import os, ooc_cudnn.units\n"
        "from . import case\n"
        "from ..devices.base import Device\n"
        "from .. import cli\n"
        "if TYPE_CHECKING:\n    from ooc_cudnn.pipeline import schedule\n"
        "def function():\n    from ooc_cudnn import errors, __version__\n"
    )
    found = set(map(module_of, names_imported(tree, "ooc_cudnn.bench")))
    modules = ("units", "bench.case", "devices.base", "cli", "pipeline.schedule", "errors")
    assert found == {None, "ooc_cudnn", *(f"ooc_cudnn.{module}" for module in modules)}


def test_a_circle_and_a_room_are_found():
    assert circle({"a": frozenset("b"), "b": frozenset("c"), "c": frozenset()}) == []
    assert set(circle({"a": frozenset("b"), "b": frozenset("c"), "c": frozenset("a")})) == set(
        "abc"
    )
    assert (
        floor("perfmodel.linear") < floor("ooc_cudnn.units") < floor("ooc_cudnn.devices.cuda.run")
    )
    assert floor("ooc_cudnn.devices.cuda.run") == floor("ooc_cudnn.devices")
    with pytest.raises(AssertionError, match="in no room"):
        floor("ooc_cudnn.unheard_of")
