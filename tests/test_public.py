"""What a user sees of the package without reading it: `dir`, `help`, types."""

import doctest
import inspect
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn import errors, operations, types
from ooc_cudnn.functions.call.decorator import FUNCTIONS
from ooc_cudnn.settings_table import SETTINGS


def test_dir_has_what_users_need_and_nothing_else():
    names = {name for name in dir(ooc_cudnn) if not name.startswith("__")}
    assert names == {*ooc_cudnn.__all__, "errors", "memory", "types"}
    assert ooc_cudnn.errors is errors
    assert ooc_cudnn.types is types
    assert "__version__" in dir(ooc_cudnn)


def test_help_of_settings_lists_them_all():
    text = inspect.getdoc(ooc_cudnn.settings)
    assert "{" not in text
    for setting in SETTINGS:
        assert f"\n    {setting.name} : {setting.default!r}\n" in text
        words = " ".join(text.split())
        assert setting.meaning in words


@pytest.mark.parametrize("name", [*FUNCTIONS, "memcpy", "placement"])
def test_no_argument_of_a_function_is_typed_any(name):
    signature = inspect.signature(getattr(ooc_cudnn, name), eval_str=True)
    for parameter in signature.parameters.values():
        assert parameter.annotation not in (Any, inspect.Parameter.empty), parameter


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_shows_its_declaration(name):
    """What is declared to describe a call is what `help` and editors show of the function."""
    function = getattr(ooc_cudnn, name)
    assert inspect.isfunction(function)
    assert function.__doc__ == FUNCTIONS[name].__doc__
    assert (function.__name__, function.__qualname__) == (name, name)
    shown, declared = inspect.signature(function), inspect.signature(FUNCTIONS[name])
    assert shown.parameters == declared.parameters
    assert shown.return_annotation is Any
    assert list(shown.parameters)[-1] == "out"
    assert shown.parameters["out"].default is None


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_example_of_a_function_runs(name):
    """Pytest finds no examples of functions that a decorator made."""
    (found,) = doctest.DocTestFinder(recurse=False).find(getattr(ooc_cudnn, name), globs={})
    assert found.examples
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(found).failed == 0


@pytest.mark.parametrize("name", operations.__all__)
def test_no_argument_of_an_operation_is_typed_any(name):
    signature = inspect.signature(getattr(operations, name), eval_str=True)
    for parameter in signature.parameters.values():
        assert parameter.annotation not in (Any, inspect.Parameter.empty), parameter


def test_arrays_have_what_the_type_asks_for():
    wanted = [name for name in vars(types.Array) if name in ("shape", "dtype") or "dlpack" in name]
    assert len(wanted) == 4
    assert all(hasattr(np.zeros(3), name) for name in wanted)
    assert not all(hasattr([1, 2], name) for name in wanted)


class TestOverlap:
    """The argument that overlaps is called what the user calls it."""

    def test_in_place(self):
        y = np.ones((2, 3, 4, 4), "f4")
        with (
            ooc_cudnn.settings(device="host", machine="host"),
            pytest.raises(ValueError, match=r"^y overlaps b in memory; give y memory of its own"),
        ):
            ooc_cudnn.add_tensor(y[:1], y)

    def test_out(self):
        x = np.ones((2, 3, 4, 4), "f4")
        with (
            ooc_cudnn.settings(device="host", machine="host"),
            pytest.raises(ValueError, match=r"^out overlaps x in memory"),
        ):
            ooc_cudnn.activation_forward(x, out=x)

    def test_one_of_several(self):
        x, w = np.ones((2, 3, 6, 6), "f4"), np.ones((4, 3, 3, 3), "f4")
        y = np.ones((2, 4, 4, 4), "f4")
        with (
            ooc_cudnn.settings(device="host", machine="host"),
            pytest.raises(ValueError, match=r"^out \(dx\) overlaps x in memory"),
        ):
            ooc_cudnn.convolution_add_activation_backward(x, w, y, y, out=(x, None, None))

    def test_running_averages(self):
        x, vector = np.ones((2, 3, 6, 6), "f4"), np.ones(3, "f4")
        with (
            ooc_cudnn.settings(device="host", machine="host"),
            pytest.raises(ValueError, match=r"^running_mean overlaps scale in memory"),
        ):
            ooc_cudnn.batch_normalization_forward_training(
                x, vector, vector.copy(), running_mean=vector, running_variance=vector.copy()
            )


X, W = np.ones((1, 1, 8, 8), "f4"), np.ones((1, 1, 3, 3), "f4")
HUGE = {
    "padding": lambda v: ooc_cudnn.convolution_forward(X, W, padding=v),
    "stride": lambda v: ooc_cudnn.convolution_forward(X, W, stride=v),
    "dilation": lambda v: ooc_cudnn.convolution_forward(X, W, dilation=v),
    "window": lambda v: ooc_cudnn.pooling_forward(X, window=v),
    "padding of a gradient": lambda v: ooc_cudnn.convolution_backward_data(W, X, padding=v),
    "stride of a gradient": lambda v: ooc_cudnn.convolution_backward_data(W, X, stride=v),
    "dilation of filters": lambda v: ooc_cudnn.convolution_backward_filter(X, X, dilation=v),
    "padding in a chain": lambda v: ooc_cudnn.chain_forward(
        X, [operations.Convolution(W, padding=v)]
    ),
}


