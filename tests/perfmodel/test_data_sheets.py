"""Profiles that are scaled by data sheets: the ratios hold, and what nobody measured says so."""

from dataclasses import replace

import numpy as np
import pytest

from perfmodel import MachineModel, convolution_work, machine_label, pass_work, shipped
from perfmodel.data_sheets import MEASURED_SHEET, SHEETS, nearest_sheet
from perfmodel.scaling import scaled_machine

GIB = 2**30
H100 = shipped("h100")
LARGE = pass_work("pointwise/float32", device_bytes=4 * GIB, elements=GIB / 2)


def convolution(key, images=64):
    data = images * 256 * 56**2 * 2
    return convolution_work(
        key, n=images, c_x=256, c_y=256, output_sites=56**2, window_sites=9,
        x_bytes=data, w_bytes=9 * 256**2 * 2, y_bytes=data,
    )  # fmt: skip


@pytest.mark.parametrize("name", SHEETS)
def test_what_memory_binds_takes_as_many_times_as_long_as_memory_is_slower(name):
    ratio = MEASURED_SHEET.memory_gb_s / SHEETS[name].memory_gb_s
    seconds = shipped(name).compute.seconds(LARGE)
    assert seconds == pytest.approx(ratio * H100.compute.seconds(LARGE), rel=0.02)


@pytest.mark.parametrize("name", SHEETS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "tf32", "float32", "float64"])
def test_a_convolution_is_between_the_ratios_of_arithmetic_and_of_memory(name, dtype):
    sheet = SHEETS[name]
    lacks = {"tf32": not sheet.tf32, "bfloat16": not sheet.has_bfloat16}
    computed = "float32" if lacks.get(dtype) else dtype
    kind = "half" if computed in ("float16", "bfloat16") else computed
    flops = getattr(MEASURED_SHEET, kind) / getattr(sheet, kind)
    memory = MEASURED_SHEET.memory_gb_s / sheet.memory_gb_s
    for way in ("", "/backward_data", "/backward_filter"):
        end = f"/channels_last{way}"
        taken = shipped(name).compute.seconds(convolution(f"convolution/{dtype}{end}"))
        known = H100.compute.seconds(convolution(f"convolution/{computed}{end}"))
        assert 0.98 * min(flops, memory, 1) <= taken / known <= 1.02 * max(flops, memory, 1)


@pytest.mark.parametrize("name", SHEETS)
def test_pinned_copies_go_by_the_link(name):
    sheet, size = SHEETS[name], 2**30
    for way in ("copy_in", "copy_out"):
        taken, known = (
            machine.transfer.copy_seconds(way, "pinned", size) for machine in (shipped(name), H100)
        )
        assert taken == pytest.approx(known * 63.0 / sheet.link_gb_s, rel=5e-3)
        assert taken <= shipped(name).transfer.copy_seconds(way, "pageable", size)


def test_a_card_that_is_better_in_all_is_never_slower():
    """By each figure the second is at least as good as the first."""
    for worse, better in (
        ("rtx3060", "rtx3090"), ("rtx3090", "rtx4090"), ("rtx4090", "rtx5090"),
        ("a100-40gb", "a100-80gb"), ("t4", "v100-16gb"), ("v100-16gb", "v100-32gb"),
    ):  # fmt: skip
        for key, line in shipped(better).compute.lines.items():
            if worse == "v100-16gb" or not key.startswith("convolution/float64"):
                work = convolution(key) if key.startswith("convolution") else LARGE
                slow = shipped(worse).compute.lines[key]
                fast = line.seconds(work.amount, work.features)
                assert fast <= 1.001 * slow.seconds(work.amount, work.features), (better, key)
        assert shipped(worse).device_bytes <= shipped(better).device_bytes


def test_a_small_cache_holds_nothing_for_a_pass():
    """A pass of 40 MiB stays in the cache of a 4090, and not in that of a 3090."""
    small = pass_work("pointwise/float32/op_tensor", device_bytes=40 * 2**20, elements=5 * 2**20)
    large, tiny = (shipped(name).compute.lines[small.key] for name in ("rtx4090", "rtx3090"))
    assert large.terms["uncached_bytes"] > 9 * tiny.terms["uncached_bytes"] / 2
    assert tiny.alpha > 1.3 * large.alpha


@pytest.mark.parametrize("name", ["t4", "v100-16gb", "v100-32gb"])
def test_what_tensor_cores_lack_is_computed_as_float32_and_said(name):
    lines = shipped(name).compute.lines
    for layout in ("channels_first", "channels_last"):
        for dtype in ("tf32", "bfloat16"):
            key = f"convolution/{dtype}/{layout}"
            assert lines[key] == lines[f"convolution/float32/{layout}"]
    fast, slow = (
        shipped(name).compute.seconds(convolution(f"convolution/{dtype}/channels_last"))
        for dtype in ("float16", "bfloat16")
    )
    assert fast < slow / 2
    assert "No tensor cores for TF32 and bfloat16" in shipped(name).identity["note"]


