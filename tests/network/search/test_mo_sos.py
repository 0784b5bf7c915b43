"""MO-SOS: its program beside every schedule of tiny problems, and its steps beside PyTorch."""

import math

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn import networks
from ooc_cudnn.network.ir.plan import NetworkPlan
from ooc_cudnn.network.ir.step import RematEvent
from ooc_cudnn.network.passes.insert_remat_events import insert_remat_events
from ooc_cudnn.network.runtime.constraints_here import constraints_for
from ooc_cudnn.network.search import mo_sos
from ooc_cudnn.network.search.mo_sos.plan import CANDIDATES, MO_SOS, _program
from ooc_cudnn.network.search.mo_sos.problem import Choice, Map, Problem, Stage
from ooc_cudnn.network.search.mo_sos.program import Freedom, RematMilp
from ooc_cudnn.network.search.mo_sos.replay import schedule_of
from ooc_cudnn.network.search.pass_pipeline import canonicalize
from tests.fuzz.networks import PLENTY, Drawn
from tests.support.every_schedule import least_seconds
from tests.support.network_steps import compare

POLICIES = {
    "mo_sos": Freedom(),
    "str": Freedom(algorithms=False),
    "checkmate": Freedom(offload=False, algorithms=False),
}


def test_the_policies_are_known_without_the_program():
    assert mo_sos.POLICIES == tuple(CANDIDATES) == tuple(POLICIES)


def drawn_problem(seed):
    """Three or four maps, made one of another and sometimes of an earlier one; then backward."""
    random = np.random.default_rng(seed)

    def choices():
        seconds = float(random.integers(2, 6))
        found = [Choice(seconds, int(random.integers(0, 5)))]
        if random.integers(2):
            found.append(Choice(seconds + float(random.integers(1, 4)), 0))
        return tuple(found)

    maps, stages = [], []
    for j in range(int(random.integers(3, 5))):
        parents = {j - 1} if j else set()
        if j > 1 and random.integers(2):
            parents.add(int(random.integers(0, j - 1)))
        ways = choices()
        may = () if random.integers(6) == 0 else ways
        maps.append(Map(f"map {j}", int(random.integers(1, 6)), tuple(sorted(parents)), may))
        stages.append(Stage(ways, tuple(sorted(parents)), (j,), int(random.integers(2)), False))
    for j in reversed(range(len(maps))):
        reads = {j, *maps[j].parents} if random.integers(2) else {j}
        fixed = int(random.integers(3))
        stages.append(Stage(choices(), tuple(sorted(reads)), (), fixed))
        if random.integers(3) == 0:
            stages.append(Stage(choices(), (), (), fixed))
    rate = float(random.uniform(0.4, 2.0))
    return Problem(tuple(maps), tuple(stages), rate, rate * float(random.uniform(0.5, 1.0)))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(8))
def test_no_schedule_of_a_tiny_problem_is_faster(seed, policy):
    allowed, problem = POLICIES[policy], drawn_problem(seed)
    whole = sum(each.nbytes for each in problem.maps)
    fitting = 0
    for budget in range(whole + 4, 5, -3):
        program = RematMilp(problem, budget, allowed)
        solved = program.solved(0.0, 10**6, 60.0)
        expected = least_seconds(problem, budget, **allowed._asdict())
        found = math.inf if solved is None else schedule_of(program, solved).seconds
        assert found == pytest.approx(expected, abs=1e-6), (seed, budget)
        fitting += expected < math.inf
    assert fitting


@pytest.mark.parametrize(("seed", "policy"), [(18, "mo_sos"), (6, "str"), (19, "checkmate")])
def test_steps_of_drawn_networks_are_right_and_their_plans_can_be_stored(seed, policy):
    drawn = Drawn(seed)
    with ooc_cudnn.settings(device="host", machine="host"):
        full = drawn.net.plan(drawn.loss, memory_limit=PLENTY, policy="keep").device_bytes
        plan = drawn.check(int(0.9 * full), policy)
        again = drawn.net.training_step(drawn.loss, plan=NetworkPlan.from_json(plan.to_json()))
        for name, array in drawn.running.items():
            drawn.net.running[name] = array.copy()
        compare(drawn, again, again(**drawn.inputs))
        assert again.plan == plan


