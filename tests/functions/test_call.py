"""The way of a call: placements, memory, limits, errors, interruptions, threads."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ooc_cudnn
from ooc_cudnn.devices.host import convolution as host_convolution
from ooc_cudnn.errors import DeviceOutOfMemoryError, PlanInfeasibleError
from ooc_cudnn.functions.call import call_cache as prepared_calls
from tests.support import reference
from tests.support.refusals import driver_with
from tests.support.sampling import number

pytestmark = pytest.mark.usefixtures("no_threads_left")
SHAPE, FILTERS = (3, 4, 9, 7), (6, 4, 3, 3)
OUTPUT = (3, 6, 9, 7)


class Data:
    """Operands of one small fused convolution and its result in float64."""

    def __init__(self, shape=SHAPE, filters=FILTERS, dtype="f4", seed=1):
        random = np.random.default_rng(seed)
        self.x = random.standard_normal(shape).astype(dtype)
        self.w = random.standard_normal(filters).astype(dtype)
        self.b = random.standard_normal(filters[0]).astype(dtype)
        y = reference.convolution(self.x, self.w, padding=1)
        self.expected = np.maximum(y + reference.bias(self.b, y.ndim), 0)
        self.tolerance = reference.bound(self.x, self.w, self.b, padding=1)

    def run(self, **options):
        arrays = {"x": self.x, "w": self.w, "b": self.b, **options}
        return ooc_cudnn.convolution_add_activation_forward(
            arrays.pop("x"), arrays.pop("w"), arrays.pop("b"), padding=1, **arrays
        )

    def check(self, y, where=""):
        reference.assert_close(y, self.expected, self.tolerance, where)


@pytest.fixture(scope="module")
def data():
    return Data()


def nans(shape=OUTPUT, dtype="f4"):
    return np.full(shape, np.nan, dtype)


def place(array, where, path, name):
    """The array in a placement of the test's choice."""
    if where == "pageable":
        return array.copy()
    if where == "disk":
        mapped = np.memmap(path / f"{name}.bin", array.dtype, "w+", shape=array.shape)
        mapped[...] = array
        return mapped
    limit = "1GiB" if where == "device" else 1
    with ooc_cudnn.settings(memory_limit=limit):
        made = ooc_cudnn.empty(array.shape, array.dtype)
    made[...] = array
    return made


# Placements --------------------------------------------------------------------------------------

PLACEMENTS = ("device", "pinned", "pageable", "disk")


@pytest.mark.parametrize("x_in", PLACEMENTS)
@pytest.mark.parametrize("y_in", PLACEMENTS)
def test_every_mix_of_placements(data, tmp_path, x_in, y_in):
    """All mixes of any three operands: the fourth lies where the others say, each place in turn."""
    for w_in in PLACEMENTS:
        told = PLACEMENTS.index(x_in) ^ PLACEMENTS.index(y_in) ^ PLACEMENTS.index(w_in)
        b_in = PLACEMENTS[told]
        x, w, b = (
            place(array, where, tmp_path, name)
            for name, array, where in (
                ("x", data.x, x_in),
                ("w", data.w, w_in),
                ("b", data.b, b_in),
            )
        )
        out = place(nans(), y_in, tmp_path, "y")
        assert [ooc_cudnn.placement(a) for a in (x, w, b, out)] == [x_in, w_in, b_in, y_in]
        for room in (2**20, 11_000):
            out[...] = np.nan
            held = ooc_cudnn.devices.get_device("host").arena.array_bytes
            with ooc_cudnn.settings(memory_limit=held + room, verify=2), ooc_cudnn.profile() as p:
                assert data.run(x=x, w=w, b=b, out=out) is out
            data.check(out, f"{x_in} {w_in} {b_in} -> {y_in}")
            (done,) = p.calls
            assert done.peak_device_bytes == held + done.plan.device_bytes <= held + room
            assert (done.bytes_in, done.bytes_out) == (done.plan.bytes_in, done.plan.bytes_out)
        del x, w, b, out


def test_everything_on_the_device_is_one_launch_without_copies(data, tmp_path):
    x, w, b, out = (place(a, "device", tmp_path, "") for a in (data.x, data.w, data.b, nans()))
    with ooc_cudnn.profile() as p:
        data.run(x=x, w=w, b=b, out=out)
    data.check(out)
    (done,) = p.calls
    assert [step.stream for step in done.steps] == ["compute"]
    assert (done.bytes_in, done.bytes_out) == (0, 0)
    assert done.plan.in_core


def test_result_without_out_goes_by_the_placement_of_x(data, tmp_path):
    for where, expected in (
        ("pageable", "pageable"),
        ("disk", "pageable"),
        ("pinned", "pinned"),
        ("device", "device"),
    ):
        y = data.run(x=place(data.x, where, tmp_path, "x"))
        assert ooc_cudnn.placement(y) == expected
        data.check(y, where)


