"""Sizes and durations: read from what users write, printed for people.

A number says by its form what it means, in Python and in the environment alike:

=========================  =====================================================
``4096``, ``"4096"``       an integer: bytes (``1`` is one byte)
``0.5``, ``"0.5"``         a decimal number in (0, 1]: a fraction of a total
                           (``1.0`` is all of it)
``"50%"``                  the same fraction
``1e9``, ``"1e9"``         a decimal number above 1: bytes; it must be whole
``"16GiB"``, ``"1.5 GB"``  a size with its unit: ``kB`` is 1000 bytes, ``KiB`` 1024
=========================  =====================================================

A bare ``"16G"`` is refused: some programs mean 10**9 by it and others 2**30, and a memory limit
must not be 7 % off by a guess.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from fractions import Fraction
from numbers import Integral, Real
from typing import Final

_BYTES_PER_UNIT: Final = {
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgtp", start=1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgtp", start=1)},
}
_BINARY_UNITS: Final = ("KiB", "MiB", "GiB", "TiB", "PiB")
_SIZE_FORMS: Final = (
    "a whole number of bytes (4096) or a number with a unit "
    "('16GiB', '1.5 GB'; B, kB, MB, GB, TB, PB, KiB, MiB, GiB, TiB, PiB)"
)
_FRACTION_FORMS: Final = "a fraction above 0 and at most 1 (0.5, '0.5', '50%')"
# Exponents have two digits at most: '1e999999999' must not become a number of that many digits.
_QUANTITY: Final = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]{1,2})?)\s*(?P<unit>[a-z]+|%)?",
    re.IGNORECASE | re.ASCII,
)
_LONGEST_TEXT: Final = 64

DEFAULT_LIMIT_FRACTION: Final = 0.9
"""The share of the free device memory that the library takes when no limit is set."""

MOST_BYTES: Final = 2**60
"""No memory has as many. A limit above it (2**63, for none) counts as this: plans count in 64 bits,
and sums and differences of so much fit those."""


def parse_bytes(value: object, *, name: str = "value") -> int:
    """Read a size in bytes.

    Parameters
    ----------
    value : int, float or str
        One of the forms in this module's table, but no fraction: ``1.0`` is none of bytes. NumPy's
        numbers count as Python's.
    name : str
        What the error calls the value.

    Returns
    -------
    int
        Bytes, at least 1. What is not a whole number of bytes ("0.3 kB") is rounded down, because
        sizes are mostly limits.

    Raises
    ------
    TypeError
        If `value` is neither a number nor a string; a ``bool`` is not a number here.
    ValueError
        If it is not one of the accepted forms, not finite, or less than one byte.

    Examples
    --------
    >>> parse_bytes("1TiB"), parse_bytes("1.5 GB"), parse_bytes(1)
    (1099511627776, 1500000000, 1)
    >>> parse_bytes("16G", name="memory_limit")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: memory_limit='16G' is ambiguous: 'GB' counts in 1000s and 'GiB' in 1024s; give ...
    """
    return int(_quantity(value, name, fractions_allowed=False))


def parse_limit(value: object, *, name: str = "limit") -> int | float:
    """Read a memory limit whose total is not known yet; raises as `parse_bytes`.

    An ``int`` that is returned is bytes; a ``float`` is a fraction in (0, 1], for `resolve_limit`.

    >>> parse_limit("2 KiB"), parse_limit("50%"), parse_limit(1), parse_limit(1.0)
    (2048, 0.5, 1, 1.0)
    """
    quantity = _quantity(value, name, fractions_allowed=True)
    return quantity if isinstance(quantity, int) else float(quantity)


def resolve_limit(limit: float | None, free_bytes: int) -> int:
    """Turn what `parse_limit` returned into bytes, rounded down; None is 90 % of `free_bytes`.

    `free_bytes` is what the device could give the library: what is free, and what the library holds
    already. A limit in bytes stays as it is, even above that: it is what the user allows, and
    whether the device can give it shows when it is asked.

    >>> resolve_limit(None, 1000), resolve_limit(0.7, 10), resolve_limit(4096, 1000)
    (900, 7, 4096)
    """
    if isinstance(limit, int):
        return limit
    fraction = DEFAULT_LIMIT_FRACTION if limit is None else limit
    return math.floor(Fraction(str(fraction)) * free_bytes)


def format_bytes(size_bytes: float) -> str:
    """Write a size for a person, in binary units with two decimals; `parse_bytes` reads it back.

    Nothing raises here, since error messages are made of it: an integer of any length, a fraction
    of a byte, a negative difference and infinity are written too.

    >>> format_bytes(512), format_bytes(3 * 2**29), format_bytes(2**20 - 1)
    ('512 B', '1.50 GiB', '1.00 MiB')
    """
    if size_bytes < 0:
        return "-" + format_bytes(-size_bytes)
    if not isinstance(size_bytes, Integral):
        if not math.isfinite(size_bytes):
            return f"{size_bytes} B"
        if size_bytes < 1024 and not float(size_bytes).is_integer():
            return f"{size_bytes:.3g} B"
    whole_bytes = int(size_bytes)
    if whole_bytes < 1024:
        return f"{whole_bytes} B"
    for power, unit in enumerate(_BINARY_UNITS, start=1):
        # Integers throughout: exact beyond 2**53, and 1023.999 KiB rounds into the next unit.
        bytes_per_unit = 1024**power
        hundredths = (200 * whole_bytes + bytes_per_unit) // (2 * bytes_per_unit)
        if hundredths < 1024 * 100 or (unit == _BINARY_UNITS[-1] and hundredths < 10**9):
            return f"{hundredths // 100}.{hundredths % 100:02d} {unit}"
    # Ten million PiB and more; Decimal, since Python writes no integer beyond 4300 digits.
    return f"{Decimal(whole_bytes) / 1024**5:.2e} PiB"


def format_seconds(seconds: float) -> str:
    """Write a duration for a person, with three significant digits or two units; never raises.

    >>> format_seconds(0.0123), format_seconds(0.9999), format_seconds(75), format_seconds(7380)
    ('12.3 ms', '1.00 s', '1 min 15 s', '2 h 03 min')
    """
    if seconds < 0:
        return "-" + format_seconds(-seconds)
    try:
        seconds = float(seconds)
    except OverflowError:  # an integer beyond the floats
        seconds = math.inf
    if seconds == 0 or not math.isfinite(seconds):
        return f"{seconds:.0f} s"
    for unit, units_per_second in (("ns", 1e9), ("us", 1e6), ("ms", 1e3), ("s", 1.0)):
        digits = f"{seconds * units_per_second:#.3g}"
        if float(digits) < (60 if unit == "s" else 1000):
            return f"{digits.rstrip('.')} {unit}"
    for large, small, seconds_per_small, smalls_per_large, below in (
        ("min", "s", 1, 60, 60),
        ("h", "min", 60, 60, 24),
        ("d", "h", 3600, 24, 1000),
    ):
        larges, smalls = divmod(round(seconds / seconds_per_small), smalls_per_large)
        if larges < below:
            return f"{larges} {large} {smalls:02d} {small}"
    return f"{seconds / 86400:.3g} d"


def _quantity(value: object, name: str, *, fractions_allowed: bool) -> int | Fraction:
    """Bytes as an ``int``, or a fraction in (0, 1] as a ``Fraction``."""
    forms = f"{_SIZE_FORMS} or {_FRACTION_FORMS}" if fractions_allowed else _SIZE_FORMS

    def refused(reason: str) -> ValueError:
        return ValueError(f"{name}={value!r} {reason}; give {forms}")

    # `whole` remembers how the number was written: 1 is one byte, 1.0 is all of the total.
    unit, whole = "", False
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value.strip())
        if match is None or len(value) > _LONGEST_TEXT:
            raise refused("is not a size")
        digits, unit = match["number"], (match["unit"] or "").lower()
        number, whole = Fraction(digits), digits.lstrip("+-").isdigit()
    elif isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}; give {forms}")
    elif isinstance(value, Integral):
        number, whole = Fraction(int(value)), True
    elif math.isfinite(value):
        # Through the shortest decimal form: 0.7 of 10 bytes is 7, not 6.999 rounded down.
        number = Fraction(str(value))
    else:
        raise refused("is not finite")

    if number <= 0:
        raise refused("is not positive")
    if unit in _BYTES_PER_UNIT:
        number = Fraction(math.floor(number * _BYTES_PER_UNIT[unit]))
        if number < 1:
            raise refused("is less than one byte")
        return int(number)
    if unit == "%":
        number, whole = number / 100, False
        if number > 1:
            raise refused("is more than all there is")
    elif unit and unit + "b" in _BYTES_PER_UNIT:
        prefix = "k" if unit == "k" else unit.upper()
        raise refused(f"is ambiguous: '{prefix}B' counts in 1000s and '{unit.upper()}iB' in 1024s")
    elif unit:
        raise refused(f"has an unknown unit {unit!r}")
    if number > 1 or whole:
        if number.denominator != 1:
            raise refused("is neither a fraction up to 1 nor a whole number of bytes")
        return int(number)
    if not fractions_allowed:
        raise refused("is a fraction of a total that is not known here")
    return number
