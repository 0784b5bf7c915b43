"""Convolution on the card: legal splits of the host tests' cases, every placement, every layout.

The references are the host tests' own (PyTorch on the CPU in float64). Each case runs out of core:
the splits are forced, or the limit is far below the data.
"""

from __future__ import annotations

import itertools
import signal
import threading
from dataclasses import replace

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.devices import get_device
from ooc_cudnn.errors import DeviceOutOfMemoryError, PlanInfeasibleError, VerificationError
from tests.functions.test_convolution import CASES, NUMPY, Case, Run
from tests.support import reference
from tests.support.forced import Forced, legal_splits
from tests.support.function_cases import channels_last

PLACEMENTS = ("device", "pinned", "pageable", "disk")
#: Every legal split of the host tests' cases is run; of the others, an even share of this many.
SPLITS = 16


def strict(chain):
    """The chain in true float32: the references' bounds are those of the dtype."""
    convolution = replace(chain.operations[0], allow_tf32=False)
    return replace(chain, operations=(convolution, *chain.operations[1:]))


def placed(array, placement, path):
    """A copy of an array in a placement, and what must stay alive for it."""
    if placement == "pageable":
        return array.copy(), None
    if placement == "disk":
        mapped = np.memmap(path, array.dtype, "w+", shape=array.shape)
        mapped[...] = array
        return mapped, None
    if placement == "pinned":
        copied = array.copy()
        return copied, ooc_cudnn.pin(copied)
    import cupy

    return cupy.asarray(array), None


def on_host(array):
    """The array's content as NumPy's."""
    return array if isinstance(array, np.ndarray) else array.get()


#: Where an engine of cuDNN 9.19 is wrong (see devices/cuda/convolutions.py), and its neighbours.
FAULTS = tuple(
    Case(f"{name}-{padding}-{dtype}", x, w, {"padding": padding, "groups": groups}, None, dtype)
    for name, x, w, groups in (
        ("depthwise", (3, 4, 5, 7), (4, 1, 3, 3), 4),
        ("one-channel", (3, 1, 5, 7), (1, 1, 3, 3), 1),
        ("grouped", (3, 4, 5, 7), (4, 2, 3, 3), 2),
    )
    for padding in (((1, 0), (2, 0)), ((0, 1), (0, 2)), ((2, 1), (1, 0)))
    for dtype in ("float16", "float32", "float64")
)


