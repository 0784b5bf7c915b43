"""What the planner of networks says where limit, solver, host or machine model are too little."""

import builtins
import dataclasses
import warnings
from types import SimpleNamespace

import pytest

import ooc_cudnn
from ooc_cudnn import cli
from ooc_cudnn.errors import HostOutOfMemoryError, PlanInfeasibleError, SolverError
from ooc_cudnn.network.ir.plan import NetworkPlan
from ooc_cudnn.network.runtime.constraints_here import constraints_for
from ooc_cudnn.network.search.mo_sos import plan as mo_sos
from ooc_cudnn.network.search.plan_step import plan_again
from ooc_cudnn.warnings_once import forget_warnings
from perfmodel import ComputeModel, shipped
from perfmodel.missing_line import MissingLineError
from tests.support.sampling import number


@pytest.fixture(autouse=True)
def _said_again():
    forget_warnings()


def network(batch=4, side=16, channels=(8, 8, 16)):
    net = ooc_cudnn.Network(seed=3)
    maps = net.input("images", (batch, 3, side, side))
    for count in channels:
        maps = net.convolution(maps, count, window=3, padding=1)
        maps = net.activation(net.batch_normalization(maps), "relu")
    labels = net.input("labels", (batch,), "int64")
    return net, net.softmax_cross_entropy(net.linear(net.global_average(maps), 10), labels)


#: What takes little to plan where each call has hundreds of pieces.
SMALL = {"batch": 2, "side": 8, "channels": (8, 16)}


def planned(limit="160KiB", made_of=None, **asked):
    net, loss = network(**(made_of or {}))
    return net.plan(loss, **{"memory_limit": limit, "machine": "h200"} | asked)


# A limit below the least ------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["best", "keep", "offload", "vdnn_dyn"])
def test_a_limit_below_the_least_names_it_and_what_sets_it(policy):
    with pytest.raises(PlanInfeasibleError, match=r"no plan within 1\.00 KiB") as stop:
        planned(1024, SMALL, policy=policy)
    least = stop.value.smallest_bytes
    # the first to fail is the first convolution; but sums of 16 channels need most at once
    assert stop.value.function == "training_step: batch_normalization_2 sums"
    assert f"Set memory_limit={least} or more" in str(stop.value)
    assert planned(least, SMALL, policy=policy).device_bytes <= least
    if policy == "best":
        return  # it asks all others, and takes as long again
    with pytest.raises(PlanInfeasibleError) as again:
        planned(least - 1, SMALL, policy=policy)
    assert again.value.smallest_bytes == least
    assert again.value.function == stop.value.function


@pytest.mark.parametrize("limit", [2**10, 2**16])
def test_an_integer_program_names_a_limit_that_would_do(limit):
    with pytest.raises(PlanInfeasibleError, match="checkmate has no plan within") as stop:
        planned(limit, policy="checkmate")
    enough = stop.value.smallest_bytes
    assert limit < enough
    assert "try policy='best'" in str(stop.value)
    made = planned(2 * enough, policy="checkmate")  # addresses and pieces take their part
    assert made.device_bytes <= 2 * enough


# The solver -------------------------------------------------------------------------------------


@pytest.fixture
def without_scipy(monkeypatch):
    real = builtins.__import__

    def imported(name, *arguments, **options):
        if name.partition(".")[0] == "scipy":
            raise ModuleNotFoundError("No module named 'scipy'", name="scipy")
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", imported)


@pytest.fixture(params=["missing", "numerical", "raises", "iterations"][: number(1, of=4)])
def broken(request, monkeypatch):
    """A solver that is not there, raises, goes wrong, or takes too long; and what is said of it."""
    if request.param == "missing":
        request.getfixturevalue("without_scipy")
        return "cannot be imported.*pip install scipy"
    from scipy import optimize

    def solve(*arguments, **options):
        if request.param == "raises":
            raise RuntimeError("it broke")
        status = {"numerical": 4, "iterations": 1}[request.param]
        return SimpleNamespace(x=None, status=status, message="it broke")

    for name in ("linprog", "milp"):
        monkeypatch.setattr(optimize, name, solve)
    return "HiGHS failed on .*: it broke"


def test_best_does_without_a_solver_and_says_so_once(broken):
    with pytest.warns(UserWarning, match=f"(?s){broken}.*made without its programs") as told:
        made = planned(bound=True)
    assert len(told) == 1
    assert made.device_bytes <= made.memory_limit
    assert made.bound_seconds is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert planned() == made
        others = [planned(policy=policy) for policy in ("keep", "remake", "offload")]
    assert made.seconds <= min(other.seconds for other in others)


def test_an_integer_program_needs_its_solver(without_scipy):
    with pytest.raises(SolverError, match=r"cannot be imported.*pip install scipy"):
        planned("100KiB", policy="checkmate")


