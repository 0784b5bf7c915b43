"""Structs that kernels take have the same fields at the same places in Python and in CUDA."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ooc_cudnn.devices.kernels import compiling, cuda_structs
from ooc_cudnn.devices.kernels.compiling import sources_folder
from ooc_cudnn.devices.kernels.cuda_structs import constant, fill_struct, struct_type
from ooc_cudnn.operations.attention.launches import ON_CHIP
from tests.support.cuda_on_cpu import compiler
from tests.support.cuda_on_cpu.compiling import HERE

#: Every struct that a launch fills, with one choice of its template's arguments each.
STRUCTS = {
    "attention.cu": ["ScoreRows", "BiasSums"],
    "channel_argmax.cu": ["Sites<int>", "Sites<long long>"],
    "channel_reduction.cu": ["ChannelTotals", "Images"],
    "convolution_direct.cu": ["ConvolutionGeometry"],
    "convolution_direct_backward.cu": ["ConvolutionGradient"],
    "dropout.cu": ["Steps"],
    "group_walk.cuh": ["GroupWalk<1>", "GroupWalk<5>"],
    "image_softmax.cu": ["ImageParts"],
    "interpolation.cu": ["Interpolation<int>", "Interpolation<long long>"],
    "local_response_lanes.cu": ["Lanes<int, 2>", "Lanes<long long, 3>"],
    "local_response_walk.cu": ["Columns<int, 2>", "Columns<long long, 3>"],
    "local_response_wide.cu": ["LocalResponse"],
    "losses.cu": ["LossRows<1>", "LossRows<5>", "RowTotals", "Values"],
    "attention_small.cu": ["SmallAttention"],
    "pointwise.cu": ["PointwiseGeometry"],
    "pooling.cu": ["PoolingGeometry<int>", "PoolingGeometry<long long>"],
    "pooling_gradient.cu": ["UnpoolingGeometry<int>", "UnpoolingGeometry<long long>"],
    "pooling_indices.cu": ["Windows<int, 6>", "Windows<long long, 7>"],
    "relayout.cu": ["CopyGeometry", "TransposeGeometry"],
    "resampling.cu": ["Resampling"],
    "set_statistics.cu": ["Sets", "ImageStates", "Elements", "Sites"],
    "softmax.cu": ["SoftmaxRows"],
    "softmax_columns.cu": ["SoftmaxColumns"],
    "welford_merge.cu": ["Extent"],
    "strided.cuh": ["Walk<int, 2>", "Walk<long long, 4>"],
    "gather_nhwc.cu": ["Gather<int>", "Gather<long long>"],
}
#: By value, all parameters of a kernel.
MOST_PARAMETER_BYTES = 4096


def places(dtype: np.dtype, name: str = "", begin: int = 0) -> Iterator[tuple[str, int, int]]:
    """Every field and element inside a struct, with its offset and its bytes."""
    for field in dtype.names or ():
        of, offset = dtype.fields[field][:2]
        shape, base = of.shape, of.base
        for at, index in enumerate(np.ndindex(shape)):
            member = f"{name}{field}" + "".join(f"[{i}]" for i in index)
            place = begin + offset + at * base.itemsize
            yield member, place, base.itemsize
            yield from places(base, f"{member}.", place)


@pytest.mark.skipif(compiler() is None, reason="no g++ that knows _Float16")
@pytest.mark.parametrize("source", STRUCTS)
def test_fields_lie_where_the_compiler_has_them(source):
    checks = [f'#include "{source}"']
    for at, kind in enumerate(STRUCTS[source]):
        dtype = struct_type(source, kind)
        assert dtype.itemsize <= MOST_PARAMETER_BYTES
        checks.append(f"using Kind{at} = {kind};")
        checks.append(f"static_assert(sizeof(Kind{at}) == {dtype.itemsize});")
        for member, place, nbytes in places(dtype):
            checks.append(f"static_assert(__builtin_offsetof(Kind{at}, {member}) == {place});")
            checks.append(f"static_assert(sizeof(((Kind{at} *)0)->{member}) == {nbytes});")
    options = ["-std=c++17", "-w", "-fsyntax-only", f"-I{sources_folder()}", f"-I{HERE}"]
    command = [compiler(), *options, "-include", "cuda_on_cpu.h", "-x", "c++", "-"]
    done = subprocess.run(command, input="\n".join(checks), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_struct_that_is_filled_is_checked_here():
    folder = Path(compiling.__file__).parent
    paths = set(folder.glob("*.py")) - {folder / "cuda_structs.py"}
    text = "".join(path.read_text(encoding="utf-8") for path in paths)
    named = {kind.partition("<")[0] for kinds in STRUCTS.values() for kind in kinds}
    declared = set(re.findall(r"^struct (\w+)", _all_sources(), re.M))
    filled = {word for word in re.findall(r'"(\w+)[<"]', text) if word in declared}
    assert filled <= named


def _all_sources() -> str:
    return "".join(path.read_text(encoding="utf-8") for path in sources_folder().glob("*.cu*"))


def test_fields_are_read_back_by_name():
    source, kind = "interpolation.cu", "Interpolation<int>"
    axis = {"times": 1, "plus": -2, "over": 3, "whole": 4, "rest": 5, "extent": 6}
    sizes = dict.fromkeys(("a", "b", "lanes", "rows", "row_packs", "column_tiles", "tiles"), 7)
    six, three = (1, 2, 3, 4, 5, 6), (7, 8, 9)
    spatial = dict.fromkeys(("made", "first", "begins", "count"), three)
    fields = {**sizes, **spatial, "result": six, "source": six, "axis": [axis, three * 2, axis]}
    struct = fill_struct(source, kind, **fields).view(struct_type(source, kind))[0]
    assert struct["axis"][0]["plus"] == -2
    assert tuple(struct["axis"][1]) == three * 2
    assert tuple(struct["begins"]) == three
    assert struct["source"]["lane"] == 6
    with pytest.raises(TypeError, match="fields"):
        fill_struct(source, kind, **sizes)
    with pytest.raises(TypeError, match="fields"):
        fill_struct(source, kind, **fields, more=1)
    with pytest.raises(ValueError, match="shape"):
        fill_struct(source, kind, **{**fields, "count": 7})
    with pytest.raises(ValueError, match="zip"):
        fill_struct(source, kind, **{**fields, "made": six})
    with pytest.raises(OverflowError):
        fill_struct(source, kind, **{**fields, "rows": 2**31})


def test_what_is_not_declared_is_said(monkeypatch):
    with pytest.raises(LookupError, match="no struct Nothing"):
        struct_type("pooling.cu", "Nothing")
    with pytest.raises(LookupError, match="no constant NOTHING"):
        constant("pooling.cu", "NOTHING")
    monkeypatch.setattr(cuda_structs, "_text", lambda source: "struct Odd {\n    int *a;\n};\n")
    with pytest.raises(ValueError, match="not read"):
        struct_type("odd.cu", "Odd")


def test_what_is_on_chip_fits_a_block():
    assert constant("attention_small.cu", "SIDE") == ON_CHIP
