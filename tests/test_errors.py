"""Errors: their fields, what their messages say, and that they survive pickling."""

from __future__ import annotations

import copy
import pickle

import pytest

from ooc_cudnn.errors import (
    CudnnError,
    DeviceOutOfMemoryError,
    DeviceUnavailableError,
    HostOutOfMemoryError,
    InternalError,
    OocError,
    PlanInfeasibleError,
    SolverError,
    VerificationError,
)

GIB = 2**30

MEMORY = {
    "requested_bytes": 3 * GIB,
    "available_bytes": 2 * GIB,
    "limit_bytes": 4 * GIB,
    "held_bytes": 2 * GIB,
    "purpose": "a ring buffer",
}
WRONG = {
    "function": "convolution_forward",
    "region": ((0, 1), (8, 16)),
    "expected": 1.25,
    "actual": -3.5,
    "error": 4.75,
    "tolerance": 1e-3,
}
PLAN = {"function": "convolution_forward", "limit_bytes": GIB, "smallest_bytes": 2 * GIB + 1}

EVERY_ERROR: list[tuple[OocError, type[Exception], dict[str, object]]] = [
    (OocError("something"), Exception, {}),
    (PlanInfeasibleError(**PLAN), ValueError, PLAN),  # type: ignore[arg-type]
    (DeviceOutOfMemoryError(**MEMORY), MemoryError, MEMORY),  # type: ignore[arg-type]
    (HostOutOfMemoryError(**MEMORY), MemoryError, MEMORY),  # type: ignore[arg-type]
    (VerificationError(**WRONG), ArithmeticError, WRONG),  # type: ignore[arg-type]
    (
        DeviceUnavailableError("no driver", remedy="Install one."),
        RuntimeError,
        {"reason": "no driver", "remedy": "Install one."},
    ),
    (CudnnError("status 9", remedy="Go on."), RuntimeError, {"remedy": "Go on."}),
    (SolverError("HiGHS failed", remedy="Go on."), RuntimeError, {"reason": "HiGHS failed"}),
    (InternalError("x is not y"), RuntimeError, {"reason": "x is not y"}),
]
case = pytest.mark.parametrize(
    ("error", "builtin", "expected_fields"), EVERY_ERROR, ids=lambda each: type(each).__name__
)


@case
def test_caught_as_root_and_as_builtin(
    error: OocError, builtin: type[Exception], expected_fields: dict[str, object]
) -> None:
    assert isinstance(error, OocError)
    assert isinstance(error, builtin)
    assert {name: getattr(error, name) for name in expected_fields} == expected_fields


@case
def test_pickle_and_copy_keep_everything(
    error: OocError, builtin: type[Exception], expected_fields: dict[str, object]
) -> None:
    error.add_note("in the third call")
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(error, protocol))
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)
        assert again.__notes__ == error.__notes__
    assert vars(copy.copy(error)) == vars(error)


def test_plan_infeasible_advises_the_exact_limit() -> None:
    # 2 GiB + 1 byte prints as 2.00 GiB; a user who set that would meet the error again.
    message = str(PlanInfeasibleError(**PLAN))  # type: ignore[arg-type]
    assert "convolution_forward" in message
    assert "1.00 GiB" in message
    assert message.endswith(f"2.00 GiB. Set memory_limit={2 * GIB + 1} or more.")


def test_plan_infeasible_says_what_else_is_on_the_device() -> None:
    # The phase that is named may take little: it was arrays and gradients that took the memory.
    message = str(PlanInfeasibleError(**PLAN, beside_bytes=GIB))  # type: ignore[arg-type]
    assert "would do is 2.00 GiB, 1.00 GiB of it for what else is on the device. Set" in message


@pytest.mark.parametrize(
    ("kind", "setting", "memory"),
    [
        (DeviceOutOfMemoryError, "memory_limit", "device memory"),
        (HostOutOfMemoryError, "host_memory_limit", "pinned host memory"),
    ],
)
def test_out_of_memory_advises_by_what_binds(
    kind: type[DeviceOutOfMemoryError | HostOutOfMemoryError], setting: str, memory: str
) -> None:
    by_limit = str(kind(**MEMORY))  # type: ignore[arg-type]
    assert f"3.00 GiB of {memory} for a ring buffer" in by_limit
    assert "2.00 GiB available (limit 4.00 GiB, ooc_cudnn holds 2.00 GiB)" in by_limit
    assert f" {setting}={5 * GIB} or more" in by_limit

    for limit_bytes in (5 * GIB, None):  # the limit has room, the machine has not
        by_machine = str(kind(**{**MEMORY, "limit_bytes": limit_bytes}))  # type: ignore[arg-type]
        assert "other programs" in by_machine
        assert by_machine.endswith(f"set {setting}={4 * GIB} or less.")
    assert "no limit set" in by_machine


def test_verification_says_where_and_how_far() -> None:
    message = str(VerificationError(**WRONG))  # type: ignore[arg-type]
    for part in ("((0, 1), (8, 16))", "expected 1.25", "got -3.5", "4.75", "0.001", "doctor"):
        assert part in message


def test_reason_and_remedy_are_two_sentences() -> None:
    remedy = "Run `x`."
    assert str(DeviceUnavailableError("no GPU", remedy=remedy)) == "no GPU. Run `x`."
    assert str(DeviceUnavailableError("no GPU.", remedy=remedy)) == "no GPU. Run `x`."
    assert str(CudnnError("status 3")).endswith(CudnnError("status 3").remedy)
    assert "ooc-cudnn doctor" in CudnnError("status 3").remedy
