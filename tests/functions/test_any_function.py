"""What holds of every function: placements, files, new results, plans, threads, interruptions."""

from __future__ import annotations

import contextlib
import inspect
import threading

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.devices.host import device as host
from ooc_cudnn.devices.host.device import HostDevice
from ooc_cudnn.errors import PlanInfeasibleError, VerificationError
from ooc_cudnn.functions.call import decorator as declared
from tests.support.function_cases import PLACEMENTS, channels_last, least_limit, place, some_limits
from tests.support.sample import FUNCTIONS, NAMES, sample

pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")
pytestmark = pytest.mark.usefixtures("no_threads_left", "plans_are_kept")
CHAIN = "chain_forward"
#: Operands that a function takes in every mode, and does not read in this one.
NOT_READ = {"pooling_backward average": ("y", "x"), "activation_backward": ("y",)}


@pytest.fixture(scope="module")
def calls():
    return sample()


@pytest.fixture(scope="module")
def scaled_calls():
    return sample(alpha=2.0, beta=-0.25)


def test_every_public_function_is_here():
    """A new function must join the sample; the convolutions have tests of their own."""
    others = {
        "calibrate", "empty", "malloc", "memcpy", "pin", "placement", "plan", "profile",
        "settings", "zeros", "convolution_forward", "convolution_add_activation_forward",
    }  # fmt: skip
    public = {n for n in ooc_cudnn.__all__ if inspect.isfunction(getattr(ooc_cudnn, n))}
    assert public - others <= set(FUNCTIONS)
    assert set(FUNCTIONS) <= set(declared.FUNCTIONS) == public & set(declared.FUNCTIONS)


# Placements --------------------------------------------------------------------------------------


#: Every placement to and from, without every pair (test_call.py has those).
FROM_TO = (
    ("device", "device"), ("device", "pageable"), ("pinned", "disk"), ("pageable", "device"),
    ("disk", "pinned"),
)  # fmt: skip


@pytest.mark.parametrize(("source", "to"), FROM_TO)
@pytest.mark.parametrize("name", NAMES)
def test_placements(scaled_calls, tmp_path, name, source, to):
    """Every operand in one placement and every result in another, or the reverse in turn."""
    call = scaled_calls[name]
    arrays = {n: place(a, source, tmp_path, n) for n, a in call.arrays.items()}
    out = {n: place(call.old[n], to, tmp_path, f"out_{n}") for n in call.outs}
    arena = ooc_cudnn.devices.get_device("host").arena
    for room in (2**20, 14_000):
        for n, array in (*arrays.items(), *out.items()):
            array[...] = call.arrays[n] if n in arrays and array is arrays[n] else call.old[n]
        held = arena.array_bytes
        with ooc_cudnn.settings(memory_limit=held + room, verify=2), ooc_cudnn.profile() as p:
            found = call.run(arrays, out)
        call.check(found, f"{source} -> {to} with {room}", arrays)
        for done in p.calls:
            assert done.peak_device_bytes <= held + room
            assert (done.bytes_in, done.bytes_out) == (done.plan.bytes_in, done.plan.bytes_out)


@pytest.mark.parametrize("name", NAMES)
def test_each_operand_in_another_placement(calls, tmp_path, name):
    call = calls[name]
    for turn in range(4):
        arrays = {
            n: place(a, PLACEMENTS[(at + turn) % 4], tmp_path, n)
            for at, (n, a) in enumerate(call.arrays.items())
        }
        for room in (2**20, 14_000):
            held = ooc_cudnn.devices.get_device("host").arena.array_bytes
            for n, array in arrays.items():
                array[...] = call.arrays[n]
            with ooc_cudnn.settings(memory_limit=held + room):
                call.check(call.run(arrays, call.fresh()), f"turn {turn}, {room}", arrays)


@pytest.mark.parametrize("name", NAMES)
def test_everything_on_the_device_is_computed_where_it_lies(calls, tmp_path, name):
    call = calls[name]
    arrays = {n: place(a, "device", tmp_path, n) for n, a in call.arrays.items()}
    out = {n: place(call.old[n], "device", tmp_path, n) for n in call.outs}
    with ooc_cudnn.profile() as p:
        call.check(call.run(arrays, out), "on the device", arrays)
    if len(call.results) == len(call.outs) and name != CHAIN and not name.startswith("batch"):
        assert (p.calls[0].bytes_in, p.calls[0].bytes_out) == (0, 0)
    # Again, on other data in the same arrays.
    for n, array in arrays.items():
        array[...] = call.arrays[n]
    for n, array in out.items():
        array[...] = call.old[n]
    call.check(call.run(arrays, out), "on the device again", arrays)


@pytest.mark.parametrize("name", NAMES)
def test_a_new_result_is_placed_by_that_of_the_operands(calls, tmp_path, name):
    call = calls[name]
    if name == "add_tensor":
        pytest.skip("works in place without out")
    for where, expected in (
        ("pageable", "pageable"),
        ("disk", "pageable"),
        ("pinned", "pinned"),
        ("device", "device"),
    ):
        arrays = {n: place(a, where, tmp_path, n) for n, a in call.arrays.items()}
        found = call.run(arrays)
        call.check(found, where, arrays)
        first = next(iter(found.values()))
        assert ooc_cudnn.placement(first) == expected