def test_results_on_the_device_until_the_limit_is_full_then_pinned(data, tmp_path):
    """The same call again and again: by `empty`'s rule each time, and never above the limit."""
    x = place(data.x, "device", tmp_path, "x")
    arena = ooc_cudnn.devices.get_device("host").arena
    kept, placed = [], []
    limit = arena.array_bytes + 5 * nans().nbytes
    with ooc_cudnn.settings(memory_limit=limit):
        for _ in range(8):
            kept.append(data.run(x=x))
            placed.append(ooc_cudnn.placement(kept[-1]))
            assert arena.held_bytes <= limit
    for y in kept:
        data.check(y)
    assert placed[0] == "device"
    assert placed[-1] == "pinned"
    assert placed == sorted(placed)


def test_strided_views_of_device_memory(data, tmp_path):
    flip = (slice(None, None, -1),) * 4
    x = place(data.x[flip], "device", tmp_path, "x")[flip]
    assert ooc_cudnn.placement(x) == "device"
    large = place(nans((6, 6, 9, 14)), "device", tmp_path, "y")
    out = large[::2, :, ::-1, ::2]
    for room in (2**20, 6000):
        held = ooc_cudnn.devices.get_device("host").arena.array_bytes
        with ooc_cudnn.settings(memory_limit=held + room, verify=2):
            data.run(x=x, out=out)
        data.check(out)
        assert np.isnan(large[1::2]).all()
        assert np.isnan(large[..., 1::2]).all()
        out[...] = np.nan


def test_memmap_out_reaches_the_file(data, tmp_path):
    path = tmp_path / "y.bin"
    out = np.memmap(path, "f4", "w+", offset=4096, shape=OUTPUT)
    with ooc_cudnn.settings(memory_limit="6KiB"):
        data.run(x=place(data.x, "disk", tmp_path, "x"), out=out)
    out.flush()
    data.check(np.fromfile(path, "f4", offset=4096).reshape(OUTPUT))
    # Part of a map, and part of a part.
    whole = np.memmap(path, "f4", "w+", shape=(5, *OUTPUT[1:]))
    whole[...] = 7
    data.run(out=whole[1:][:3])
    data.check(whole[1:4])
    assert np.all(whole[0] == 7)
    assert np.all(whole[4] == 7)


def test_read_only_inputs(data):
    arrays = {name: getattr(data, name).copy() for name in "xwb"}
    for array in arrays.values():
        array.flags.writeable = False
    data.check(data.run(**arrays))


def test_bias_in_cudnns_shape(data):
    data.check(data.run(b=data.b.reshape(1, -1, 1, 1)))


@pytest.mark.parametrize("step", [2, -1])
def test_strided_bias(data, tmp_path, step):
    for where in ("pageable", "device"):
        b = place(np.repeat(data.b, 2) if step == 2 else data.b[::-1], where, tmp_path, "b")[::step]
        assert np.array_equal(b, data.b)
        for limit in ("1MiB", "6KiB"):
            with ooc_cudnn.settings(memory_limit=limit):
                data.check(data.run(b=b), where)


# PyTorch -----------------------------------------------------------------------------------------


def test_torch_in_and_out_without_copies(data):
    torch = pytest.importorskip("torch")
    x, w, b = (torch.from_numpy(a.copy()) for a in (data.x, data.w, data.b))
    for limit in ("1MiB", "6KiB"):
        with ooc_cudnn.settings(memory_limit=limit):
            y = data.run(x=x, w=w, b=b)
            assert isinstance(y, torch.Tensor)
            data.check(y.numpy(), "torch")
            # The result is ordinary memory that PyTorch may write to.
            y += 1
            out = torch.full(OUTPUT, torch.nan)
            assert data.run(x=x, w=w, b=b, out=out) is out
            data.check(out.numpy(), "out")
    assert isinstance(data.run(w=w), np.ndarray)
    assert isinstance(data.run(x=x), torch.Tensor)


def test_torch_channels_last_and_gradients(data):
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(data.x.copy()).to(memory_format=torch.channels_last)
    w = torch.from_numpy(data.w.copy()).requires_grad_()
    y = data.run(x=x, w=w)
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert not y.requires_grad
    data.check(y.numpy())


def test_torch_bfloat16():
    torch = pytest.importorskip("torch")
    data = Data()
    x, w, b = (torch.from_numpy(a).to(torch.bfloat16) for a in (data.x, data.w, data.b))
    exact = torch.relu(
        torch.nn.functional.conv2d(x.double(), w.double(), b.double(), padding=1)
    ).numpy()
    tolerance = 3 * 2.0**-8 * reference.bound(data.x, data.w, data.b, padding=1) * 2**24 / 44
    for limit in ("1MiB", "6KiB"):
        out = torch.full(OUTPUT, torch.nan, dtype=torch.bfloat16)
        with ooc_cudnn.settings(memory_limit=limit):
            y = data.run(x=x, w=w, b=b)
            data.run(x=x.to(memory_format=torch.channels_last), w=w, b=b, out=out)
        assert y.dtype == torch.bfloat16
        reference.assert_close(y.double().numpy(), exact, tolerance)
        reference.assert_close(out.double().numpy(), exact, tolerance)


