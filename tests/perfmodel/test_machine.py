"""Machine files: written whole, read back the same, refused with the file's name and a remedy."""

import json
import os
import pickle
from dataclasses import replace

import numpy as np
import pytest

from perfmodel import (
    MachineFileError,
    MachineModel,
    Samples,
    VirtualStep,
    convolution_work,
    replay,
    shipped,
    shipped_names,
)
from perfmodel.data_sheets import SHEETS
from perfmodel.machine import FROM_DATA_SHEETS

HOST = shipped("host")
KINDS = ("tf32", "float32", "float16", "bfloat16", "float64")
SLOW = {"pinned/pinned": {"copy_in": 0.5, "copy_out": 1.0}}
LAYOUTS = ("channels_first", "channels_last")


@pytest.fixture
def fitted():
    quality = {"copy_in/pinned": {"residual": 0.01, "held_out_error": 0.02, "samples": 40}}
    samples = Samples((1e6, 2e6), (1e-3, 3e-3), {"sites": (4.0, 5.0)})
    return replace(
        HOST,
        calibrated="2025-01-31",
        quality=quality,
        samples={"copy_in/pinned": samples, "copy_out/pinned": Samples((1.0,), (2.0,))},
        facts={"pin_bytes_per_second": 2e9, "drift_share": -0.01},
    )


def test_a_saved_model_is_loaded_as_it_was(fitted, tmp_path):
    path = tmp_path / "a folder" / "machine.json"
    fitted.save(path)
    assert MachineModel.load(path) == fitted
    assert MachineModel.load(str(path)).quality["copy_in/pinned"]["samples"] == 40.0
    assert os.listdir(path.parent) == ["machine.json"]


def test_a_file_has_a_line_for_each_line(fitted, tmp_path):
    path = tmp_path / "machine.json"
    fitted.save(path)
    lines = path.read_text().splitlines()
    assert [line.strip() for line in lines if '"pageable": {' in line][:1] == [
        f'"pageable": {json.dumps(fitted.transfer.copy_in["pageable"].to_json())},'
    ]
    assert '"work": [1000000.0, 2000000.0]' in path.read_text()


def test_losses_are_kept_and_left_out_where_there_are_none(fitted):
    lossy = replace(fitted, losses={"copies": 0.25, "steps": 1.0})
    assert MachineModel.from_json(json.loads(json.dumps(lossy.to_json()))) == lossy
    assert "losses" not in replace(fitted, losses={}).to_json()
    assert MachineModel.from_json(replace(fitted, losses={}).to_json()).losses == {}


@pytest.mark.parametrize("losses", [{"copies": 1.5}, {"copies": -0.1}, {"heat": 0.1}])
def test_losses_beyond_reason_are_refused(losses):
    with pytest.raises(ValueError, match="losses"):
        replace(HOST, losses=losses)


def test_computing_loses_to_copies_and_steps_beside_it():
    lossy = replace(HOST, losses={"copies": 0.5, "steps": 1.0})
    assert lossy.lost_seconds(10.0, 4.0, 0.5) == pytest.approx(2.5)
    assert lossy.lost_seconds(1.0, 4.0, 0.5) == pytest.approx(1.5)  # at most what it computes
    assert lossy.lost_seconds(np.array([10.0, 1.0]), 4.0, 0.0).tolist() == [2.0, 1.0]
    assert replace(HOST, losses={}).lost_seconds(10.0, 4.0, 0.5) == 0.0


@pytest.mark.parametrize(("each", "longer"), [(0.03, 1.0 / 0.94), (0.2, 1.0 / 0.6), (0.7, 2.0)])
def test_beside_copies_both_ways_it_is_as_slow_as_in_a_replay(each, longer):
    """However long the copies are: what is computed loses to those beside it."""
    lost = replace(HOST, losses={"copies": each}).lost_seconds(1.0, 100.0, 0.0)
    assert 1.0 + lost == pytest.approx(longer)
    steps = [VirtualStep("copy_in", 5.0), VirtualStep("copy_out", 5.0), VirtualStep("compute", 1.0)]
    assert replay(steps, loss=each).finish[2] == pytest.approx(longer)