@pytest.mark.parametrize("case", [*CASES, *FAULTS], ids=str)
def test_splits(case, tmp_path):
    run = Run(case)
    arrays = run.arrays()
    pins = []
    for name in arrays:
        arrays[name], pin = placed(arrays[name], "pinned", tmp_path / name)
        pins.append(pin)
    forced = Forced(strict(run.chain), arrays, device="cuda")
    splits = list(legal_splits(run.chain))
    chosen = splits if case in CASES else splits[:: max(1, len(splits) // SPLITS)]
    for at, split in enumerate(chosen):
        depth, layout = 1 + at % 3, ("channels_first", "channels_last")[at % 2]
        arrays["y"][...] = run.old
        forced.run(split, depth=depth, whole=at % 4 < 2, layout=layout, overlap=at % 5 > 0)
        run.check(arrays["y"], f"{case.name} {split} depth={depth} {layout}")
    for pin in pins:
        pin.close()


MIXES = list(itertools.product(PLACEMENTS, PLACEMENTS, PLACEMENTS))


@pytest.mark.parametrize("order", ["channels_first", "channels_last"])
@pytest.mark.parametrize(("x", "w", "y"), MIXES, ids=lambda value: value)
def test_every_placement(x, w, y, order, tmp_path):
    case = Case("mix", (4, 8, 13, 9), (12, 8, 3, 3), {"padding": ((1, 0), 2)}, "relu")
    run = Run(case)
    data = {"x": run.x, "w": run.w, "b": run.b, "out": np.full_like(run.expected, np.nan, "f4")}
    places = {"x": x, "w": w, "b": w, "out": y}
    held = {}
    for name, place in places.items():
        held[name] = placed(data[name], place, tmp_path / name)
    arrays = {name: array for name, (array, _) in held.items()}
    if order == "channels_last":
        if x in ("pageable", "pinned"):
            arrays["x"] = channels_last(run.x)
        if y == "pageable":
            arrays["out"] = channels_last(arrays["out"])
    before = on_host(arrays["x"]).copy()
    with (
        ooc_cudnn.settings(memory_limit="12KiB", allow_tf32=False, verify=2),
        ooc_cudnn.profile() as recorded,
    ):
        returned = ooc_cudnn.convolution_add_activation_forward(
            **arrays, activation="relu", **case.geometry
        )
    assert returned is arrays["out"]
    run.check(on_host(returned), f"{x} {w} {y} {order}")
    assert np.array_equal(on_host(arrays["x"]), before)
    (call,) = recorded.calls
    assert call.peak_device_bytes == call.plan.device_bytes <= 12 * 1024
    assert call.plan.pieces > 1 or x == y == "device"
    for _, pin in held.values():
        if pin is not None:
            pin.close()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_dtypes_at_a_size_that_uses_tensor_cores(dtype, layout):
    case = Case("wide", (3, 64, 40, 56), (64, 64, 3, 3), {"padding": 1}, "relu", dtype)
    run = Run(case)
    forced_pins = []
    x, out = run.x, np.full(run.expected.shape, np.nan, NUMPY[dtype])
    if layout == "channels_last":
        x, out = channels_last(x), channels_last(out)
    for array in (x, out):
        forced_pins.append(ooc_cudnn.pin(array))
    with ooc_cudnn.settings(memory_limit="3MiB" if dtype == "float64" else "2MiB"):
        ooc_cudnn.convolution_add_activation_forward(x, run.w, run.b, out=out, **case.geometry)
    error = np.linalg.norm(out.astype("f8") - run.expected) / np.linalg.norm(run.expected)
    assert error < {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-3, "float64": 1e-13}[dtype]
    for pin in forced_pins:
        pin.close()


def test_strict_float32_is_strict():
    # so much work that tensor cores are the faster ones: a trial takes the engine that is
    run = Run(Case("strict", (1, 256, 48, 48), (256, 256, 3, 3), {"padding": 1}))
    errors = {}
    for allowed in (True, False):
        with ooc_cudnn.settings(memory_limit="6MiB", allow_tf32=allowed):
            y = ooc_cudnn.convolution_forward(run.x, run.w, padding=1)
        errors[allowed] = np.linalg.norm(y - run.expected) / np.linalg.norm(run.expected)
    assert errors[False] < 1e-6 < 1e-5 < errors[True] < 1e-3


def test_half_types_accumulate_over_c_x_in_float32():
    case = Case("sums", (1, 64, 9, 9), (8, 64, 3, 3), {"padding": 1}, None, "float16")
    run = Run(case)
    arrays = run.arrays()
    forced = Forced(run.chain, arrays, device="cuda")
    from perfmodel import Split

    errors = {}
    for c_x in (64, 16, 3, 1):
        arrays["y"][...] = np.nan
        forced.run(Split(n=1, c_y=8, c_x=c_x, h_y=9))
        errors[c_x] = np.linalg.norm(arrays["y"].astype("f8") - run.expected)
    assert max(errors.values()) < 1.1 * errors[64]


def test_deterministic_is_bitwise():
    random = np.random.default_rng(3)
    x = random.standard_normal((4, 32, 40, 40)).astype("f4")
    w = random.standard_normal((32, 32, 3, 3)).astype("f4")
    with ooc_cudnn.settings(memory_limit="600KiB", deterministic=True):
        first = ooc_cudnn.convolution_forward(x, w, padding=1)
        for _ in range(5):
            assert np.array_equal(first, ooc_cudnn.convolution_forward(x, w, padding=1))


def test_in_core_copies_nothing():
    import cupy

    run = Run(Case("core", (2, 16, 20, 20), (16, 16, 3, 3), {"padding": 1}, "relu"))
    x, w, b = (cupy.asarray(array) for array in (run.x, run.w, run.b))
    with ooc_cudnn.settings(allow_tf32=False), ooc_cudnn.profile() as recorded:
        y = ooc_cudnn.convolution_add_activation_forward(x, w, b, padding=1)
    assert ooc_cudnn.placement(y) == "device"
    run.check(y.get(), "in core")
    (call,) = recorded.calls
    assert call.plan.in_core
    assert [step.stream for step in call.steps] == ["compute"]
    assert call.bytes_in == call.bytes_out == 0


def test_the_callers_stream_is_followed():
    import cupy

    run = Run(Case("stream", (2, 16, 20, 20), (16, 16, 3, 3), {"padding": 1}))
    expected = run.expected
    for _ in range(20):
        with cupy.cuda.Stream(non_blocking=True):
            x = cupy.asarray(run.x) * 0
            cupy.copyto(x, cupy.asarray(run.x))
            with ooc_cudnn.settings(allow_tf32=False):
                y = ooc_cudnn.convolution_forward(x, cupy.asarray(run.w), padding=1)
            doubled = (y * 2).get()
        assert np.allclose(doubled, 2 * expected, atol=1e-4)


def test_strided_device_operands():
    import cupy

    run = Run(Case("strided", (4, 8, 12, 10), (8, 8, 3, 3), {"padding": 1}, "relu"))
    large = cupy.full((8, 10, 15, 21), np.nan, "f4")
    views = {
        "rows": large[:4, :8, 2:14, :10],
        "every second": large[::2, 1:9, 1:13, 1::2],
        "backwards": large[:4, 7::-1, 11::-1, 9::-1],
        "transposed": cupy.full((4, 8, 10, 12), np.nan, "f4").swapaxes(-1, -2),
    }
    for name, x in views.items():
        x[...] = cupy.asarray(run.x)
        out = cupy.full((4, 8, 12, 25), np.nan, "f4")[..., 3:13]
        for limit in ("64KiB", "1GiB"):
            out[...] = np.nan
            with ooc_cudnn.settings(allow_tf32=False, memory_limit=limit, verify=1):
                ooc_cudnn.convolution_add_activation_forward(x, run.w, run.b, padding=1, out=out)
            run.check(out.get(), f"{name} {limit}")


def test_memory_of_every_kind():
    import cupy

    with ooc_cudnn.settings(memory_limit="1MiB"):
        small, large = ooc_cudnn.zeros((100, 100)), ooc_cudnn.empty((1000, 1000), "float64")
        assert isinstance(small, cupy.ndarray)
        assert ooc_cudnn.placement(small) == "device"
        assert ooc_cudnn.placement(large) == "pinned"
        assert float(small.sum()) == 0
        raw = ooc_cudnn.malloc(1000)
        assert ooc_cudnn.placement(raw) == "device"
    x, w = np.ones((1, 64, 64, 64), "f4"), np.ones((64, 64, 3, 3), "f4")
    with ooc_cudnn.settings(memory_limit=1000), pytest.raises(PlanInfeasibleError) as caught:
        ooc_cudnn.convolution_forward(x, w)
    with ooc_cudnn.settings(memory_limit=caught.value.smallest_bytes + 50_000):
        assert (ooc_cudnn.convolution_forward(x, w)[:, :, 1, 1] == 576).all()
    pageable = np.arange(24, dtype="f4").reshape(2, 3, 4)
    with ooc_cudnn.pin(pageable.copy()) as pinned:
        device = cupy.empty((2, 3, 4), "f4")
        for to, from_ in ((device, pinned), (pinned, device), (device[::-1], pageable)):
            ooc_cudnn.memcpy(to, from_)
        assert np.array_equal(device.get(), pageable[::-1])
        back = np.zeros((4, 2, 3), "f4").transpose(1, 2, 0)
        ooc_cudnn.memcpy(back, device)
        assert np.array_equal(back, pageable[::-1])


def test_out_of_memory_on_the_card_is_an_error_that_leaves_the_library_usable():
    import cupy

    free = cupy.cuda.runtime.memGetInfo()[0]
    hog = cupy.cuda.Memory(free - 2**28)
    x, w = np.ones((64, 16, 256, 256), "f4"), np.ones((16, 16, 3, 3), "f4")
    with ooc_cudnn.settings(memory_limit="100GiB"):
        from ooc_cudnn.functions.call import call_cache, plan_chain
        from perfmodel import Split

        with pytest.MonkeyPatch.context() as patch:
            plan = plan_chain.make_plan
            patch.setattr(
                plan_chain,
                "make_plan",
                lambda r, ask: plan(r, ask, Split(n=64, c_y=16, c_x=16, h_y=254)),
            )
            with pytest.raises(DeviceOutOfMemoryError) as caught:
                ooc_cudnn.convolution_forward(x, w)
        assert caught.value.requested_bytes > 2**28
        # ... while the plan that the library makes by itself does with what is left.
        call_cache.forget_calls()
        with ooc_cudnn.settings(memory_limit="200MiB"):
            y = ooc_cudnn.convolution_forward(x, w)
    assert (y[:, :, 5, 5] == 144).all()
    del hog


def test_ctrl_c_leaves_no_thread_at_work_and_the_next_call_works():
    x, w = np.ones((64, 16, 128, 128), "f4"), np.ones((16, 16, 3, 3), "f4")
    out = np.empty((64, 16, 126, 126), "f4")
    interrupted = threading.Event()

    def interrupt(done, total):
        if done == 2 and not interrupted.is_set():
            interrupted.set()
            signal.raise_signal(signal.SIGINT)

    for pin in (False, True):
        interrupted.clear()
        pins = [ooc_cudnn.pin(x), ooc_cudnn.pin(out)] if pin else []
        with ooc_cudnn.settings(memory_limit="8MiB", progress=interrupt):
            with pytest.raises(KeyboardInterrupt):
                ooc_cudnn.convolution_forward(x, w, out=out)
            out[...] = np.nan
            ooc_cudnn.convolution_forward(x, w, out=out)
        assert (out == 144).all()
        for pinned in pins:
            pinned.close()
    streams = [t.name for t in threading.enumerate() if t.name.startswith("ooc_cudnn co")]
    assert not streams


def test_verify_finds_a_wrong_result(monkeypatch):
    device = get_device("cuda")
    run = device.convolutions.run

    def broken(operation, inputs, y, workspace, stream):
        run(operation, inputs, y, workspace, stream)
        from ooc_cudnn.devices.kernels.relayout import fill_zero

        fill_zero(y.pointer, y.size * 4, 1, y.size * 4, stream)

    monkeypatch.setattr(device.convolutions, "run", broken)
    x, w = np.ones((2, 3, 30, 30), "f4"), np.ones((4, 3, 3, 3), "f4")
    with ooc_cudnn.settings(verify=1), pytest.raises(VerificationError, match="expected 27"):
        ooc_cudnn.convolution_forward(x, w)


def test_overlap_off_is_bitwise_the_same():
    random = np.random.default_rng(4)
    x = random.standard_normal((4, 16, 40, 40)).astype("f4")
    w = random.standard_normal((16, 16, 3, 3)).astype("f4")
    with ooc_cudnn.settings(memory_limit="200KiB", allow_tf32=False):
        y = ooc_cudnn.convolution_forward(x, w)
        with ooc_cudnn.settings(overlap=False):
            assert np.array_equal(y, ooc_cudnn.convolution_forward(x, w))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_torch_tensors_come_back(dtype):
    torch = pytest.importorskip("torch")
    kind = getattr(torch, dtype)
    for where in ("cpu", "cuda"):
        x = torch.ones((2, 3, 8, 8), dtype=kind, device=where)
        w = torch.ones((4, 3, 3, 3), dtype=kind, device=where)
        y = ooc_cudnn.convolution_forward(x, w)
        assert isinstance(y, torch.Tensor)
        assert y.device.type == where
        assert y.dtype == kind
        assert bool((y == 27).all())


def test_the_reference_is_independent():
    assert reference.convolution.__module__ == "tests.support.reference"