@pytest.mark.parametrize("name", NAMES)
def test_a_new_result_is_in_the_order_of_the_operands(calls, name):
    call = calls[name]
    if name == "add_tensor":
        pytest.skip("works in place without out")
    for lay in (np.ascontiguousarray, channels_last):
        arrays = {n: lay(a) if a.ndim > 2 else a.copy() for n, a in call.arrays.items()}
        found = call.run(arrays)
        call.check(found, lay.__name__, arrays)
        for made in found.values():
            if made.ndim > 2:
                moved = np.moveaxis(made, 1, -1) if lay is channels_last else made
                assert moved.flags.c_contiguous
            assert made.flags.writeable


@pytest.mark.parametrize("name", NAMES)
def test_files_in_and_out(calls, tmp_path, name):
    """Results reach the file, beyond an offset and in a part of a map."""
    call = calls[name]
    arrays = {n: place(a, "disk", tmp_path, n) for n, a in call.arrays.items()}
    out, whole = {}, {}
    for n in call.outs:
        shape, dtype = call.old[n].shape, call.old[n].dtype
        path = tmp_path / f"out_{n}.bin"
        whole[n] = np.memmap(path, dtype, "w+", offset=4096, shape=(shape[0] + 2, *shape[1:]))
        whole[n][...] = 7
        out[n] = whole[n][1:-1]
        out[n][...] = call.old[n]
    with ooc_cudnn.settings(memory_limit=max(least_limit(call), 12_000)):
        call.check(call.run(arrays, out), "files", arrays)
    for n in call.outs:
        whole[n].flush()
        read = np.fromfile(tmp_path / f"out_{n}.bin", call.old[n].dtype, offset=4096)
        read = read.reshape(whole[n].shape)
        call.results[n].check(read[1:-1], n)
        assert np.all(read[0] == 7)
        assert np.all(read[-1] == 7)


@pytest.mark.parametrize("name", NAMES)
def test_read_only_operands(calls, name):
    call = calls[name]
    arrays = call.copies()
    for n, array in arrays.items():
        array.flags.writeable = n in call.changed
    for limit in some_limits(call)[::2]:
        for n in call.changed:
            arrays[n][...] = call.arrays[n]
        with ooc_cudnn.settings(memory_limit=limit):
            call.check(call.run(arrays, call.fresh()), f"limit {limit}", arrays)


@pytest.mark.parametrize("name", NAMES)
def test_out_may_not_overlap_an_operand(calls, name):
    """Unless the function works in place on it, and then rightly."""
    call = calls[name]
    for result in call.outs:
        old = call.old[result]
        for n, a in call.arrays.items():
            if n in call.changed or n in NOT_READ.get(name, ()):
                continue
            memory = np.zeros(max(old.size, a.size) + 5, old.dtype)
            if a.dtype != old.dtype:
                continue
            arrays, out = call.copies(), call.fresh()
            arrays[n] = memory[: a.size].reshape(a.shape)
            arrays[n][...] = a
            out[result] = memory[5 : 5 + old.size].reshape(old.shape)
            before = memory.copy()
            if not np.shares_memory(arrays[n], out[result]):
                continue
            with pytest.raises(ValueError, match="overlap"):
                call.run(arrays, out)
            assert np.array_equal(memory, before)


# Plans, profiles, the same call again ------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in NAMES if n != CHAIN])
def test_a_plan_needs_no_data(calls, name):
    call = calls[name]
    specs = {
        n: ooc_cudnn.TensorSpec(a.shape, str(a.dtype), "pageable") for n, a in call.arrays.items()
    }
    out = tuple(
        ooc_cudnn.TensorSpec(call.old[n].shape, str(call.old[n].dtype), "pageable")
        for n in call.outs
    )
    options = {**call.options, **specs, "out": out if len(out) > 1 else out[0]}
    for limit in some_limits(call):
        planned = ooc_cudnn.plan(call.function, memory_limit=limit, **options)
        assert isinstance(planned, ooc_cudnn.Plan)
        assert planned.function == call.function
        assert planned.device_bytes <= limit
        assert str(planned)
        arrays, fresh = call.copies(), call.fresh()
        with ooc_cudnn.settings(memory_limit=limit), ooc_cudnn.profile() as p:
            call.run(arrays, fresh)
        ran = p.calls[0].plan
        assert (ran.pieces, ran.device_bytes) == (planned.pieces, planned.device_bytes)
        assert ooc_cudnn.Plan.from_json(planned.to_json()) == planned
    with pytest.raises(PlanInfeasibleError):
        ooc_cudnn.plan(call.function, memory_limit=1, **options)