def test_torch_result_shares_memory_with_numpy(data):
    torch = pytest.importorskip("torch")
    out = torch.zeros(OUTPUT)
    data.run(out=out)
    pointer = out.data_ptr()
    assert pointer == out.numpy().__array_interface__["data"][0]
    with pytest.raises(ValueError, match="overlaps x"):
        ooc_cudnn.convolution_forward(out, np.ones((6, 6, 1, 1), "f4"), out=out)


# The limit ---------------------------------------------------------------------------------------


@settings(max_examples=number(6, of=12))
@given(limit=st.integers(256, 40_000), arrays=st.integers(0, 3000), overlap=st.booleans())
def test_the_peak_is_what_the_plan_says_and_never_above_the_limit(data, limit, arrays, overlap):
    arena = ooc_cudnn.devices.get_device("host").arena
    with ooc_cudnn.settings(memory_limit="1MiB"):
        held = ooc_cudnn.malloc(arrays) if arrays else None
    out = nans()
    with ooc_cudnn.settings(memory_limit=limit, overlap=overlap), ooc_cudnn.profile() as p:
        infeasible = None
        try:
            data.run(out=out)
        except PlanInfeasibleError as error:
            infeasible = error
        if infeasible:
            least = infeasible.smallest_bytes
            assert infeasible.limit_bytes == limit < least
            assert infeasible.beside_bytes == arrays
            assert np.isnan(out).all()
            # Arrays that are held count in the limit that would do.
            with ooc_cudnn.settings(memory_limit=least):
                data.run(out=out)
            data.check(out, f"limit {least}")
        else:
            data.check(out, f"limit {limit}")
            (done,) = p.calls
            assert done.peak_device_bytes == done.plan.device_bytes + arrays <= limit
            assert arena.held_bytes <= limit
    del held


def test_a_kept_block_counts_against_a_lower_limit(data):
    """A block kept from a call under a high limit must not stay above a lower one."""
    arena = ooc_cudnn.devices.get_device("host").arena
    limit = 6000
    with ooc_cudnn.settings(memory_limit=limit), ooc_cudnn.profile() as p:
        data.run()
    with ooc_cudnn.settings(memory_limit="1MiB"):
        array = ooc_cudnn.malloc(limit - p.calls[0].plan.device_bytes)
        arena.reserve(limit, 2**20, purpose="a test")
    with ooc_cudnn.settings(memory_limit=limit):
        data.run()
        assert arena.held_bytes <= limit
    assert ooc_cudnn.placement(array) == "device"


def test_remembered_calls_respect_arrays_made_since(data):
    arena = ooc_cudnn.devices.get_device("host").arena
    for size in range(0, 20_000, 1999):
        with ooc_cudnn.settings(memory_limit=24_000):
            array = ooc_cudnn.malloc(size) if size else None
            data.check(data.run())
            assert arena.held_bytes <= 24_000
        del array


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc")
def test_anonymous_memory_stays_within_the_limit(tmp_path):
    """Disk to disk: 96 MB in, 96 MB out, a limit of 16 MiB, 60 MB more of anonymous."""
    script = """
        import sys, threading, time, numpy as np, ooc_cudnn

        def anonymous():
            for line in open("/proc/self/status"):
                if line.startswith("RssAnon"):
                    return int(line.split()[1]) * 1024

        x = np.memmap(sys.argv[1], "f4", "w+", shape=(6, 4, 1000, 1000))
        for image in range(6):
            x[image] = image + 1
        y = np.memmap(sys.argv[2], "f4", "w+", shape=x.shape)
        w = np.zeros((4, 4, 1, 3), "f4")
        w[range(4), range(4)] = 1
        ooc_cudnn.convolution_forward(x[:, :, :8], w, padding=(0, 1))
        before, most, done = anonymous(), 0, threading.Event()
        def watch():
            global most
            while not done.wait(0.002):
                most = max(most, anonymous())
        thread = threading.Thread(target=watch)
        thread.start()
        ooc_cudnn.convolution_forward(x, w, padding=(0, 1), out=y)
        done.set()
        thread.join()
        for image in range(6):
            assert (y[image, :, :, 1:-1] == 3 * (image + 1)).all()
            assert (y[image, :, :, ::999] == 2 * (image + 1)).all()
        print(most - before)
    """
    environment = {
        **os.environ,
        "OOC_CUDNN_DEVICE": "host",
        "OOC_CUDNN_MACHINE": "host",
        "OOC_CUDNN_MEMORY_LIMIT": "16MiB",
    }
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), tmp_path / "x.bin", tmp_path / "y.bin"],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) < 16 * 2**20 + 60e6


# Bad input ---------------------------------------------------------------------------------------


def ones(*shape, dtype="f4"):
    return np.ones(shape, dtype)