def test_each_further_operand_of_a_call_is_looked_at_before_its_first_step(fitted):
    looking = replace(fitted, step_seconds=1e-5, operand_seconds=2e-6, call_seconds=1e-4)
    assert MachineModel.from_json(json.loads(json.dumps(looking.to_json()))) == looking
    least = replace(looking, operand_seconds=0.0).setup_seconds(7)
    assert [looking.setup_seconds(count) - least for count in (1, 2, 3, 7)] == pytest.approx(
        [0.0, 0.0, 2e-6, 1e-5]
    )
    # they are looked at before; what follows takes as long as ever
    assert looking.issue_seconds(3, 0.0) == replace(looking, operand_seconds=0.0).issue_seconds(
        3, 0.0
    )


def test_steps_that_threads_issue_are_kept_and_left_out_where_they_were_not_measured(fitted):
    staged = replace(fitted, step_seconds=1e-5, staged_step_seconds=5e-5, call_seconds=0.0)
    assert MachineModel.from_json(json.loads(json.dumps(staged.to_json()))) == staged
    assert staged.setup_seconds() == pytest.approx(1e-5)  # the first step
    assert staged.issue_seconds(10, 1e-3) == pytest.approx(1.09e-3)
    assert staged.issue_seconds(10, 1e-3, staged=10) == pytest.approx(1.49e-3)
    unknown = replace(staged, staged_step_seconds=0.0)
    assert "staged_step_seconds" not in unknown.to_json()
    assert MachineModel.from_json(unknown.to_json()) == unknown
    assert unknown.issue_seconds(10, 1e-3, staged=10) == pytest.approx(1.09e-3)
    with pytest.raises(ValueError, match="staged_step_seconds"):
        replace(fitted, staged_step_seconds=-1.0)


def test_a_model_is_a_constant(fitted):
    assert hash(MachineModel.from_json(fitted.to_json())) == hash(fitted)
    assert pickle.loads(pickle.dumps(fitted)) == fitted


def test_a_failed_save_leaves_the_old_file(fitted, tmp_path, monkeypatch):
    path = tmp_path / "machine.json"
    HOST.save(path)

    def full(descriptor):
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        fitted.save(path)
    assert MachineModel.load(path) == HOST
    assert os.listdir(tmp_path) == ["machine.json"]


def changed(**changes):
    return json.dumps({**HOST.to_json(), **changes})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        (json.dumps(HOST.to_json())[:300], "corrupt"),
        (b"\xff\xfe\x00", "corrupt"),
        ("[" * 100_000, "corrupt"),
        ("[1, 2]", "must be a mapping"),
        ('{"name": "h200"}', "not an ooc_cudnn machine model"),
        (changed(version=5), "newer ooc_cudnn .* upgrade"),
        (changed(version=1), "older ooc_cudnn .* measured less; to replace it"),
        (changed(version=0), "version is 0"),
        (changed(version=True), "version is True"),
        (changed(samples={"line": {"work": [1, 2], "seconds": [1]}}), "seconds has 1 samples"),
        (changed(samples={"line": {"work": [1], "seconds": [0]}}), "seconds has a 0"),
        (changed(samples={"line": {"work": 1, "seconds": [1]}}), "must be a list of numbers"),
        (changed(facts={"pin": "fast"}), "pin is 'fast'"),
        (changed(facts=[1]), "facts must be a mapping"),
        (
            changed(transfer={**HOST.to_json()["transfer"], "slowdowns": {"a": {}}}),
            "Slowdown lacks",
        ),
        (changed(transfer={**HOST.to_json()["transfer"], "slowdowns": SLOW}), "at least 1.0"),
        (changed(version="1"), "version is '1'"),
        (changed(surprise=1), "unknown 'surprise'"),
        (changed(name=""), "name is an empty string"),
        (changed(calibrated="yesterday"), "calibrated is 'yesterday'"),
        (changed(identity={"gpu": 3}), "identity"),
        (changed(compute={"lines": {"pointwise": {"alpha": -1, "beta": 0}}}), "alpha is -1"),
        (changed(compute={"lines": {"pointwise": {"alpha": float("nan"), "beta": 0}}}), "nan"),
        (changed(transfer=[]), "TransferModel must be a mapping"),
        (changed(quality={"line": {"residual": "low"}}), "residual is 'low'"),
    ],
)
def test_a_file_that_cannot_be_used_says_which_and_what_to_do(content, message, tmp_path):
    path = tmp_path / "broken.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(MachineFileError, match=message) as caught:
        MachineModel.load(path)
    assert str(path) in str(caught.value)
    assert "ooc-cudnn calibrate" in str(caught.value)