def test_a_solver_that_fails_is_named(monkeypatch, capsys):
    from scipy import optimize

    def milp(*arguments, **options):
        return SimpleNamespace(x=None, status=4, message="numbers went wrong")

    monkeypatch.setattr(optimize, "milp", milp)
    with pytest.raises(SolverError, match=r"numbers went wrong\. Another policy"):
        planned("100KiB", policy="checkmate")
    asked = ("vgg16", "--batch", "2", "--image", "32", "--width", "0.0625", "--limit", "200KiB")
    assert cli.main(["network", *asked, "--machine", "h200", "--policy", "checkmate"]) == 1
    assert "programs: numbers went wrong" in capsys.readouterr().err


def test_a_search_that_finds_nothing_within_its_nodes_did_not_fail(monkeypatch):
    from scipy import optimize

    solve, ended = optimize.milp, []

    def milp(*arguments, **options):
        found = solve(*arguments, **options)
        if len(ended) < 2:  # the first program, with either share of memory
            ended.append(found.status)
            said = "not recognized. (HiGHS Status 16: Solution limit reached)"
            return SimpleNamespace(x=None, status=4, message=said)
        return found

    monkeypatch.setattr(optimize, "milp", milp)
    made = planned("230KiB", policy="mo_sos")  # by a program of fewer decisions
    assert len(ended) == 2
    assert made.device_bytes <= made.memory_limit


# Time that runs out -----------------------------------------------------------------------------


def test_a_search_that_is_ended_says_how_far_from_its_bound_it_is(monkeypatch):
    net, loss = network()
    limit = int(0.8 * planned("4MiB", policy="keep").device_bytes)
    whole = net.plan(loss, memory_limit=limit, policy="checkmate", machine="h200")
    assert (whole.gap, "solver" in whole.explain()) == (0.0, False)
    solve = mo_sos.RematMilp.solved

    def ended(program, *limits):
        found = solve(program, *limits)
        below = found.objective - 0.2 * (program.constant_seconds + found.objective)
        return found._replace(bound=below)  # as if the search had been ended early

    monkeypatch.setattr(mo_sos.RematMilp, "solved", ended)
    made = net.plan(loss, memory_limit=limit, policy="checkmate", machine="h200")
    assert made.gap == pytest.approx(0.25)
    assert "solver     stopped 25.0 % above" in made.explain()
    assert dataclasses.replace(made, gap=0.0) == whole
    assert NetworkPlan.from_json(made.to_json()) == made
    step = net.training_phases(loss)
    assert plan_again(step, made, constraints_for(limit, "h200", step, {})).plan.gap == made.gap


# Host memory ------------------------------------------------------------------------------------


def test_host_memory_is_a_cap_on_what_is_offloaded():
    free = planned(policy="offload")
    assert free.host_bytes > 0
    with ooc_cudnn.settings(host_memory_limit=free.host_bytes):
        assert planned(policy="offload") == free
    with (
        ooc_cudnn.settings(host_memory_limit=4096),
        pytest.raises(HostOutOfMemoryError, match="pinned host memory for what training_step") as e,
    ):
        planned()
    with ooc_cudnn.settings(host_memory_limit=e.value.held_bytes + e.value.requested_bytes):
        made = planned()
    assert made.host_bytes == e.value.requested_bytes


# The machine model ------------------------------------------------------------------------------


def without(prefix):
    machine = shipped("h200")
    lines = {key: line for key, line in machine.compute.lines.items() if prefix not in key}
    return dataclasses.replace(machine, compute=ComputeModel(lines))


def without_copies(direction):
    machine = shipped("h200")
    lines = {k: v for k, v in getattr(machine.transfer, direction).items() if k != "pinned"}
    return dataclasses.replace(
        machine, transfer=dataclasses.replace(machine.transfer, **{direction: lines})
    )


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        (without("convolution"), "no line for 'convolution/tf32/channels_first', nor for any of"),
        (without("pointwise"), "no line for 'pointwise/float32"),
        (without_copies("copy_in"), "no line for copy in of pinned memory"),
        (without_copies("copy_out"), "no line for copy out of pinned memory"),
    ],
    ids=("convolutions", "passes", "copies in", "copies out"),
)
@pytest.mark.parametrize("policy", ["best", "offload"])
def test_a_machine_model_without_a_cost_says_what_to_calibrate(machine, said, policy):
    with pytest.raises(ValueError, match=f"{said}.*Run 'ooc-cudnn calibrate'") as stop:
        planned(policy=policy, machine=machine)
    assert isinstance(stop.value, MissingLineError)
    assert len(str(stop.value)) < 1000


def test_the_command_line_says_it_in_a_line(capsys, tmp_path):
    path = tmp_path / "poor.json"
    without("convolution").save(path)
    asked = ("alexnet", "--batch", "2", "--machine", str(path), "--policy", "keep")
    assert cli.main(["network", *asked]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "Run 'ooc-cudnn calibrate'" in err