def test_a_plan_of_a_chain(calls):
    call = calls[CHAIN]
    x = ooc_cudnn.TensorSpec(call.arrays["x"].shape, "float32", "pageable")
    for limit in some_limits(call):
        planned = ooc_cudnn.plan(CHAIN, x=x, memory_limit=limit, **call.options)
        assert planned.device_bytes <= limit


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_for_another_machine(calls, name):
    call = calls[name]
    arrays = call.copies()
    options = {**call.options, **arrays}
    planned = ooc_cudnn.plan(call.function, machine="h200", memory_limit="1MiB", **options)
    assert planned.seconds > 0
    assert planned.device_bytes <= 2**20


@pytest.mark.parametrize("name", NAMES)
def test_the_limit_that_an_error_names_is_the_smallest_that_does(calls, name):
    call = calls[name]
    least = least_limit(call)
    with ooc_cudnn.settings(memory_limit=least):
        call.check(call.run(call.copies(), call.fresh()))
    for limit in (least - 1, least - 256):
        with ooc_cudnn.settings(memory_limit=limit), pytest.raises(PlanInfeasibleError):
            call.run(call.copies(), call.fresh())


@pytest.mark.parametrize("name", NAMES)
def test_a_call_is_recorded_once(calls, name):
    call = calls[name]
    with ooc_cudnn.profile() as p:
        call.run(call.copies(), call.fresh())
    (done,) = p.calls
    assert done.function == call.function
    assert done.seconds > 0
    assert done.steps


@pytest.mark.parametrize("name", NAMES)
def test_overlap_off_gives_the_same_bits(calls, name):
    call = calls[name]
    for limit in some_limits(call):
        found = []
        for overlap in (True, False):
            with ooc_cudnn.settings(memory_limit=limit, overlap=overlap):
                found.append(call.run(call.copies(), call.fresh()))
        for result in call.results:
            assert np.array_equal(found[0][result], found[1][result])


@pytest.mark.parametrize("name", NAMES)
def test_the_same_call_again(calls, name):
    """Remembered plans give the same bits, on other arrays too, and keep no old data."""
    call = calls[name]
    for limit in some_limits(call)[::2]:
        with ooc_cudnn.settings(memory_limit=limit):
            found = [call.run(call.copies(), call.fresh()) for _ in range(3)]
            for again in found[1:]:
                for result in call.results:
                    assert np.array_equal(found[0][result], again[result])


def broken(monkeypatch, name, change):
    """Let the host device spoil what it writes to a result."""
    real = HostDevice.run

    def run(self, launch, views, workspace, stream):
        real(self, launch, views, workspace, stream)
        # add_tensor calls its result "out" inside where y is an operand of its own.
        if launch.output in (name, "out"):
            change(host._array(views[launch.output]))

    monkeypatch.setattr(HostDevice, "run", run)


@pytest.mark.parametrize("which", [0, 1], ids=["plenty", "cut"])
@pytest.mark.parametrize("name", NAMES)
def test_verification_sees_a_wrong_result(calls, name, which, monkeypatch):
    """`verify` is no formality: each result that is wrong is found."""
    call = calls[name]
    limit = some_limits(call)[which]
    with ooc_cudnn.settings(memory_limit=limit, verify=30):
        call.check(call.run(call.copies(), call.fresh()))

    def change(array):
        array[...] = array * 0.5 + 1

    for result in call.outs:
        with monkeypatch.context() as patch:
            broken(patch, result, change)
            with (
                ooc_cudnn.settings(memory_limit=limit, verify=30),
                pytest.raises(VerificationError, match=f"{call.function} is wrong"),
            ):
                call.run(call.copies(), call.fresh())
    with ooc_cudnn.settings(memory_limit=limit, verify=30):
        call.check(call.run(call.copies(), call.fresh()))


@pytest.mark.parametrize("name", NAMES)
def test_verification_passes_what_is_right(scaled_calls, name):
    """Patches are random: many of them, with plenty of memory and little, with old content."""
    call = scaled_calls[name]
    for limit in some_limits(call)[::2]:
        with ooc_cudnn.settings(memory_limit=limit, verify=60):
            call.check(call.run(call.copies(), call.fresh()), f"limit {limit}")


# Interruptions, threads --------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_an_interrupted_call_leaves_operands_alone_and_the_next_works(calls, name):
    call = calls[name]
    arrays, done = call.copies(), []

    def stop(*_):
        done.append(1)
        if len(done) == 2:
            raise KeyboardInterrupt

    with ooc_cudnn.settings(memory_limit=least_limit(call)):
        with ooc_cudnn.settings(progress=stop), contextlib.suppress(KeyboardInterrupt):
            call.run(arrays, call.fresh())
        assert done
        if len(done) >= 2:
            for n, array in arrays.items():
                assert np.array_equal(array, call.arrays[n]), n
        arrays = call.copies()
        call.check(call.run(arrays, call.fresh()), "after an interruption", arrays)


def test_all_functions_at_once_from_several_threads(calls):
    found, wrong = [], []

    def work(names):
        try:
            for name in names:
                call = calls[name]
                for limit in ("1MiB", least_limit(call)):
                    with ooc_cudnn.settings(memory_limit=limit):
                        call.check(call.run(call.copies(), call.fresh()), f"limit {limit}")
                found.append(name)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(NAMES[at::3],)) for at in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert sorted(found) == sorted(NAMES)
