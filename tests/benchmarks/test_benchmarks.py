"""The benchmarks run at a tiny size on the host device, and what checks them finds faults."""

import importlib
import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.pages import readme
from ooc_cudnn.bench.contents import Images, filters, points, poison, unwritten, verify
from ooc_cudnn.bench.report import Claim
from ooc_cudnn.bench.timing import Timing, interleave, paired_ratio
from perfmodel import Split

NAMES = [
    "host_split",
    "functions",
    "functions_in_core",
    "planning",
    "engines",
    "kernels",
    "passes",
    "networks",
    "door_cost",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_quick_run_writes_verified_results(name, tmp_path, monkeypatch):
    if name in (
        "functions_in_core",
        "engines",
        "kernels",
        "passes",
        "networks",
        "door_cost",
    ):
        pytest.importorskip("torch")  # what its contents are compared with
    module = importlib.import_module(f"benchmarks.{name}")
    if name == "networks":  # these two take long to plan
        long = ("densenet121", "unet_3d-128")
        cases = {name: case for name, case in module.CASES.items() if name not in long}
        monkeypatch.setattr(module, "CASES", cases)
    arguments = [
        "--quick",
        "--device",
        "host",
        "--output",
        str(tmp_path),
        "--scratch",
        str(tmp_path),
    ]
    assert module.main(arguments) == 0
    (path,) = tmp_path.iterdir()
    report = json.loads(path.read_text())
    assert path.name == f"{name}.json"
    assert report["benchmark"] == name
    assert report["quick"] is True
    assert report["verified"] is True
    assert any("contents" in check for check in report["checks"])
    assert report["claims"]
    assert all(np.isfinite(claim["value"]) for claim in report["claims"])
    assert {"date", "commit", "source_sha256", "processor", "versions"} <= set(
        report["environment"]
    )
    assert report["settings"]["device"] == "host"


def test_a_part_of_the_networks_is_a_file_of_its_own_and_compared(tmp_path):
    pytest.importorskip("torch")
    from benchmarks import card, networks

    assert tuple(networks.CASES) == card.NETWORKS
    given = ["--quick", "--device", "host", "--output", str(tmp_path), "--case", "vgg16"]
    assert networks.main(given) == 0
    report = json.loads((tmp_path / "networks_vgg16.json").read_text())
    plan = report["measurements"]["vgg16, small, offload: plan"]
    assert plan["bytes_in"] > 0 < plan["bytes_out"]
    assert report["checks"]["vgg16, small, offload: contents"]["gradients"] == 32
    assert report["checks"]["vgg16, small, offload: peak"]["peak"] == plan["device_bytes"]


def test_wrong_gradients_of_networks_are_found(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    from benchmarks import networks

    case = networks.CASES["vgg16"]
    twin = replace(case, twin=lambda *given: 1.0001 * case.twin(*given))
    monkeypatch.setitem(networks.CASES, "vgg16", twin)
    given = ["--quick", "--device", "host", "--output", str(tmp_path), "--case", "vgg16"]
    assert networks.main(given) == 1


def test_a_full_run_needs_a_card(capsys):
    from benchmarks.functions import main

    with pytest.raises(SystemExit):
        main(["--device", "host"])
    assert "needs a GPU" in capsys.readouterr().err


@pytest.fixture
def right():
    """Images, filters, bias and the right output, by the definition."""
    images = Images.of((6, 4, 9, 8))
    w, b = filters(5, 4)
    x = images.fill(np.empty(images.shape, np.float32)).astype(np.float64)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    y = np.einsum("nchwrs,kcrs->nkhw", windows, w.astype(np.float64)) + b[:, None, None]
    return images, w, b, np.maximum(y, 0).astype(np.float32)


@pytest.mark.parametrize("tf32", [True, False])
def test_right_contents_pass(right, tf32):
    images, w, b, y = right
    found = verify(images, w, b, y, tf32=tf32, split=Split(n=2, c_y=5, c_x=4, h_y=3))
    assert found["ok"]
    assert found["highest_element"] == y.size - 1


def _swap(y):
    y[[2, 3]] = y[[3, 2]]


def _late(y):
    y[:, :, 1:] = y[:, :, :-1].copy()


def _seam(y):
    y[:, :, 3] = 0


def _half(y):
    y *= 1 + 2.0**-8


def _hole(y):
    y[1, 2, 4, 5] = np.nan


@pytest.mark.parametrize("fault", [_swap, _late, _seam, _half, _hole])
def test_wrong_contents_fail(right, fault):
    images, w, b, y = right
    fault(y)
    assert not verify(images, w, b, y, tf32=True, split=Split(n=2, c_y=5, c_x=4, h_y=3))["ok"]


def test_strict_tolerance_refuses_what_tf32_may_do(right):
    images, w, b, y = right
    y *= 1 + 2.0**-14
    assert verify(images, w, b, y, tf32=True)["ok"]
    assert not verify(images, w, b, y, tf32=False)["ok"]


def test_every_image_and_channel_differs():
    images = Images.of((16, 8, 6, 6))
    x = images.fill(np.empty(images.shape, np.float32))
    assert len(np.unique(x.reshape(16 * 8, -1), axis=0)) == 16 * 8


def test_unwritten_planes_are_counted():
    y = np.zeros((3, 2, 4, 4), np.float32)
    assert unwritten(y) == 0
    poison(y)
    assert unwritten(y) == 6


def test_both_sides_of_piece_borders_are_looked_at():
    found = points((10, 1, 20, 30), Split(n=4, c_y=1, c_x=1, h_y=7), random=0)
    assert {image for image, _, _ in found} == {0, 3, 4, 7, 8, 9}
    assert {row for _, row, _ in found} == {0, 6, 7, 13, 14, 19}


@pytest.mark.parametrize(
    ("value", "relation", "bound", "holds"),
    [
        (0.96, ">=", 0.95, True),
        (0.94, ">=", 0.95, False),
        (90, "<=", 100, True),
        (110, "<=", 100, False),
        (float("nan"), ">=", 0, False),
        (1.0, "", None, None),
    ],
)
def test_a_claim_holds_its_bound(value, relation, bound, holds):
    assert Claim("c", value, relation, bound).holds is holds


def test_a_claim_with_half_a_bound_is_refused():
    with pytest.raises(ValueError, match="relation"):
        Claim("c", 1.0, ">=")


def test_timings_take_turns_and_are_summarised():
    order = []
    times = interleave(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")},
        lambda: None,
        repeats=3,
        before={"b": lambda: order.append("-")},
    )
    assert "".join(order) == "a-b" * 4
    assert len(times["a"].samples) == 3
    two, one = Timing((2.0, 4.0, 30.0)), Timing((1.0, 2.0, 10.0))
    assert two.to_json()["median"] == 4.0
    assert paired_ratio(two, one) == {"of_medians": 2.0, "median": 2.0, "min": 2.0, "max": 3.0}


def test_the_readme_quotes_the_stored_results():
    assert [block.write(check=True) for block in readme.BLOCKS] == [0]