@pytest.fixture(scope="module")
def vgg():
    return networks.vgg16(batch=8, image=64, classes=10, width=1 / 16, dropout=0.0)


def test_each_policy_does_what_it_may():
    net = ooc_cudnn.Network()
    x = net.input("x", (8, 4, 64, 64))
    for _ in range(5):
        x = net.activation(net.convolution(x, 8, window=3, padding=1))
    loss = net.mean_squared_error(x, net.input("target", x.shape))
    limit = 7 * 2**20
    assert net.plan(loss, memory_limit="1GiB", policy="keep").device_bytes > limit
    found = {
        policy: net.plan(loss, memory_limit=limit, policy=policy, machine="p40")
        for policy in POLICIES
    }
    fates = {policy: set(plan.fate.values()) for policy, plan in found.items()}
    assert "recomputed" in fates["checkmate"]
    assert "offloaded" not in fates["checkmate"]
    assert "offloaded" in fates["mo_sos"] & fates["str"]
    for policy, plan in found.items():
        assert plan.device_bytes <= limit
        assert (plan.policy, plan.micro_batches) == (policy, 1)


def test_what_it_cannot_do_is_told(vgg):
    net, loss = vgg
    with pytest.raises(ValueError, match="'mo_sos' takes the batch whole, not in 2 parts"):
        net.plan(loss, memory_limit="8MiB", policy="mo_sos", machine="p40", micro_batches=2)
    net, loss = networks.vgg16(batch=2, image=32, classes=10, width=1 / 16, dropout=0.0)
    with pytest.raises(ooc_cudnn.PlanInfeasibleError, match=r"mo_sos has no plan within 256\.00"):
        net.plan(loss, memory_limit="256KiB", policy="mo_sos", machine="p40")


@pytest.mark.parametrize("policy", ["str", "checkmate"])
def test_the_limit_that_an_error_names_is_enough(policy):
    """One was named for which the program has a solution, but no addresses."""
    net = ooc_cudnn.Network()
    x = net.input("x", (2, 3, 8, 8))
    for _ in range(2):
        x = net.activation(net.convolution(x, 4, window=3, padding=1))
    loss = net.mean_squared_error(x, net.input("target", x.shape))
    with pytest.raises(ooc_cudnn.PlanInfeasibleError) as caught:
        net.plan(loss, memory_limit=3000, policy=policy, machine="host")
    limit = caught.value.smallest_bytes
    plan = net.plan(loss, memory_limit=limit, policy=policy, machine="host")
    assert plan.device_bytes <= limit


def test_a_map_is_made_again_as_often_as_a_plan_says(vgg):
    net, loss = vgg
    step = net.training_phases(loss)
    backward = [at for at, phase in enumerate(step.phases) if phase.is_backward]
    name = "conv1_1.relu"
    found = insert_remat_events(
        step, [RematEvent(backward[0], name), RematEvent(backward[3], name)]
    )
    made = [phase.name for phase in found.phases if phase.name.endswith("again")]
    assert made == ["conv1_1.relu forward again"] * 2
    last = [phase for phase in found.phases if phase.node == "conv1_2"][-2]
    assert f"{name} (2) remade" in last.reads
    with pytest.raises(ValueError, match="cannot be followed"):
        insert_remat_events(step, [RematEvent(0, name)])


def test_what_leaves_was_whole_before():
    """It left between a transposed convolution and its bias, which then waited for the copy."""
    net = ooc_cudnn.Network()
    x = net.input("x", (8, 4, 16, 16))
    for _ in range(4):
        x = net.transposed_convolution(x, 4, window=2, stride=2)
        x = net.activation(net.convolution(x, 4, window=2, stride=2))
    loss = net.mean_squared_error(x, net.input("target", x.shape))
    step = canonicalize(net.training_phases(loss), "mo_sos")
    built, program = _program(step, constraints_for("1MiB", "p40", step, {}), MO_SOS, 2**20)
    bias = next(t for t, s in enumerate(built.problem.stages) if s.adds_to)
    (own,) = built.problem.stages[bias].adds_to
    starts = [t for t, j in program.copies.out if j == own]
    assert bias < min(starts)
    assert built.problem.whole_after(own) == bias
