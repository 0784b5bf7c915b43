"""The page on networks shows plans as they were simulated, and every policy there is."""

import numpy as np
import pytest

from benchmarks import network_steps
from benchmarks.network_steps import CASES, Case, course_from, figures, plain, planned
from ooc_cudnn.bench.environment import ROOT
from ooc_cudnn.bench.record import load_record
from ooc_cudnn.network.report.timeline import course_of
from ooc_cudnn.network.search.plan_step import NAMES

SMALL = Case("alexnet", 8, "512MiB")


@pytest.fixture(scope="module")
def made():
    return planned(SMALL, "offload")


def test_a_course_comes_back_from_its_record(made):
    course = course_of(made)
    assert figures(made, course)["ok"]
    again = course_from(plain(course))
    assert again.title == course.title
    assert [span[:2] for span in again.spans] == [span[:2] for span in course.spans]
    np.testing.assert_allclose(again.begins, course.begins, atol=1e-6)
    np.testing.assert_allclose(again.held, course.held, atol=2**19)


def test_what_holds_more_than_it_promised_is_not_ok(made):
    course = course_of(made)
    assert not figures(made, course._replace(held=course.held + made.plan.device_bytes))["ok"]


def test_the_record_has_every_case_and_its_pictures():
    record = load_record(network_steps.NAME)
    assert record["verified"]
    assert {name.rsplit(": ", 1)[0] for name in record["checks"]} == set(map(str, CASES))
    assert set(network_steps.DRAWN) < set(record["measurements"])


def test_the_page_explains_every_policy():
    text = (ROOT / network_steps.PAGE).read_text(encoding="utf-8")
    policies = text.split("## Policies")[1].split("<!--")[0]
    assert [name for name in NAMES if f"| `{name}` |" not in policies] == []