BAD = {
    "x of two axes": ({"x": ones(3, 4)}, ValueError, r"x must have shape .*\(3, 4\)"),
    "x of six axes": ({"x": ones(1, 4, 1, 1, 1, 1)}, ValueError, r"x .*\(1, 4, 1, 1, 1, 1\)"),
    "x a list": ({"x": [[1.0]]}, TypeError, r"x must be .*list"),
    "x None": ({"x": None}, TypeError, r"x must be .*NoneType"),
    "x empty": ({"x": np.ones((0, 4, 9, 7), "f4")}, ValueError, r"x must not be empty.*\(0, 4"),
    "x integers": ({"x": np.ones(SHAPE, int)}, TypeError, r"x.*float32.*int64"),
    "x complex": ({"x": np.ones(SHAPE, complex)}, TypeError, r"x.*complex128"),
    "x big-endian": ({"x": np.ones(SHAPE, ">f4")}, TypeError, r"x.*byte order"),
    "x objects": ({"x": np.ones(SHAPE, object)}, TypeError, r"x.*object"),
    "w of another dtype": ({"w": np.ones(FILTERS)}, TypeError, r"w must be float32.*float64"),
    "w of other channels": ({"w": ones(6, 3, 3, 3)}, ValueError, r"w .*cX.*\(6, 3, 3, 3\)"),
    "w of other axes": ({"w": ones(6, 4, 3)}, ValueError, r"w must have as many axes.*\(6, 4, 3\)"),
    "w too large": ({"w": ones(6, 4, 12, 3)}, ValueError, r"w of window \(12, 3\).*larger than x"),
    "w empty": ({"w": ones(0, 4, 3, 3)}, ValueError, r"w must not be empty"),
    "b of another length": ({"b": ones(5)}, ValueError, r"b must hold .*\(6,\).*\(5,\)"),
    "b of two axes": ({"b": ones(6, 1)}, ValueError, r"b must .*\(6, 1\)"),
    "b of another dtype": ({"b": np.ones(6)}, TypeError, r"b must be float32.*float64"),
    "b wrong of four axes": ({"b": ones(6, 1, 1, 1)}, ValueError, r"b must .*\(6, 1, 1, 1\)"),
    "padding negative": ({"padding": -1}, ValueError, r"padding must not be negative.*-1"),
    "padding of three": ({"padding": (1, 1, 1)}, ValueError, r"padding must.*\(1, 1, 1\)"),
    "padding triple": ({"padding": ((1, 1, 1), 1)}, ValueError, r"padding must"),
    "padding float": ({"padding": 1.0}, TypeError, r"padding must.*1\.0"),
    "padding text": ({"padding": "same"}, TypeError, r"padding must.*'same'"),
    "padding None": ({"padding": None}, TypeError, r"padding must.*None"),
    "padding set": ({"padding": {1, 2}}, TypeError, r"padding must"),
    "stride zero": ({"stride": 0}, ValueError, r"stride must be at least 1.*0"),
    "stride float": ({"stride": 2.0}, (TypeError, ValueError), r"stride must.*2\.0"),
    "stride True": ({"stride": True}, (TypeError, ValueError), r"stride must.*not True"),
    "stride of one axis": ({"stride": (1,)}, ValueError, r"stride must.*\(1,\)"),
    "dilation negative": ({"dilation": -2}, ValueError, r"dilation must be at least 1.*-2"),
    "groups zero": ({"groups": 0}, ValueError, r"groups must be at least 1.*0"),
    "groups that do not divide": ({"groups": 4}, ValueError, r"groups must divide.*4"),
    "groups float": ({"groups": 1.0}, (TypeError, ValueError), r"groups must.*1\.0"),
    "alpha text": ({"alpha": "1"}, TypeError, r"alpha must be a number.*'1'"),
    "alpha NaN": ({"alpha": float("nan")}, ValueError, r"alpha must be finite.*nan"),
    "alpha complex": ({"alpha": np.complex64(1)}, TypeError, r"alpha must be a number"),
    "beta infinite": ({"beta": float("inf")}, ValueError, r"beta must be finite.*inf"),
    "beta without out": ({"beta": 0.5, "out": None}, ValueError, r"beta=0\.5 needs out"),
    "activation unknown": ({"activation": "selu"}, ValueError, r"activation must be .*'selu'"),
    "activation None": ({"activation": None}, ValueError, r"activation must be one of.*None"),
    "coef without meaning": ({"coef": 1.0}, ValueError, r"coef has no meaning.*relu"),
    "coef text": ({"activation": "elu", "coef": "1"}, TypeError, r"coef must be a number.*'1'"),
    "coef infinite": ({"activation": "elu", "coef": np.inf}, ValueError, r"coef of elu.*inf"),
    "ceiling negative": ({"activation": "clipped_relu", "coef": -1}, ValueError, r"coef.*-1"),
    "out of another shape": ({"out": nans((3, 6, 9, 8))}, ValueError, r"out must .*7\).*8\)"),
    "out of another dtype": ({"out": nans(dtype="f8")}, TypeError, r"out must be float32.*float64"),
    "out a list": ({"out": [1]}, TypeError, r"out must be .*list"),
    "out read-only": ({"out": np.broadcast_to(ones(7), OUTPUT)}, ValueError, r"out is read-only"),
}  # fmt: skip