@pytest.mark.parametrize("name", HUGE)
@pytest.mark.parametrize("value", [2**30, 10**12, 10**30])
def test_sizes_that_cannot_be_meant_are_refused_by_name(name, value):
    argument = name.split()[0]
    with (
        ooc_cudnn.settings(device="host", machine="host"),
        pytest.raises(ValueError, match=rf"{argument} must be at most \d+, not {value}"),
    ):
        HUGE[name](value)


@pytest.mark.parametrize("padding", [2**16, 10**6, 2**30 - 1])
def test_padding_that_dwarfs_x_and_the_window_is_refused(padding):
    with (
        ooc_cudnn.settings(device="host", machine="host"),
        pytest.raises(ValueError, match=r"padding must be at most 65535 .* x has 8 and the window"),
    ):
        HUGE["padding"](padding)


def test_padding_as_large_as_x_and_the_window_is_taken():
    with ooc_cudnn.settings(device="host", machine="host"):
        y = ooc_cudnn.convolution_forward(X, W, padding=40)
        assert y.shape == (1, 1, 86, 86)
        assert y[0, 0, :38].max() == 0.0
        x = np.ones((1, 1, 70000), "f4")
        assert ooc_cudnn.convolution_forward(x, np.ones((1, 1, 3), "f4"), padding=70003).any()


def test_a_result_that_no_process_can_hold_is_refused():
    with (
        ooc_cudnn.settings(device="host", machine="host"),
        pytest.raises(ValueError, match=r"dx would be 1 x 1 x 7000003 x 7000003, .*stride"),
    ):
        ooc_cudnn.convolution_backward_data(W, X, stride=10**6)


#: Packages, and rooms of the library, that take long to import.
HEAVY = ("scipy", "torch", "cupy", "matplotlib", "tqdm", "logging", "importlib.metadata")
ROOMS = tuple(
    f"ooc_cudnn.{room}"
    for room in (
        "network", "networks", "calibration", "torch", "dask", "lightning", "monai", "nnunet",
        "doctor", "bench", "demo",
    )
)  # fmt: skip


def imported_by(code: str) -> set[str]:
    """The modules that a process has when it has run."""
    code = f"import sys\n{code}\nprint('\\n', *sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(ran.stdout.splitlines()[-1].split())


def test_the_import_leaves_heavy_modules_to_who_uses_them():
    assert not imported_by("import ooc_cudnn") & {*HEAVY, *ROOMS, "ooc_cudnn.cli"}
    assert "ooc_cudnn.network.network" in imported_by("import ooc_cudnn; ooc_cudnn.Network")


def test_help_imports_no_command():
    code = "from ooc_cudnn import cli\ntry: cli.main(['--help'])\nexcept SystemExit: pass"
    found = imported_by(code)
    assert not found & {*HEAVY, *ROOMS}
    ours = {name for name in found if name.startswith("ooc_cudnn.cli.")}
    assert ours == {"ooc_cudnn.cli.arguments", "ooc_cudnn.cli.commands"}


def test_a_small_network_imports_no_planner_that_it_does_not_need():
    found = imported_by(
        """
import numpy as np, ooc_cudnn
net = ooc_cudnn.Network()
h = net.activation(net.convolution(net.input("x", (2, 3, 8, 8)), 4, window=3))
step = net.training_step(net.mean_squared_error(h, net.input("y", h.shape)))
with ooc_cudnn.settings(device="host", machine="host", memory_limit="1MiB", plan_cache=False):
    step(x=np.ones((2, 3, 8, 8), "f4"), y=np.ones(h.shape, "f4"))
"""
    )
    network = "ooc_cudnn.network"
    unneeded = (f"{network}.bound", f"{network}.search.mo_sos.plan", f"{network}.tradeoff")
    assert not found & {"scipy", "tqdm", *unneeded, *set(ROOMS) - {network}}


def test_the_import_beside_torch_leaves_its_compiler_to_the_first_capture():
    pytest.importorskip("torch")
    found = imported_by("import ooc_cudnn.torch")
    assert "torch" in found
    assert not found & {"torch._dynamo", "torch._inductor", "sympy", "scipy"}


def test_what_is_imported_later_is_there_by_name():
    for name in ("Network", "calibrate", "networks"):
        assert name in dir(ooc_cudnn)
        assert getattr(ooc_cudnn, name) is getattr(ooc_cudnn, name)
    assert inspect.isfunction(ooc_cudnn.calibrate)
    with pytest.raises(AttributeError, match="module 'ooc_cudnn' has no attribute 'Netwrok'"):
        ooc_cudnn.Netwrok  # noqa: B018
