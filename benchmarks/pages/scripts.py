"""What the scripts of benchmarks/ measured, beside the suite: one row for each claim."""

from __future__ import annotations

from pathlib import Path

from benchmarks import common
from benchmarks.pages.blocks import NOT_MEASURED, claims, markdown

LINK, LARGE, CORE, FUNCTIONS, CHAIN, POOL, VOLUME = (
    "convolution_link",
    "convolution_large",
    "convolution_in_core",
    "functions",
    "chain_vgg",
    "results_pool",
    "volume",
)
SHARE, TIMES = "fraction of the duplex link", "times faster than"

#: (what a row says, result file, claim, how its value is printed)
ROWS = (
    ("`x` and `y` in pinned memory, limit 16 GiB: share of the duplex link",
     LINK, f"pinned, limit 16GiB: {SHARE}", "{:.0%}"),
    ("the same, limit 1 GiB", LINK, f"pinned, limit 1GiB: {SHARE}", "{:.0%}"),
    ("the same in pageable NumPy arrays", LINK, f"pageable: {SHARE}", "{:.0%}"),
    ("pageable arrays that `pin()` has locked", LINK, f"page-locked by pin(): {SHARE}", "{:.0%}"),
    ("the driver's own copies of pageable arrays, in one after out, nothing computed",
     LINK, f"driver's pageable copies: {SHARE}", "{:.0%}"),
    ("one image of 64 x 4096 x 8192 in strict float32, on the device, against one cuDNN call",
     LARGE, f"device: {TIMES} the unsplit cuDNN call", "{:.0f} times as fast"),
    ("the same from and to pinned memory",
     LARGE, f"pinned: {TIMES} the unsplit cuDNN call", "{:.0f} times as fast"),
    ("everything small and on the device: what the host takes beside cuDNN's own call",
     CORE, "1x64x32x32 convolution_forward: host overhead", "{:.0f} us"),
    ("the same, fused with bias and ReLU", CORE, "1x64x32x32 fused: host overhead", "{:.0f} us"),
    ("64 images of 128 channels of 112 x 112 on the device, with `out=`, waiting for each call: "
     "what it takes beside cuDNN's own",
     POOL, "64x128x112x112, one by one, with out: beside cuDNN's own", "{:.0f} us"),
    ("the same without `out=`",
     POOL, "64x128x112x112, one by one, without out: beside cuDNN's own", "{:.0f} us"),
    ("the same without `out=`, without waiting",
     POOL, "64x128x112x112, back to back, without out: beside cuDNN's own", "{:.0f} us"),
    ("a volume of 32 channels of 48 x 1024 x 1024, 3 x 3 x 3, limit 512 MiB: cut along the axis "
     "that the planner chooses, against the first",
     VOLUME, "times faster along the chosen axis", "{:.1f} times as fast"),
    ("all three gradients of convolution, bias and ReLU in one call: share of the link",
     FUNCTIONS, "convolution_add_activation_backward: limit / measured", "{:.0%}"),
    ("batch normalization in training: share of the link",
     FUNCTIONS, "batch_normalization_forward_training: limit / measured", "{:.0%}"),
    ("VGG-16's feature layers as one chain from and to pinned memory, n=1024, limit 16 GiB, "
     "against PyTorch with all of it on the card, copies not counted",
     CHAIN, "n1024: times the in-core PyTorch time", "{:.2f} of its time"),
    ("the same on one image of 16384 x 16384",
     CHAIN, "16384: times the in-core PyTorch time", "{:.2f} of its time"),
    ("the same on 32768 x 32768, four times as many pixels, against our 16384 x 16384",
     CHAIN, "32768: times the 16384 time", "{:.2f} times as long"),
)  # fmt: skip


def scripts_table(folder: Path = common.RESULTS) -> str:
    """Every claim with its value; what no record has is not measured yet."""
    rows = []
    for label, name, claim, form in ROWS:
        value = claims(name, folder).get(claim)
        rows.append((label, NOT_MEASURED if value is None else form.format(value), f"`{name}`"))
    return markdown(("what", "measured", "by"), rows)
