"""What `Plan.explain` shows: columns that never touch, whatever stands in them."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ooc_cudnn
from ooc_cudnn import cli
from ooc_cudnn.call_planner.explain import align_columns
from ooc_cudnn.call_planner.plan import Alternative, Plan
from ooc_cudnn.cli.plan import example
from ooc_cudnn.functions.call.decorator import FUNCTIONS
from ooc_cudnn.tensor import DTYPES, PLACEMENTS, TensorSpec
from perfmodel import Split

OPERAND = re.compile(
    r"  (\w+) {1,}(\d+(?: x \d+)*) {2,}(\w+) {2,}([\d.e+]+ [KMGTPE]?i?B) {2,}(\w+) {2,}"
    r"(ring of \d+ slots?|computed on in place)"
)
#: As `format_seconds` writes them: one number and unit, or two.
TIME = r"\S+ \S+(?: \S+ \S+)?"
STAGE = re.compile(
    rf"  (copy_in|compute|copy_out) {{2,}}({TIME})(?: {{2,}}(\S+ \S+))?(?: {{2,}}<- binds)?"
)
CALL = re.compile(rf"  call {{2,}}({TIME})  predicted, .*")
MEMORY = re.compile(r"  (memory|total) {2,}([\d.e+]+ [KMGTPE]?i?B)  \S.*")
OTHER = re.compile(
    rf"  d_n=\d+ d_cY=\d+ d_cX=\d+ d_hY=\d+ channels-\w+ {{2,}}({TIME}) {{2,}}"
    r"([\d.e+]+ [KMGTPE]?i?B)"
)


def check(plan):
    """Every row of every table can be read back."""
    lines = iter(plan.explain().splitlines())
    next(lines)
    starts = set()
    for name, spec in plan.operands:
        line = next(lines)
        found = OPERAND.fullmatch(line)
        assert found, line
        assert found[1] == name
        assert found[2] == " x ".join(map(str, spec.shape))
        assert (found[3], found[5]) == (spec.dtype, spec.placement)
        starts.add((found.start(2), found.start(3), found.end(4), found.start(5), found.start(6)))
    assert len(starts) == 1, "columns stand under each other"
    rest = [line for line in lines if line]
    kinds = {
        pattern: [line for line in rest if line.split()[0] in words]
        for pattern, words in (
            (STAGE, ("copy_in", "compute", "copy_out")), (CALL, ("call",)),
            (MEMORY, ("memory", "total")),
        )
    }  # fmt: skip
    kinds[OTHER] = [line for line in rest if line.startswith("  d_n=")]
    assert len(kinds[STAGE]) == 3
    assert len(kinds[MEMORY]) == len(plan.memory) + 1
    assert len(kinds[OTHER]) == len(plan.alternatives)
    for pattern, found in kinds.items():
        for line in found:
            assert pattern.fullmatch(line), line


@pytest.fixture(scope="module")
def base():
    x = TensorSpec((8, 16, 64, 64))
    with ooc_cudnn.settings(machine="h200"):
        return ooc_cudnn.plan("activation_forward", x=x, machine="h200", memory_limit="1MiB")


extents = st.integers(1, 2**40)
specs = st.builds(
    lambda shape, dtype, placement: TensorSpec(tuple(shape), dtype, placement),
    st.lists(extents, min_size=1, max_size=5),
    st.sampled_from(sorted(DTYPES)),
    st.sampled_from(PLACEMENTS),
)
names = st.sampled_from(
    ["x", "w", "b", "y", "dy", "out", "scale", "saved_inverse_variance", "running_variance_2"]
)
seconds = st.floats(1e-9, 1e12, allow_nan=False)
counts = st.integers(0, 2**60)
splits = st.builds(Split, *(st.integers(1, 2**40) for _ in range(4)))


@given(
    operands=st.lists(st.tuples(names, specs), min_size=1, max_size=6, unique_by=lambda o: o[0]),
    stages=st.tuples(seconds, seconds, seconds, seconds),
    moved=st.tuples(counts, counts),
    memory=st.lists(st.tuples(st.just("x: 3 slots"), counts), max_size=4),
    slots=st.integers(0, 10**6),
    others=st.lists(
        st.builds(Alternative, splits, st.just("channels_first"), seconds, counts), max_size=3
    ),
)
def test_columns_never_touch(base, operands, stages, moved, memory, slots, others):
    total = sum(count for _, count in memory)
    copy_in, compute, copy_out, call = stages
    check(
        replace(
            base, operands=tuple(operands), rings=tuple((name, slots) for name, _ in operands),
            copy_in_seconds=copy_in, compute_seconds=compute, copy_out_seconds=copy_out,
            seconds=call,
            bytes_in=moved[0], bytes_out=moved[1], memory=tuple(memory), memory_limit=max(total, 1),
            alternatives=tuple(others),
        )
    )  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_of_every_function_on_large_shapes(name, capsys):
    words = shlex.split(example(name).replace("512x64x256x256", "1000x64x1024x1024"))
    status = cli.main([*words[1:], "--placement", "pageable", "--json"])
    assert status == 0
    check(Plan.from_json(json.loads(capsys.readouterr().out)))


def test_a_table():
    lines = align_columns([("a", "1"), ("long name", "12345678")], ("<4", ">4"))
    assert lines == ["  a                   1", "  long name    12345678"]
    assert align_columns([("a", "b", "c"), ("d",)], ("<2", ">2", "<0")) == ["  a    bc", "  d"]
