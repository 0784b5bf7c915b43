"""Seconds over memory: points where plans are, the bound below them, and a picture of both."""

import json
from dataclasses import replace

import pytest

import ooc_cudnn
from ooc_cudnn.network.search.plan_step import NAMES
from ooc_cudnn.network.tradeoff.curve import PLENTY, QUICK, SHARES, Point, Trade, trade_off
from ooc_cudnn.network.tradeoff.plot import draw_trade, figure_of
from tests.support.colours import check_one_meaning_a_colour, meanings
from tests.support.sampling import short_search

POLICIES = ("best", "keep", "offload")
LIMITS = (1.0, 0.5, "tiny")
TINY = 2**10


@pytest.fixture(scope="module")
def network():
    net = ooc_cudnn.Network()
    maps = net.input("images", (8, 3, 64, 64))
    for channels in (16, 32, 32):
        maps = net.convolution(maps, channels, window=3, padding=1)
        maps = net.pooling(net.activation(maps, "relu"), window=2)
    labels = net.input("labels", (8,), "int64")
    return net, net.softmax_cross_entropy(net.linear(net.global_average(maps), 10), labels)


@pytest.fixture(scope="module")
def trade(network):
    net, loss = network
    told = []
    limits = [TINY if each == "tiny" else each for each in LIMITS]
    with short_search():
        made = trade_off(
            net, loss, name="small", limits=limits, policies=POLICIES, machine="h200",
            tell=told.append,
        )  # fmt: skip
    assert told == list(range(1, len(LIMITS) * len(POLICIES) + 1))
    return made


def test_limits_are_shares_of_what_keeping_everything_takes(trade, network):
    net, loss = network
    kept = net.plan(loss, memory_limit=PLENTY, policy="keep", micro_batches=1, machine="h200")
    assert set(kept.fate.values()) == {"kept"}
    assert trade.keep_all_bytes == kept.device_bytes
    assert trade.limits == (kept.device_bytes, kept.device_bytes // 2, TINY)
    assert trade.policies == POLICIES


def test_points_are_the_plans_of_their_policies(trade, network):
    net, loss = network
    for point in trade.points[: 2 * len(POLICIES)]:
        plan = net.plan(loss, memory_limit=point.limit_bytes, policy=point.policy, machine="h200")
        assert replace(point.plan, bound_seconds=None) == plan
        assert point.why == ""


def test_the_bound_is_below_all_points(trade):
    assert list(trade.bounds) == list(trade.limits[:2])
    for point in trade.points[: 2 * len(POLICIES)]:
        assert trade.bounds[point.limit_bytes] <= point.plan.seconds
    assert trade.bounds[trade.limits[0]] <= trade.bounds[trade.limits[1]]


def test_where_nothing_runs_there_is_no_point(trade):
    for policy in POLICIES:
        *found, missing = trade.of(policy)
        assert all(point.plan is not None for point in found)
        assert missing.plan is None
        assert "the least that would do" in missing.why


def test_the_table_says_all_of_it(trade):
    lines = trade.explain().splitlines()
    assert lines[0].startswith("small on h200: predicted seconds of a step over memory")
    rows = {line.split("  ")[1].strip(): line.split() for line in lines[2:] if line}
    assert rows["of keep-all"][2:4] == ["1.00", "0.50"]
    for policy in POLICIES:
        assert rows[policy][-1] == "-"
    assert rows["best above it"][-1] == "-"
    assert any("best: training_step" in line and "the least" in line for line in lines)


def test_json_has_figures_and_no_plans(trade):
    data = json.loads(json.dumps(trade.to_json()))
    assert [each["policy"] for each in data["points"]] == list(POLICIES) * len(LIMITS)
    first, last = data["points"][0], data["points"][-1]
    assert first["seconds"] == trade.points[0].plan.seconds
    assert (last["seconds"], last["device_bytes"]) == (None, None)
    assert "stays" not in first


def test_what_takes_minutes_is_not_planned_unasked():
    assert set(NAMES) - set(QUICK) == {"mo_sos", "str", "checkmate"}
    assert QUICK[0] == "best"
    assert max(SHARES) == 1.0


def test_a_picture_has_a_line_for_each_policy_and_one_for_the_bound(trade, tmp_path):
    pytest.importorskip("matplotlib")
    (axes,) = figure_of(trade).axes
    drawn = {line.get_label(): line.get_xydata().tolist() for line in axes.get_lines()}
    assert list(drawn) == [*POLICIES, "bound"]
    assert all(len(points) == 2 for points in drawn.values())  # two limits have plans
    best = [point.plan for point in trade.of("best") if point.plan is not None]
    expected = sorted([plan.memory_limit / 2**30, plan.seconds * 1e3] for plan in best)
    assert drawn["best"] == [pytest.approx(each) for each in expected]
    draw_trade(trade, tmp_path / "trade.png")
    assert (tmp_path / "trade.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_of_every_policy_has_a_colour_for_each():
    pytest.importorskip("matplotlib")
    points = tuple(Point(policy, 2**30, None, "never planned") for policy in NAMES)
    figure = figure_of(Trade("all", 2**30, points, {2**30: 1.0}))
    check_one_meaning_a_colour(figure)
    assert len(meanings(figure)) == len(NAMES) + 1


def test_a_sweep_without_any_plan_is_drawn_empty(network, tmp_path):
    pytest.importorskip("matplotlib")
    net, loss = network
    trade = trade_off(net, loss, limits=[TINY], policies=["keep"], machine="h200")
    assert trade.bounds == {}
    draw_trade(trade, tmp_path / "trade.svg")
    assert (tmp_path / "trade.svg").read_text().startswith("<?xml")


def test_what_host_memory_has_no_room_for_is_no_point(network):
    net, loss = network
    with ooc_cudnn.settings(host_memory_limit=4096):
        trade = trade_off(net, loss, limits=[1.0], policies=["vdnn_all"], machine="h200")
    (point,) = trade.points
    assert point.plan is None
    assert "pinned host memory" in point.why


def test_a_trade_comes_back_from_its_json(trade):
    again = Trade.from_json(json.loads(json.dumps(trade.to_json())))
    assert again.to_json() == trade.to_json()
    assert again.explain() == trade.explain()


def test_where_a_limit_costs_much_the_table_says_so(network):
    net, loss = network
    asked = {"limits": [1.0, 0.9, 0.1], "policies": ["best"], "machine": "h200"}
    found = trade_off(net, loss, **asked)
    large, middle, small = (point.plan for point in found.points)
    lines = found.explain().splitlines()
    assert large.seconds == pytest.approx(middle.seconds, rel=0.2)
    (said,) = [line for line in lines if "times as long as within" in line]
    assert f"takes {small.seconds / middle.seconds:.1f} times" in said
    assert any("at the earliest, for" in line for line in lines)
    (limits, _) = [point.limit_bytes for point in found.points[1:]]
    assert all(need.nbytes > small.memory_limit for need in small.needs)
    assert limits == middle.memory_limit