@pytest.mark.parametrize("name", ["stride", "dilation", "groups", "padding"])
def test_what_equals_a_good_argument_is_not_taken_for_it(data, name):
    """1.0 and True equal 1, and hash alike: a remembered call must not let them pass."""
    good, x, w = {"padding": 1}, data.x, data.w
    for equal in (1.0, True):
        ooc_cudnn.convolution_forward(x, w, **{**good, name: 1})
        with pytest.raises((TypeError, ValueError), match=f"{name} must.*{equal}"):
            ooc_cudnn.convolution_forward(x, w, **{**good, name: equal})


def refuse(data, case):
    """A call with wrong arguments is refused, and writes nothing."""
    wrong, kind, pattern = BAD[case]
    arguments = {"x": data.x.copy(), "w": data.w.copy(), "b": data.b.copy(), "out": nans()}
    copies = {name: array.copy() for name, array in arguments.items()}
    options = {"padding": 1, **arguments, **wrong}
    x, w, b = options.pop("x"), options.pop("w"), options.pop("b")
    with pytest.raises(kind, match=pattern) as caught:
        ooc_cudnn.convolution_add_activation_forward(x, w, b, **options)
    assert isinstance(caught.value, TypeError | ValueError)
    for name, array in arguments.items():
        assert np.array_equal(array, copies[name], equal_nan=True), (case, name)


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments(data, case):
    refuse(data, case)


def test_bad_arguments_between_good_calls(data):
    for case in BAD:
        refuse(data, case)
        data.check(data.run(), case)
        for stride, shape in ((1, (3, 6, 9, 7)), (2, (3, 6, 5, 4))):
            data.run(stride=stride, out=nans(shape))


def test_overlapping_operands(data, tmp_path):
    memory = np.zeros(4000, "f4")
    x = memory[: data.x.size].reshape(SHAPE)
    x[...] = data.x
    for first in (0, 100, data.x.size - 1):
        out = memory[first : first + nans().size].reshape(OUTPUT)
        with pytest.raises(ValueError, match="out overlaps x in memory"):
            data.run(x=x, out=out)
    assert np.array_equal(x, data.x)
    beside = memory[data.x.size : data.x.size + nans().size].reshape(OUTPUT)
    data.check(data.run(x=x, out=beside))
    # Interleaved, but no element in common.
    both = np.zeros((*OUTPUT, 2), "f4")
    both[:, :4, ..., 0] = data.x
    data.check(data.run(x=both[:, :4, ..., 0], out=both[..., 1]))
    with pytest.raises(ValueError, match="out overlaps b in memory"):
        data.run(b=both[0, :, 0, 0, 1], out=both[..., 1])
    device = place(np.zeros((3, 6, 9, 7), "f4"), "device", tmp_path, "d")
    with pytest.raises(ValueError, match="out overlaps x in memory"):
        ooc_cudnn.convolution_forward(device, ones(6, 6, 1, 1), out=device)


def test_overlap_in_a_file(data, tmp_path):
    path = tmp_path / "data.bin"
    np.zeros(4000, "f4").tofile(path)
    x = np.memmap(path, "f4", "r+", shape=SHAPE)
    x[...] = data.x
    out = np.memmap(path, "f4", "r+", offset=data.x.nbytes - 4, shape=OUTPUT)
    with pytest.raises(ValueError, match="out overlaps x in the file"):
        data.run(x=x, out=out)
    assert np.array_equal(x, data.x)
    link = tmp_path / "link.bin"
    os.link(path, link)
    with pytest.raises(ValueError, match="out overlaps x in the file"):
        data.run(x=x, out=np.memmap(link, "f4", "r+", shape=OUTPUT))
    data.check(data.run(x=x, out=np.memmap(path, "f4", "r+", offset=data.x.nbytes, shape=OUTPUT)))


def test_read_only_memmap_as_out(data, tmp_path):
    nans().tofile(tmp_path / "y.bin")
    out = np.memmap(tmp_path / "y.bin", "f4", "r", shape=OUTPUT)
    with pytest.raises(ValueError, match=r"out is read-only .*'r\+'"):
        data.run(out=out)


@pytest.mark.parametrize("limit", ["1B", 256, 500])
def test_limit_too_small_for_any_plan(data, limit):
    out = nans()
    with (
        ooc_cudnn.settings(memory_limit=limit),
        pytest.raises(PlanInfeasibleError, match=r"Set memory_limit=\d+ or more") as caught,
    ):
        data.run(out=out)
    assert np.isnan(out).all()
    # What the message says is enough, and it is the least that is.
    least = int(re.search(r"memory_limit=(\d+)", str(caught.value))[1])
    with ooc_cudnn.settings(memory_limit=least):
        data.check(data.run())
    with ooc_cudnn.settings(memory_limit=least - 1), pytest.raises(PlanInfeasibleError):
        data.run()