def test_both_directions_of_c2c_share_the_memory_of_the_host():
    link = shipped("gh200").transfer
    rates = [1e-9 / getattr(link, way)["pinned"].alpha for way in ("copy_in", "copy_out")]
    assert min(rates) > 350
    both = link.slowdown("pinned", "pinned")
    assert rates[0] / both.copy_in + rates[1] / both.copy_out <= 513
    # what goes through slabs waits for the host, whatever the link
    assert link.copy_in["pageable"] == H100.transfer.copy_in["pageable"]


def test_the_h200_scaled_from_the_h100_is_like_the_measured_one():
    sheet = replace(MEASURED_SHEET, memory_gb_s=4800.0)
    scaled, measured = scaled_machine(H100, MEASURED_SHEET, sheet), shipped("h200")
    off = {"convolution": [], "pointwise": []}
    for key in scaled.compute.lines.keys() & measured.compute.lines.keys():
        work = convolution(key) if key.startswith("convolution") else replace(LARGE, key=key)
        seconds = [
            machine.compute.lines[key].seconds(work.amount, work.features)
            for machine in (scaled, measured)
        ]
        off[key.partition("/")[0]].append(abs(np.log(seconds[0] / seconds[1])))
    assert np.median(off["convolution"]) < np.log(1.25)
    assert np.median(off["pointwise"]) < np.log(1.25)


@pytest.mark.parametrize("name", SHEETS)
def test_a_profile_from_data_sheets_is_written_and_read(name, tmp_path):
    shipped(name).save(tmp_path / "card.json")
    assert MachineModel.load(tmp_path / "card.json") == shipped(name)


def test_each_figure_has_a_source_or_is_said_to_have_none():
    for sheet in SHEETS.values():
        assert all(source.startswith("http") for source in sheet.sources)
        assert sheet.sources
        assert all(hasattr(sheet, name) for name in sheet.unverified)


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("RTX 4090", "rtx4090"), ("rtx-4090", "rtx4090"), ("4090", "rtx4090"), ("H200", "h200"),
        ("NVIDIA GeForce RTX 3060", "rtx3060"), ("A100 80GB", "a100-80gb"), ("Tesla T4", "t4"),
    ],
)  # fmt: skip
def test_other_spellings_are_understood(said, name):
    assert shipped(said) is shipped(name)


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("v100", "did you mean 'v100-16gb' or 'v100-32gb'"), ("rtx4900", "did you mean 'rtx"),
        ("a100", "'a100-40gb' or 'a100-80gb'"), ("", "shipped are a10,"), ("?", "called '\\?';"),
    ],
)  # fmt: skip
def test_what_is_near_is_suggested(said, hint):
    with pytest.raises(ValueError, match=hint):
        shipped(said)


def test_the_label_of_a_machine_says_whether_it_was_measured():
    assert machine_label("h100") == "h100"
    assert machine_label("NVIDIA H200") == "NVIDIA H200"
    assert machine_label("l4") == "l4 (not measured: from data sheets)"


@pytest.mark.parametrize(
    ("card", "memory", "capability", "name"),
    [
        ("NVIDIA GeForce RTX 4090", 23.6, 8.9, "rtx4090"), ("NVIDIA L4", 22.0, 8.9, "l4"),
        ("NVIDIA A10", 22.1, 8.6, "a10"), ("NVIDIA A10G", 22.1, 8.6, "a10"),
        ("Tesla V100-SXM2-32GB", 31.7, 7.0, "v100-32gb"), ("Tesla T4", 14.7, 7.5, "t4"),
        ("NVIDIA A100-SXM4-40GB", 39.5, 8.0, "a100-40gb"), ("NVIDIA B200", 178.0, 10.0, "b200"),
        ("NVIDIA A100 80GB PCIe", 79.2, 8.0, "a100-80gb"), ("NVIDIA H200", 140.0, 9.0, "h200"),
        ("NVIDIA H100 80GB HBM3", 79.2, 9.0, "h100"), ("NVIDIA GH200 480GB", 94.5, 9.0, "gh200"),
        ("NVIDIA GeForce RTX 3080", 9.8, 8.6, "rtx3060"), ("NVIDIA H20", 95.0, 9.0, "h100"),
        ("NVIDIA GeForce RTX 5070", 11.6, 12.0, "rtx5090"),
        ("NVIDIA GeForce RTX 4080", 15.7, 8.9, "rtx4090"), ("NVIDIA A40", 44.5, 8.6, "a10"),
        ("NVIDIA RTX A6000", 47.5, 8.6, "rtx3090"), ("Tesla P100-PCIE-16GB", 16, 6.0, "v100-16gb"),
    ],
)  # fmt: skip
def test_the_nearest_sheet_is_that_of_the_card_or_of_its_kind(card, memory, capability, name):
    assert nearest_sheet(card, int(memory * GIB), capability).name == name
