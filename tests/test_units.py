"""Sizes and durations: every suffix, the border between bytes and fractions, round trips."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_cudnn.units import (
    format_bytes,
    format_seconds,
    parse_bytes,
    parse_limit,
    resolve_limit,
)

BYTES_PER_SUFFIX = {
    "": 1,
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "PB": 10**15,
    "KiB": 1024,
    "MiB": 1048576,
    "GiB": 1073741824,
    "TiB": 1099511627776,
    "PiB": 1125899906842624,
}


def of_total(value: object, total: int) -> int:
    """Bytes of a limit, given what a fraction is a fraction of."""
    return resolve_limit(parse_limit(value), total)


@pytest.mark.parametrize(("suffix", "expected_bytes"), BYTES_PER_SUFFIX.items())
def test_every_suffix(suffix: str, expected_bytes: int) -> None:
    for spelled in (suffix, suffix.lower(), suffix.upper()):
        assert parse_bytes(f"1{spelled}") == expected_bytes
        assert parse_bytes(f"  3 {spelled} ") == 3 * expected_bytes
        assert type(parse_bytes(f"1{spelled}")) is int
    if suffix not in ("", "B"):
        assert parse_bytes(f"0.5{suffix}") == expected_bytes // 2  # with a unit: no fraction
        assert of_total(f"2.50 {suffix}", 7) == expected_bytes * 5 // 2


@pytest.mark.parametrize(
    ("value", "expected_bytes"),
    [
        (1, 1),
        ("1", 1),
        ("123", 123),
        (2**70, 2**70),
        (2.0, 2),
        (1e9, 10**9),
        ("1e9", 10**9),
        ("1.5 GB", 1_500_000_000),
        ("+2KiB", 2048),
        (".5kB", 500),
        ("1.9B", 1),
        ("0.3001kB", 300),
        (np.int32(5), 5),
        (np.uint64(2**63), 2**63),
        (np.float32(4096), 4096),
        (np.float64(2**53), 2**53),
    ],
)
def test_bytes(value: object, expected_bytes: int) -> None:
    for result in (parse_bytes(value), of_total(value, 1000)):
        assert result == expected_bytes
        assert type(result) is int


@pytest.mark.parametrize(
    ("value", "expected_bytes"),
    [
        (0.5, 500),
        ("0.5", 500),
        ("50%", 500),
        ("50 %", 500),
        ("12.5%", 125),
        (1.0, 1000),
        ("1.0", 1000),
        ("100%", 1000),
        ("1%", 10),
        (0.7, 700),
        (np.float32(0.7), 700),
        (1 / 3, 333),
        (Fraction(1, 3), 333),
    ],
)
def test_fractions_of_a_total(value: object, expected_bytes: int) -> None:
    assert of_total(value, 1000) == expected_bytes
    with pytest.raises(ValueError, match=r"total that is not known"):
        parse_bytes(value)


@pytest.mark.parametrize("value", [True, False, np.True_, None, b"1", [1], 1j, Decimal(1)])
def test_wrong_types(value: object) -> None:
    with pytest.raises(TypeError, match=r"^budget=.*; give a whole number of bytes") as caught:
        parse_bytes(value, name="budget")
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        *(0, -1, 0.0, -0.5, 1.5, 1e-400, math.nan, math.inf, -math.inf, np.float32("nan")),
        *("", " ", "lots", "nan", "inf", "-1", "-1GiB", "0", "0GiB", "0%", "101%", "1.5"),
        *("GiB", "1 XB", "1 GiBs", "1,000", "1_000", "0x10", "1 2", "1GiB 2", "1%%", "1..5GB"),
        *("0.3 B", "1e-5 kB", "1e999999999", "1e999999999GiB", "1" * 5000, "\u0661GiB"),
        *("64k", "16G", "16g", "1M", "1T", "1P"),
    ],
)
def test_wrong_values(value: object) -> None:
    for parse in (parse_bytes, parse_limit):
        with pytest.raises(ValueError, match=r"^budget=.*; give a whole number") as caught:
            parse(value, name="budget")
        message = str(caught.value)
        assert repr(value) in message
        assert "'16GiB'" in message
        assert ("'50%'" in message) == (parse is parse_limit)


def test_bare_letters_name_both_readings() -> None:
    with pytest.raises(ValueError, match="'kB' counts in 1000s and 'KiB' in 1024s"):
        parse_bytes("64k")


def test_fraction_of_next_to_nothing() -> None:
    assert of_total("1%", 99) == 0
    assert of_total("1%", 100) == 1


def test_limit_keeps_fractions() -> None:
    for value, expected in [("1GiB", 2**30), (7, 7), ("7", 7), ("25%", 0.25), ("1.0", 1.0)]:
        result = parse_limit(value)
        assert result == expected
        assert type(result) is type(expected)
    assert type(parse_limit(np.float32(0.5))) is float
    assert type(parse_limit(np.int64(5))) is int


def test_resolve_limit() -> None:
    assert resolve_limit(None, 10**10) == 9 * 10**9
    assert resolve_limit(0.7, 10) == 7  # 0.7 * 10 in floats is 7, 0.07 * 100 is 7.000000000000001
    assert resolve_limit(0.29, 100) == 29  # 0.29 * 100 in floats is 28.999999999999996
    assert resolve_limit(1.0, 2**60 + 1) == 2**60 + 1
    assert resolve_limit(5 * 2**30, 2**30) == 5 * 2**30
    assert resolve_limit(1, 2**30) == 1
    assert resolve_limit(0.5, 0) == 0


@given(st.integers(1, 2**80), st.sampled_from(sorted(BYTES_PER_SUFFIX)))
def test_whole_sizes_are_exact(count: int, suffix: str) -> None:
    assert parse_bytes(f"{count}{suffix}") == count * BYTES_PER_SUFFIX[suffix]
    assert parse_bytes(count) == count


@given(st.floats(0, 1, exclude_min=True), st.integers(1, 2**50))
def test_fraction_reads_the_same_as_number_and_text(fraction: float, total: int) -> None:
    expected = math.floor(Fraction(str(fraction)) * total)
    limit = parse_limit(fraction)
    assert limit == fraction
    assert resolve_limit(limit, total) == expected <= total


@given(st.integers(1, 2**69))
def test_format_bytes_round_trip(size_bytes: int) -> None:
    text = format_bytes(size_bytes)
    unit_bytes = BYTES_PER_SUFFIX[text.split()[1]]
    assert abs(parse_bytes(text) - size_bytes) <= unit_bytes / 200 + 1
    assert len(text) <= 14
    if text.split()[1] not in ("B", "PiB"):
        assert 1 <= float(text.split()[0]) < 1024


@pytest.mark.parametrize(
    ("size_bytes", "expected"),
    [
        (0, "0 B"),
        (0.25, "0.25 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536 * 2**20, "1.50 GiB"),
        (2**20 - 1, "1.00 MiB"),
        (2**60, "1024.00 PiB"),
        (2**30 + 0.5, "1.00 GiB"),
        (np.int64(2**40), "1.00 TiB"),
        (np.float64(2**40), "1.00 TiB"),
        (np.float32(0.5), "0.5 B"),
        (10**400, "8.88e+384 PiB"),
        (1e300, "8.88e+284 PiB"),
        (math.inf, "inf B"),
        (math.nan, "nan B"),
        (-(2**30), "-1.00 GiB"),
    ],
)
def test_format_bytes(size_bytes: float, expected: str) -> None:
    assert format_bytes(size_bytes) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0 s"),
        (1e-12, "0.00100 ns"),
        (1.5e-9, "1.50 ns"),
        (4.2e-5, "42.0 us"),
        (0.0123, "12.3 ms"),
        (0.123, "123 ms"),
        (0.9994e-3, "999 us"),
        (0.9996e-3, "1.00 ms"),
        (9.996, "10.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 00 min"),
        (7380, "2 h 03 min"),
        (86370, "1 d 00 h"),
        (200000, "2 d 08 h"),
        (1e12, "1.16e+07 d"),
        (10**400, "inf s"),
        (np.float32(0.5), "500 ms"),
        (math.inf, "inf s"),
        (math.nan, "nan s"),
        (-0.5, "-500 ms"),
    ],
)
def test_format_seconds(seconds: float, expected: str) -> None:
    assert format_seconds(seconds) == expected


def test_format_bytes_beyond_the_digits_that_python_writes() -> None:
    assert format_bytes(10**5000) == "8.88e+4984 PiB"


@given(st.floats(0) | st.integers(0))
def test_formats_are_total(number: float) -> None:
    assert format_bytes(number).split()[-1] in ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    assert format_seconds(number).split()[-1] in ("ns", "us", "ms", "s", "min", "h", "d")


@given(st.floats(1e-9, 59.9))
def test_format_seconds_is_within_half_a_digit(seconds: float) -> None:
    number, unit = format_seconds(seconds).split()
    scale = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}[unit]
    assert float(number) * scale == pytest.approx(seconds, rel=0.00501)