def test_a_limit_too_small_keeps_no_array(host_device):
    """Nor does any frame that the error has passed through: what was freed counts at once."""
    gc.disable()
    try:
        x, w = ooc_cudnn.empty((2, 3, 16, 16)), np.ones((4, 3, 3, 3), "f4")
        with pytest.raises(PlanInfeasibleError), ooc_cudnn.settings(memory_limit=1):
            ooc_cudnn.convolution_forward(x, w)
        del x
        assert host_device.arena.array_bytes == 0
    finally:
        gc.enable()


def test_very_many_pieces_are_worth_a_warning_once(monkeypatch):
    monkeypatch.setattr(prepared_calls, "MANY_PIECES", 4)
    x = np.ones((8, 2, 16, 16), np.float32)
    with ooc_cudnn.settings(memory_limit="4KiB"):
        with pytest.warns(
            UserWarning, match=r"cut into \d+ pieces by the memory limit of 4\.00 KiB"
        ):
            ooc_cudnn.activation_forward(x)
        ooc_cudnn.activation_forward(x)


def test_limit_that_is_no_number():
    for limit in ("lots", "16 potatoes", "", -1, None.__class__):
        with pytest.raises((TypeError, ValueError), match="memory_limit"):
            ooc_cudnn.settings(memory_limit=limit)


def test_cuda_where_there_is_none(data):
    pytest.importorskip("numpy")
    try:
        import cupy

        if cupy.cuda.is_available():
            pytest.skip("there is one")
    except ImportError:
        pass
    with ooc_cudnn.settings(device="cuda"), pytest.raises(ooc_cudnn.OocError) as caught:
        data.run()
    assert "pip install" in str(caught.value) or "nvidia" in str(caught.value).lower()
    data.check(data.run())


def test_full_disk_is_an_error_before_the_first_copy(data, tmp_path, monkeypatch):
    """A sparse file on a full disk would be a bus error in mid-run."""
    out = np.memmap(tmp_path / "y.bin", "f4", "w+", shape=OUTPUT)
    with monkeypatch.context() as patch:

        def full(descriptor, offset, length):
            raise OSError(28, "No space left on device")

        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(OSError, match=r"out needs .* on disk, and the disk is full") as caught:
            data.run(out=out)
    assert caught.value.filename == str(tmp_path / "y.bin")
    assert not out.any()
    data.run(out=out)
    data.check(out)


def test_really_full_disk(tmp_path):
    """On a file system of one MiB, where this process may mount one."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount")
    target = tmp_path / "small"
    target.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", target], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount: {mounted.stderr}")
    try:
        x, w = ones(8, 1, 256, 256), ones(1, 1, 1, 1)
        out = np.memmap(target / "y.bin", "f4", "w+", shape=x.shape)  # sparse: 2 MiB
        with pytest.raises(OSError, match="the disk is full") as caught:
            ooc_cudnn.convolution_forward(x, w, out=out)
        assert "2.00 MiB" in str(caught.value)
        small = np.memmap(target / "z.bin", "f4", "w+", shape=(2, 1, 256, 256))
        ooc_cudnn.convolution_forward(x[:2], w, out=small)
        assert (small == 1).all()
        del out, small
    finally:
        subprocess.run(["umount", "-l", target], check=True)


@pytest.mark.parametrize("worth", [1, 10**7], ids=["every core", "one thread"])
def test_values_that_are_not_finite(data, monkeypatch, worth):
    """Infinity and NaN come out where they belong, without warnings."""
    monkeypatch.setattr(host_convolution, "WORTH_A_WORKER_FLOPS", worth)
    x = data.x.copy()
    x[0, 0, 4, 4], x[1, 1, 2, 2], x[2, 2, 0, 0] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        expected = np.maximum(
            reference.convolution(x, data.w, padding=1) + reference.bias(data.b, 4), 0
        )
    for limit in ("1MiB", "6KiB"):
        with ooc_cudnn.settings(memory_limit=limit, verify=4):
            y = data.run(x=x)
        assert np.array_equal(np.isnan(y), np.isnan(expected))
        assert np.array_equal(np.isinf(y), np.isinf(expected))
        plain = np.isfinite(expected)
        assert np.allclose(y[plain], expected[plain], atol=1e-4)
    # Beyond what float16 holds.
    y = ooc_cudnn.convolution_forward(
        np.full((1, 4, 3, 3), 60000, "f2"), np.ones((1, 4, 1, 1), "f2")
    )
    assert np.isposinf(y).all()


# Interruptions and errors in mid-run -------------------------------------------------------------


def many_pieces(data, **options):
    with ooc_cudnn.settings(memory_limit="4KiB"):
        return data.run(**options)


@pytest.mark.parametrize("overlap", [True, False])
def test_error_from_the_progress_callable(data, overlap):
    errors = (KeyboardInterrupt, RuntimeError, SystemExit)
    for error, when in itertools.product(errors, (1, 3)):

        def progress(done, total, error=error, when=when):
            if done == when:
                raise error("stop")

        x = data.x.copy()
        with (
            ooc_cudnn.settings(progress=progress, overlap=overlap),
            pytest.raises(error, match="stop"),
        ):
            many_pieces(data, x=x)
        assert np.array_equal(x, data.x)
        data.check(many_pieces(data), f"{error} at {when}")


def test_progress_counts_every_piece(data):
    seen = []
    with ooc_cudnn.settings(progress=lambda done, total: seen.append((done, total))):
        many_pieces(data)
    total = seen[0][1]
    assert total > 4
    assert seen == [(done, total) for done in range(1, total + 1)]


@pytest.mark.parametrize("overlap", [True, False])
def test_error_in_a_stream(data, host_device, monkeypatch, overlap):
    """The third action of a stream fails: its error reaches the caller, and nothing is left."""
    for method in ("copy_in", "run", "copy_out"):
        real, calls = getattr(type(host_device), method), []

        def failing(self, *arguments, real=real, calls=calls):
            calls.append(threading.current_thread())
            if len(calls) == 3:
                raise OSError(5, "Input/output error")
            return real(self, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(type(host_device), method, failing)
            with (
                ooc_cudnn.settings(overlap=overlap),
                pytest.raises(OSError, match="Input/output error"),
            ):
                many_pieces(data)
        assert len(calls) == 3, method
        assert (calls[0] is threading.main_thread()) != overlap
        data.check(many_pieces(data), method)


@pytest.fixture
def heard_signals():
    """Ctrl-C raises KeyboardInterrupt, whatever runs the tests: in the background it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def again_and_again(data, x):
    for _ in range(100):
        many_pieces(data, x=x)


