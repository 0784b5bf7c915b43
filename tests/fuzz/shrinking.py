"""A simpler case that fails as well: features are taken away one by one."""

from __future__ import annotations

from dataclasses import replace

from tests.fuzz.layouts import Layout
from tests.fuzz.runner import run


def shrunk(case, chosen):
    """The simplest form of a failing case that was found to fail still."""
    simpler = True
    while simpler:
        simpler = False
        for tried in attempts(case):
            if (
                tried != case
                and run(tried, rounded_twice=chosen.rounded_twice, tuned=chosen.tune)[0]
            ):
                case, simpler = tried, True
                break
    return case


def attempts(case):
    """The case with one feature less each."""
    yield replace(case, special=False)
    yield replace(case, settings={})
    for name in case.settings:
        yield replace(case, settings={n: v for n, v in case.settings.items() if n != name})
    yield replace(case, again=False, profiled=False)
    yield replace(case, room=None)
    if case.room:
        yield replace(case, room=0.0)
    yield replace(case, alpha=1.0)
    if case.problem.has_scaling:
        yield replace(case, alpha=1.0, beta=0.0)
    if not case.problem.needs_out and not case.beta:
        kept = {n: p for n, p in case.places.items() if n not in case.given}
        yield replace(case, given=(), places=kept)
    yield replace(case, places=dict.fromkeys(case.places, "pageable"))
    packed = {name: Layout.packed(len(laid.order)) for name, laid in case.layouts.items()}
    yield replace(case, layouts=packed)
    for name in case.places:
        if case.places[name] != "pageable":
            yield replace(case, places=case.places | {name: "pageable"})
        if case.layouts[name] != packed[name]:
            yield replace(case, layouts=case.layouts | {name: packed[name]})
            yield replace(case, layouts=case.layouts | {
                name: replace(case.layouts[name], offset=0)
            })  # fmt: skip