def test_no_file_is_not_a_broken_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        MachineModel.load(tmp_path / "none.json")


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_profiles_know_every_line_and_their_origin(name):
    model = shipped(name)
    assert model.name == name
    assert model.calibrated == (FROM_DATA_SHEETS if name in SHEETS else "shipped")
    assert len(model.identity["note"]) > 40
    for kind in KINDS:
        for layout in LAYOUTS:
            assert f"convolution/{kind}/{layout}" in model.compute.lines
    for kind in KINDS[1:]:
        assert f"pointwise/{kind}" in model.compute.lines
    for lines in (model.transfer.copy_in, model.transfer.copy_out):
        assert set(lines) == {"pinned", "pageable", "disk"}


def test_the_h200_profile_gives_the_measured_figures():
    model = shipped("h200")
    assert set(shipped_names()) - SHEETS.keys() == {"h100", "h200", "host", "p100", "p40", "titanx"}
    alone = model.transfer.copy_seconds("copy_in", "pinned", 55.5e9, copies=1)
    assert alone == pytest.approx(1.0, rel=1e-3)
    busy = model.transfer.slowdown("pinned", "pinned").together(alone, alone)
    assert busy == pytest.approx((55.5 / 50.7, 55.4 / 50.2), rel=0.01)
    assert model.transfer.slowdown("pageable", "pageable").copy_in > 1.2
    # 3x3, channels last, TF32: 245, 418 and 441 TFLOP/s with 64, 256 and 512 channels
    for channels, rate in ((64, 245e12), (256, 418e12), (512, 441e12)):
        data = 32 * channels * 128**2 * 4
        work = convolution_work(
            "convolution/tf32/channels_last", n=32, c_x=channels, c_y=channels,
            output_sites=128**2, window_sites=9,
            x_bytes=data, w_bytes=channels**2 * 36, y_bytes=data,
        )  # fmt: skip
        assert work.flops / model.compute.seconds(work) == pytest.approx(rate, rel=0.5)


@pytest.mark.parametrize("name", ["h2000", "h20"])
def test_a_near_miss_is_met_with_a_suggestion(name):
    shipped_are = r"shipped are a10, .*h100, h200, host, .*p100"
    with pytest.raises(ValueError, match=rf"did you mean 'h200'.*{shipped_are}"):
        shipped(name)


def test_a_name_is_not_a_path():
    with pytest.raises(ValueError, match="no machine called"):
        shipped("../machines/h200")


def test_the_memory_of_the_device_is_a_whole_number_or_unknown():
    assert HOST.device_bytes is None
    known = replace(HOST, identity={"device_bytes": "1024"})
    assert known.device_bytes == 1024
    assert MachineModel.from_json(known.to_json()).device_bytes == 1024
    with pytest.raises(ValueError, match="whole number"):
        replace(HOST, identity={"device_bytes": "16GiB"})
