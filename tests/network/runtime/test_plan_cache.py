"""Plans that are kept on disk: found again, never trusted, and never a reason to fail."""

import json
import os
import random
import warnings
from dataclasses import replace

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.network.ir.live_ranges import LiveRange
from ooc_cudnn.network.ir.plan import NetworkPlan
from ooc_cudnn.network.runtime import plan_cache
from ooc_cudnn.network.runtime.plan_cache import plans_folder
from ooc_cudnn.settings import current
from ooc_cudnn.warnings_once import forget_warnings
from perfmodel import shipped
from tests.support.on_device import on_the_device
from tests.support.sampling import number

LIMIT = "160KiB"


@pytest.fixture(autouse=True)
def kept(monkeypatch, tmp_path, few_plans):
    """Keep every plan, in a folder of the test; say what is wrong with one again."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(plan_cache, "SHORTEST_SECONDS", 0.0)
    ooc_cudnn.settings(plan_cache=True)
    forget_warnings()


def network(batch=4, channels=8, dtype="float32", depth=3):
    net = ooc_cudnn.Network(seed=3)
    maps = net.input("images", (batch, 3, 16, 16), dtype)
    for _ in range(depth):
        maps = net.convolution(maps, channels, window=3, padding=1)
        maps = net.activation(net.batch_normalization(maps), "relu")
    labels = net.input("labels", (batch,), "int64")
    return net, net.softmax_cross_entropy(net.linear(net.global_average(maps), 10), labels)


def planned(net=None, loss=None, **asked):
    if net is None:
        net, loss = network()
    return net.plan(loss, **{"memory_limit": LIMIT, "machine": "h200"} | asked)


def files():
    return sorted(plans_folder().glob("*"))


def nothing_is_planned(monkeypatch):
    def plan_step(*arguments, **options):
        raise AssertionError("planned anew")

    monkeypatch.setattr(plan_cache, "plan_step", plan_step)
    monkeypatch.setattr(plan_cache, "plan_with_bound", plan_step)


# Found again ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "policy", ["best", "keep", "remake", "offload", "mixed", "vdnn_dyn", "checkmate"]
)
def test_a_plan_is_found_again(monkeypatch, policy):
    first = planned(policy=policy)
    assert len(files()) == 1
    nothing_is_planned(monkeypatch)
    found = planned(policy=policy)
    assert found == first
    assert found.by_order == first.by_order
    assert found.explain() == first.explain()


def test_the_bound_is_kept_and_said_where_it_is_asked_for(monkeypatch):
    assert planned(policy="keep").bound_seconds is None
    with_bound = planned(bound=True, policy="keep")
    assert with_bound.bound_seconds > 0
    (path,) = files()
    nothing_is_planned(monkeypatch)
    assert planned(bound=True, policy="keep") == with_bound
    assert planned(policy="keep").bound_seconds is None
    assert path == files()[0]


@pytest.mark.parametrize(
    "other",
    [
        {"memory_limit": "200KiB"},
        {"policy": "offload"},
        {"machine": "titanx"},
        {"machine": replace(shipped("h200"), step_seconds=1e-4)},
    ],
)
def test_another_request_is_another_plan(other):
    planned(policy="keep")
    assert planned(**{"policy": "keep"} | other) == planned(**{"policy": "keep"} | other)
    assert len(files()) == 2


@pytest.mark.parametrize(
    ("setting", "value"),
    [("allow_tf32", False), ("deterministic", True), ("overlap", False)],
)
def test_settings_that_matter_count(setting, value):
    planned(policy="keep")
    with ooc_cudnn.settings(**{setting: value}):
        planned(policy="keep")
    assert len(files()) == 2
    with ooc_cudnn.settings(verify=3, progress=False):
        planned(policy="keep")
    assert len(files()) == 2


def test_a_plan_whose_search_was_ended_is_searched_longer_where_more_is_asked():
    with ooc_cudnn.settings(planning_seconds=0.0):
        first = planned()
        assert first.searched_seconds == 0.0
        assert planned().explain() == first.explain()
    with ooc_cudnn.settings(planning_seconds=10):
        longer = planned()
    assert longer.searched_seconds is None
    assert longer.seconds <= first.seconds
    with ooc_cudnn.settings(planning_seconds=0.0):
        assert planned() == longer
    assert len(files()) == 1


@pytest.mark.parametrize("other", [{"batch": 5}, {"channels": 7}, {"dtype": "float16"}])
def test_another_network_is_another_plan(other):
    planned(policy="keep")
    planned(*network(**other), policy="keep")
    assert len(files()) == 2


def test_what_is_frozen_counts():
    net, loss = network()
    planned(net, loss, policy="keep")
    net.freeze("convolution_1")
    planned(net, loss, policy="keep")
    assert len(files()) == 2


def test_another_library_makes_its_own_plans(monkeypatch):
    planned(policy="keep")
    monkeypatch.setattr(plan_cache, "library_digest", lambda: "another")
    planned(policy="keep")
    assert len(files()) == 2


def given(net, batch=4):
    drawn = np.random.default_rng(1)
    images = drawn.standard_normal((batch, 3, 16, 16)).astype("f4")
    return {"images": images, "labels": drawn.integers(0, 10, batch)}


def test_a_step_runs_by_a_plan_that_was_kept(monkeypatch, few_plans):
    def run(net, loss):
        step = net.training_step(loss, memory_limit=LIMIT)
        return step(**given(net)), step

    value, step = run(*network())
    nothing_is_planned(monkeypatch)
    again, other = run(*network())
    assert other.plan == step.plan
    assert again == value
    for name, gradient in step.gradients.items():
        np.testing.assert_array_equal(gradient, other.gradients[name])


def test_where_arrays_lie_counts():
    net, loss = network()
    step = net.training_step(loss, memory_limit="8MiB", policy="keep")
    inputs = given(net)
    step(**inputs)
    step(**inputs | {"images": on_the_device(inputs["images"])})
    assert len(files()) == 2


def test_inference_is_planned_once(monkeypatch):
    net, _ = network()
    logits = net.graph.tensors["linear_1"]
    images = given(net)["images"]
    first = net.forward(logits, images=images, memory_limit=LIMIT)
    nothing_is_planned(monkeypatch)
    np.testing.assert_array_equal(net.forward(logits, images=images, memory_limit=LIMIT), first)


# Not kept ---------------------------------------------------------------------------------------


def test_a_setting_says_that_no_plan_is_kept():
    with ooc_cudnn.settings(plan_cache=False):
        first = planned(policy="keep")
        assert not plans_folder().exists()
    assert planned(policy="keep") == first
    (path,) = files()
    path.write_text("damaged")
    with ooc_cudnn.settings(plan_cache=False):
        assert planned(policy="keep") == first
    assert path.read_text() == "damaged"


def test_what_is_planned_quickly_is_not_kept(monkeypatch):
    monkeypatch.setattr(plan_cache, "SHORTEST_SECONDS", 60.0)
    planned()
    assert not plans_folder().exists()


def test_a_limit_that_admits_no_plan_leaves_no_file():
    for _ in range(2):
        with pytest.raises(PlanInfeasibleError, match="the least that would do"):
            planned(memory_limit="1KiB", policy="keep")
    assert not plans_folder().exists()


def test_the_oldest_plans_go(monkeypatch):
    monkeypatch.setattr(plan_cache, "MOST_FILES", 2)
    made = []
    for at, limit in enumerate(("1MiB", "2MiB", "3MiB")):
        planned(memory_limit=limit, policy="keep")
        (new,) = set(files()) - set(made)
        os.utime(new, (at, at))
        made.append(new)
    assert files() == sorted(made[1:])


def test_a_folder_that_cannot_be_written_is_said_once(tmp_path):
    (tmp_path / "ooc_cudnn").write_text("a file where the folder would be")
    with pytest.warns(UserWarning, match="plans of networks cannot be kept in .*plan_cache=False"):
        first = planned(policy="keep")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert planned(policy="keep") == first


# Damaged ----------------------------------------------------------------------------------------


def cut_off(path):
    path.write_bytes(path.read_bytes()[:-40])


def one_digit(path):
    content = path.read_text()
    at = content.index("seconds") + 20
    digit = next(i for i in range(at, len(content)) if content[i].isdigit())
    changed = str((int(content[digit]) + 1) % 10)
    path.write_text(content[:digit] + changed + content[digit + 1 :])


def edited(**fields):
    def edit(path):
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return edit


def a_folder(path):
    path.unlink()
    path.mkdir()


DAMAGES = {
    "cut off": (cut_off, "Unterminated string"),
    "empty": (lambda path: path.write_text(""), "Expecting value"),
    "no JSON": (lambda path: path.write_bytes(b"\xc3("), "codec can't decode"),
    "a list": (lambda path: path.write_text("[]"), "must be a mapping"),
    "deep": (lambda path: path.write_text("[" * 10**5), "recursion"),
    "one digit": (one_digit, "not what was written"),
    "another kind": (edited(format="ooc_cudnn engines"), "its format is 'ooc_cudnn engines'"),
    "another version": (edited(version=2), "its version is 2, not 1"),
    "a stranger": (edited(more=1), "unknown 'more'"),
    "no number": (edited(host_bytes="much"), "host_bytes is 'much'"),
    "a plan that is no text": (edited(plan={}), "plan is {}"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_ignored_said_once_and_replaced(damage):
    first = planned(policy="keep")
    (path,) = files()
    written = path.read_text()
    spoil, said = DAMAGES[damage]
    spoil(path)
    with pytest.warns(UserWarning, match=f"(?s)a kept plan is ignored.*{said}") as told:
        assert planned(policy="keep") == first
    assert str(path) in str(told[0].message)
    assert path.read_text() == written
    spoil(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert planned(policy="keep") == first


def test_a_file_that_is_too_large_is_not_read(monkeypatch):
    first = planned(policy="keep")
    monkeypatch.setattr(plan_cache, "LARGEST_BYTES", 1000)
    with pytest.warns(UserWarning, match="more than 1000 bytes"):
        assert planned(policy="keep") == first


def test_a_folder_in_the_place_of_a_file_is_ignored():
    first = planned(policy="keep")
    a_folder(files()[0])
    with pytest.warns(UserWarning, match="plan") as told:
        assert planned(policy="keep") == first
    assert ["a kept plan is ignored" in str(each.message) for each in told] == [True, False]
    assert "cannot be kept" in str(told[1].message)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("what", [os.mkfifo, lambda path: os.symlink("/dev/zero", path)])
def test_what_is_no_file_is_ignored_and_replaced(what):
    """Reading a pipe waited for ever, a link to /dev/zero took all memory."""
    first = planned(policy="keep")
    (path,) = files()
    path.unlink()
    what(path)
    with pytest.warns(UserWarning, match="a kept plan is ignored.*this is a") as told:
        assert planned(policy="keep") == first
    assert str(path) in str(told[0].message)
    assert not path.is_symlink()
    assert path.is_file()


def test_plans_that_were_never_finished_are_removed(monkeypatch):
    planned(policy="keep")
    (path,) = files()
    left = path.with_name(f".another.json.{'0' * 32}")
    left.touch()
    os.utime(left, (0, 0))
    planned(policy="offload")
    assert not left.exists()


def forged(path, plan):
    """Write a plan as if it had been written there."""
    content = json.dumps(plan)
    edited(plan=content, digest=plan_cache._digest(content))(path)


def test_a_plan_of_another_policy_or_network_is_ignored():
    first = planned(policy="keep")
    (path,) = files()
    for stranger in (
        planned(policy="offload"),
        planned(*network(depth=2), policy="keep"),
        replace(first, bound_seconds=-1.0),
        replace(
            first,
            live_ranges=((first.live_ranges[0][0], (LiveRange(9, 2),)), *first.live_ranges[1:]),
        ),
        replace(first, order="sideways"),
    ):
        forged(path, stranger.to_json())
        with pytest.warns(UserWarning, match="a kept plan is ignored"):
            assert planned(policy="keep") == first
        forget_warnings()


def leaves(value, where=()):
    """The place of every number, text and truth value in JSON."""
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        return [leaf for key, held in pairs for leaf in leaves(held, (*where, key))]
    return [where]


OTHERS = (None, True, -1, 0, 1, 7, 10**9, 0.5, "", "conv", [], [1], {}, "keep")


@pytest.mark.filterwarnings("ignore:a kept plan is ignored")
@pytest.mark.parametrize("policy", ["remake", "mixed", "checkmate"])
def test_no_edit_of_a_file_gives_another_result(policy):
    """Whatever the file holds, there is a plan, and it is one that is followed soundly."""
    first = planned(policy=policy)
    (path,) = files()
    written = json.loads(json.loads(path.read_text())["plan"])
    places, drawn = leaves(written), random.Random(4)
    for _ in range(number(20, of=60)):
        plan = json.loads(json.dumps(written))
        *to, last = drawn.choice(places)
        held = plan
        for key in to:
            held = held[key]
        held[last] = drawn.choice(OTHERS)
        forged(path, plan)
        made = planned(policy=policy)
        same = {
            each: getattr(made, each)
            for each in ("name", "policy", "machine", "memory_limit", "gradient_bytes")
        }
        assert same == {each: getattr(first, each) for each in same}
        assert made.device_bytes <= made.memory_limit
        assert made.seconds > 0
        assert NetworkPlan.from_json(json.loads(json.dumps(made.to_json()))) == made


# Host memory --------------------------------------------------------------------------------------


def test_less_host_memory_than_a_plan_wants_is_no_fault_of_the_file(monkeypatch):
    first = planned(policy="offload")
    assert first.host_bytes > 0

    path = files()[0]
    written = json.loads(path.read_text())
    assert written["host_bytes"] is None
    edited(host_bytes=first.host_bytes - 1)(path)
    planned(policy="offload")  # there is more room now: planned anew, and kept as such
    assert json.loads(path.read_text())["host_bytes"] is None
    monkeypatch.setattr(plan_cache, "_host_bytes", lambda step, constraints: 10**6)
    edited(host_bytes=10**6)(path)  # as much as then
    nothing_is_planned(monkeypatch)
    assert planned(policy="offload") == first


def test_a_limit_on_host_memory_makes_its_own_plans():
    first = planned(policy="offload")
    with ooc_cudnn.settings(host_memory_limit=first.host_bytes + 4096):
        second = planned(policy="offload")
        assert planned(policy="offload") == second
    assert second.host_bytes <= first.host_bytes + 4096
    assert len(files()) == 2
    assert current().plan_cache
