"""The page on layouts shows every layer and network of a record; the picture is drawn once."""

import json

import pytest

from benchmarks import layouts as benchmark
from benchmarks.layout_cases import LAYERS, networks
from benchmarks.layout_ways import as_gradient
from benchmarks.pages import layouts
from ooc_cudnn import devices
from tests.support.engines_device import EnginesDevice
from tests.support.fake_cudnn import FakeEngine


def end(chosen, ratio):
    return {"chosen": chosen, "best": chosen, "ratio": ratio}


@pytest.fixture
def folder(tmp_path):
    row = {"seconds": {"NCHW": {"eng1": 3e-3, "direct 16x4": 2e-3}, "NHWC": {"eng2": 1e-3}}}
    row |= {"NCHW": end("NHWC", 1.2), "NHWC": end("NHWC", 1.0), "rule": "CHWN"}
    took = {"NCHW": 4e-3, "NHWC": 2e-3, "rule": 8e-3, "chosen": 1e-3}
    net = {"took": took, "layouts": {"chosen": ["NHWC", "NHWC", "NCHW"]}}
    measured = {
        "layers": {"CV1 tf32": row},
        "networks": {"LeNet tf32": net | {"over the best throughout": 0.5}},
        "rules": {"tf32": {"Ct": 16, "Nt": None, "profile": [[1, 2, 3.0, 4.0]]}},
    }
    environment = {"gpu": {"name": "a card"}, "date": "2026-11-23T00:00:00"}
    record = {"measurements": measured, "environment": environment, "notes": ["one note"]}
    (tmp_path / "layouts.json").write_text(json.dumps(record))
    return tmp_path


def test_every_layer_and_network_has_its_line(folder):
    page = layouts.figures(folder)
    assert "| CV1 tf32 | 3.000/2.000 | 1.000 | - | **NHWC, 1.20** | NHWC, 1.00 | CHWN |" in page
    line = "| LeNet tf32 | 4.000 | 2.000 | - | 8.000 | - | 1.000 | 0.50 | 2 NHWC, NCHW |"
    assert line in page
    assert "Ct 16 and no Nt in tf32" in page
    assert "- one note" in page


def test_the_picture_is_drawn_once(folder, tmp_path):
    image = tmp_path / "made" / "layouts.png"
    assert layouts.picture(check=True, image=image, folder=folder) == 1
    assert layouts.picture(check=False, image=image, folder=folder) == 0
    assert layouts.picture(check=True, image=image, folder=folder) == 0
    speeds = {"NCHW": 1.0, "NHWC": 2.0, "rule": 0.5, "chosen": 4.0}
    assert layouts.shown(layouts.record(folder)) == {"LeNet tf32": speeds}


def test_nothing_measured_is_said(tmp_path):
    assert "not measured yet" in layouts.figures(tmp_path)
    assert layouts.picture(check=True, image=tmp_path / "none.png", folder=tmp_path) == 0


def test_every_layer_has_its_gradient_in_chwn_unless_padding_would_be_negative():
    """Of a stride whose last window does not reach the end, in one of three hundred of rows."""
    missing = [name for name, layer in LAYERS.items() if as_gradient(layer.of("tf32")) is None]
    assert all("1x1/2" in name for name in missing), missing
    for name, layer in LAYERS.items():
        if name not in missing:
            gradient = as_gradient(layer.of("tf32"))
            n, k, *sizes = layer.of("tf32").output_shape
            assert gradient.output_shape == (k, n, *sizes)
            assert gradient.forward.output_shape == (layer.c_x, k, layer.window, layer.window)


def test_networks_are_those_of_the_paper():
    chains = networks("strict")
    assert list(chains) == ["LeNet", "CIFAR", "AlexNet", "ZFNet", "VGG-16"]
    assert [len(chain) for chain in chains.values()] == [6, 6, 11, 11, 21]


def test_the_engine_that_is_fastest_runs(monkeypatch, tmp_path):
    """On a device whose engines are known: each layout has all of them, rightly computed."""
    pytest.importorskip("torch")
    device = EnginesDevice([FakeEngine(100, 3e-8), FakeEngine(101, 1e-8)], monkeypatch)
    monkeypatch.setitem(devices._resolved, "host", device)
    asked = ["--quick", "--device", "host", "--precisions", "tf32", "--output", str(tmp_path)]
    assert benchmark.main(asked) == 0
    record = json.loads((tmp_path / "layouts.json").read_text())
    for row in record["measurements"]["layers"].values():
        assert set(row["seconds"]) == {"NCHW", "NHWC", "CHWN"}
        assert all({"eng100", "eng101"} <= set(by) for by in row["seconds"].values())
