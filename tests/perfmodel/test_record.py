"""Records check what they hold and read JSON strictly."""

import copy
import pickle

import numpy as np
import pytest

from perfmodel import Line, Slowdown, Split
from perfmodel.record import Table, members, number, text, whole


@pytest.mark.parametrize("value", [float("inf"), float("nan"), -1.0, 10**400])
def test_number_refuses_what_is_not_finite_or_too_small(value):
    with pytest.raises(ValueError, match=r"seconds is .* finite number of at least 0"):
        number("seconds", value)


@pytest.mark.parametrize("value", [True, "1", None, 1j])
def test_number_refuses_what_is_no_number(value):
    with pytest.raises(TypeError, match="seconds is"):
        number("seconds", value)


def test_numpy_scalars_become_plain_numbers():
    line = Line(np.float32(0.5), np.int64(2))
    assert (type(line.alpha), type(line.beta)) == (float, float)
    assert type(Split(np.int32(3), 1, 1, 1).n) is int


@pytest.mark.parametrize("value", [1.0, True, "3"])
def test_whole_refuses_other_types(value):
    with pytest.raises(TypeError, match="whole number"):
        whole("copies", value)


def test_text_refuses_the_empty_string_and_other_types():
    with pytest.raises(ValueError, match="empty"):
        text("key", "")
    with pytest.raises(TypeError, match="string"):
        text("key", 3)


def test_members_names_the_missing_and_the_unknown():
    with pytest.raises(ValueError, match="lacks 'beta'"):
        Line.from_json({"alpha": 1.0})
    with pytest.raises(ValueError, match="unknown 'gamma'"):
        Line.from_json({"alpha": 1.0, "beta": 0.0, "gamma": 0.0})
    with pytest.raises(ValueError, match="mapping from names"):
        members("Line", [1, 2], ("alpha",))


@pytest.mark.parametrize("record", [Line(1e-9, 2e-6), Split(1, 2, 3, 4), Slowdown(1.5, 2.0)])
def test_flat_records_go_to_json_and_back(record):
    assert type(record).from_json(record.to_json()) == record
    assert pickle.loads(pickle.dumps(record)) == record
    assert hash(record) == hash(copy.deepcopy(record))


def test_a_table_is_a_constant_mapping():
    source = {"a": 1}
    table = Table(source)
    source["a"] = 2
    assert table["a"] == 1
    assert pickle.loads(pickle.dumps(table)) == table
    assert {table: "found"}[Table({"a": 1})] == "found"
    with pytest.raises(TypeError):
        table["a"] = 3