def test_a_signal_in_mid_run(data, heard_signals):
    """A real Ctrl-C while the main thread waits for the streams."""
    host = ooc_cudnn.devices.get_device("host")
    started = threading.Event()
    real = type(host).run

    def slow(self, *arguments):
        started.set()
        time.sleep(0.02)
        return real(self, *arguments)

    def interrupt():
        started.wait()
        time.sleep(0.05)
        signal.raise_signal(signal.SIGINT)

    x = data.x.copy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(host), "run", slow)
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            again_and_again(data, x)
        thread.join()
    assert np.array_equal(x, data.x)
    data.check(many_pieces(data))


def test_ctrl_c_ends_a_process_promptly():
    """A call of 200 slow pieces: few of them run once Ctrl-C was heard."""
    script = """
        import numpy as np, ooc_cudnn, signal, threading, time
        from ooc_cudnn.devices.host.device import HostDevice
        real, launches, heard = HostDevice.run, [], threading.Event()
        def handler(number, frame):
            heard.set()
            raise KeyboardInterrupt
        signal.signal(signal.SIGINT, handler)
        def slow(self, *arguments):
            launches.append(arguments)
            if len(launches) == 1:
                print("started", flush=True)
            heard.wait()
            time.sleep(0.05)
            return real(self, *arguments)
        HostDevice.run = slow
        x, w = np.ones((200, 1, 8, 8), "f4"), np.ones((1, 1, 3, 3), "f4")
        with ooc_cudnn.settings(device="host", machine="host", memory_limit="2KiB"):
            try:
                ooc_cudnn.convolution_forward(x, w)
            except KeyboardInterrupt:
                HostDevice.run = real
                assert threading.active_count() == 1, threading.enumerate()
                assert (ooc_cudnn.convolution_forward(x, w) == 9).all()
                print(len(launches))
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "started\n"
    process.send_signal(signal.SIGINT)
    launches, _ = process.communicate()
    assert 1 <= int(launches) < 100


# Out of memory of the driver ---------------------------------------------------------------------


def test_driver_out_of_memory_once_is_retried(data, host_device, monkeypatch):
    asked = driver_with(monkeypatch, host_device, 0, failures=1)
    data.check(data.run())
    assert len(asked) == 2


def test_driver_with_less_than_the_limit_is_planned_anew(data, host_device, monkeypatch):
    with ooc_cudnn.profile() as p:
        data.run()
    whole = p.calls[0].plan.device_bytes
    asked = driver_with(monkeypatch, host_device, whole * 3 // 4)
    host_device.release_caches()
    prepared_calls.forget_calls()
    with ooc_cudnn.settings(memory_limit=whole):
        data.check(data.run())
    assert asked[0] == asked[1] == whole
    assert asked[2] <= whole // 2


def test_driver_without_any_memory(data, host_device, monkeypatch):
    out = nans()
    with monkeypatch.context() as patch:
        driver_with(patch, host_device, 0)
        with pytest.raises((DeviceOutOfMemoryError, PlanInfeasibleError)) as caught:
            data.run(out=out)
    assert isinstance(caught.value, ooc_cudnn.OocError)
    assert np.isnan(out).all()
    data.check(data.run(out=out))


# Threads, remembered calls -----------------------------------------------------------------------


def test_two_threads_at_once():
    sets = [Data(seed=seed, shape=(2 + seed, 4, 9, 7)) for seed in range(4)]
    errors, start = [], threading.Barrier(4)

    def work(data, limit):
        try:
            start.wait()
            for _ in range(15):
                with ooc_cudnn.settings(memory_limit=limit), ooc_cudnn.profile() as p:
                    data.check(data.run())
                assert len(p.calls) == 1
                assert p.calls[0].peak_device_bytes <= limit
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=work, args=(data, limit))
        for data, limit in zip(sets, (2**20, 4096, 8192, 2**20), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def test_arrays_made_by_another_thread_in_mid_run(data):
    """Making an array may drop the kept block, but not under a call that works in it."""
    stop = threading.Event()

    def churn():
        while not stop.is_set():
            with ooc_cudnn.settings(memory_limit=9000):
                ooc_cudnn.empty((500,))[...] = np.nan

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(30):
            with (
                ooc_cudnn.settings(memory_limit=9000),
                contextlib.suppress(PlanInfeasibleError),
            ):
                data.check(data.run())
    finally:
        stop.set()
        thread.join()


def test_a_remembered_call_is_the_same_call(data):
    with ooc_cudnn.profile() as p:
        first, second = data.run(), data.run()
    assert p.calls[0].plan is p.calls[1].plan
    assert np.array_equal(first, second)
    # Everything that shapes the result is part of what is remembered.
    assert not np.array_equal(data.run(alpha=2), first)
    assert not np.array_equal(data.run(activation="tanh"), first)
    assert np.array_equal(data.run(w=data.w + 1), data.run(w=data.w + 1))
    with ooc_cudnn.settings(memory_limit="6KiB"), ooc_cudnn.profile() as p:
        data.run()
    assert p.calls[0].plan.pieces > 1


def test_more_calls_than_are_remembered(monkeypatch):
    monkeypatch.setattr(prepared_calls, "REMEMBERED_CALLS", 3)
    w = ones(1, 1, 1, 1)
    for rows in (*range(1, 8), *range(7, 0, -1)):
        assert (ooc_cudnn.convolution_forward(ones(1, 1, rows, 2), w) == 1).all()
    assert len(prepared_calls._prepared) <= 3


# Overlap, profile --------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["1MiB", "8KiB", "4KiB"])
def test_overlap_off_is_the_same_steps_and_the_same_bits(data, limit):
    results, steps = [], []
    for overlap in (True, False):
        with (
            ooc_cudnn.settings(memory_limit=limit, overlap=overlap),
            ooc_cudnn.profile() as p,
        ):
            results.append(data.run())
        (done,) = p.calls
        steps.append([(s.stream, s.piece, s.operands, s.host_bytes) for s in done.steps])
        if not overlap:
            ends = [s.stop_seconds for s in done.steps]
            starts = [s.start_seconds for s in done.steps]
            assert all(stop <= start for stop, start in zip(ends, starts[1:], strict=False))
    assert np.array_equal(*results)
    if steps[0] != steps[1]:
        # The planner may choose another split where copies and computation do not overlap.
        assert {s[1] for s in steps[0]} != {s[1] for s in steps[1]} or limit == "1MiB"


def test_out_that_repeats_an_element_is_refused():
    x, w = np.ones((1, 1, 4, 4), "f4"), np.ones((2, 1, 3, 3), "f4")
    out = np.lib.stride_tricks.as_strided(np.zeros(4, "f4"), (1, 2, 2, 2), (16, 0, 8, 4))
    with pytest.raises(ValueError, match="out is a broadcast view"):
        ooc_cudnn.convolution_forward(x, w, out=out)


@pytest.mark.parametrize("groups", [(2,), 2.0, True, "2", None])
def test_groups_must_be_an_int(groups):
    x, w = np.ones((1, 4, 4, 4), "f4"), np.ones((2, 2, 3, 3), "f4")
    with pytest.raises(TypeError, match="groups must be an int"):
        ooc_cudnn.convolution_forward(x, w, groups=groups)


def test_a_repeated_call_in_core_computes_anew_and_follows_its_arrays():
    x, w, b = (ooc_cudnn.zeros(shape) for shape in ((1, 2, 4, 4), (3, 2, 1, 1), (3,)))
    outs = [ooc_cudnn.zeros((1, 3, 4, 4)) for _ in range(2)]
    w[...], b[...] = 1, 0.5
    for value in range(1, 6):
        x[...] = value
        out = outs[value // 3]  # twice the first, then the second
        out[...] = np.nan
        assert ooc_cudnn.convolution_add_activation_forward(x, w, b, out=out) is out
        assert (np.asarray(out) == 2 * value + 0.5).all()
    other = ooc_cudnn.zeros((1, 2, 4, 4))
    ooc_cudnn.convolution_add_activation_forward(other, w, b, out=out)
    assert (np.asarray(out) == 0.5).all()
    with pytest.raises(ValueError, match="overlaps"):
        ooc_cudnn.convolution_forward(x, ooc_cudnn.zeros((2, 2, 1, 1)), out=x)
    seen = []
    with ooc_cudnn.settings(progress=lambda done, total: seen.append((done, total))):
        ooc_cudnn.convolution_add_activation_forward(x, w, b, out=out)
    assert seen[-1] == (1, 1)
    assert (np.asarray(out) == 10.5).all()
