"""CUDA structs that kernels take, and constants, read from the sources as NumPy types.

A struct stands once, beside the kernel that takes it by value. Its NumPy type has the same fields
at the same offsets, by C's rules of alignment, and a launch names what it hands over; the compiler
checks the size, whenever a kernel is compiled. Fields come first in a struct, up to a blank line,
and are an `int`, `long long`, `double`, parameter of the template, such a struct, or arrays of
these. Enumerators are not read: a template's arguments are their names.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np

from ooc_cudnn.devices.kernels.compiling import sources_folder

_SCALARS = {"int": "int32", "long long": "int64", "double": "float64"}
_FIELDS = re.compile(r"\s*((?:long )?\w+(?:<[^>]*>)?)\s+([\w\s,\[\]]+)")


@functools.cache
def _text(source: str) -> str:
    """A source without comments, behind the headers that it includes."""
    own = (sources_folder() / source).read_text(encoding="utf-8")
    headers = re.findall(r'#include "(.+?)"', own)
    return "".join(map(_text, headers)) + re.sub(r"\n\s*//.*|\s*//.*", "", own)


@functools.cache
def constant(source: str, name: str) -> int:
    """A `constexpr int`.

    >>> constant("strided.cuh", "OUTER_AXES")
    4

    Raises
    ------
    LookupError
        If the source declares none of that name.
    """
    found = re.search(rf"^constexpr int {name} = (\d+);", _text(source), re.M)
    if found is None:
        raise LookupError(f"{source} has no constant {name}")
    return int(found[1])


@functools.cache
def struct_type(source: str, kind: str) -> np.dtype[Any]:
    """The NumPy type of a struct, with the arguments of its template.

    >>> struct_type("pooling.cuh", "Extents<int>")
    dtype([('d', '<i4'), ('h', '<i4'), ('w', '<i4')], align=True)

    Raises
    ------
    LookupError
        If the source declares no such struct.
    ValueError
        If that has other fields than this module reads.
    """
    if kind in _SCALARS:
        return np.dtype(_SCALARS[kind])
    name, _, arguments = kind.removesuffix(">").partition("<")
    pattern = rf"(?:template <([^>]*)>\n)?struct {name} {{\n(.*?);\n(?:\n|}};)"
    match = re.search(pattern, _text(source), re.S)
    if match is None:
        raise LookupError(f"{source} has no struct {name}")
    parameters = re.findall(r"(?:typename|int) (\w+)", match[1] or "")
    values = dict(zip(parameters, filter(None, arguments.split(", ")), strict=True))
    fields = []
    for statement in match[2].split(";"):
        declared = _FIELDS.fullmatch(statement)
        if declared is None:
            raise ValueError(f"{source}: {name} has fields that are not read: {statement}")
        of = re.sub(r"\w+", lambda word: values.get(word[0], word[0]), declared[1])
        for declarator in declared[2].split(","):
            field, *extents = re.findall(r"\w+", declarator)
            numbers = [values.get(extent, extent) for extent in extents]
            shape = [int(n) if n.isdigit() else constant(source, n) for n in numbers]
            fields.append((field, struct_type(source, of), tuple(shape)))
    return np.dtype(fields, align=True)


def largest(struct: np.ndarray) -> int:
    """Return the largest magnitude in a struct of 64-bit integers."""
    return int(np.abs(struct.view(np.int64)).max())


def fill_struct(source: str, kind: str, /, **fields: Any) -> np.ndarray:
    """Return a struct with every field, which CuPy passes by value.

    A field that is a struct is given as a dict, or in order; an array as a sequence.

    Raises
    ------
    TypeError
        If a field is left out, or there is none of a name.
    ValueError
        If a field has another shape.
    OverflowError
        If a number does not fit.
    """
    record = np.zeros(1, struct_type(source, kind))
    _assign(record, fields)
    return record.view(f"V{record.nbytes}")


def _assign(target: np.ndarray, value: Any) -> None:
    """Assign to a struct, an array of structs or of numbers, or a number; of an outer extent 1."""
    names = target.dtype.names
    if names is None:
        target[0] = numbers = np.array(value, target.dtype)
        if numbers.shape != target.shape[1:]:
            raise ValueError(f"{value} has not the shape {target.shape[1:]}")
    elif target.ndim > 1:
        for index, element in zip(range(target.shape[1]), value, strict=True):
            _assign(target[:, index], element)
    else:
        values = value if isinstance(value, dict) else dict(zip(names, value, strict=True))
        if values.keys() != set(names):
            raise TypeError(f"fields {sorted(values)} where there are {sorted(names)}")
        for name, element in values.items():
            _assign(target[name], element)
