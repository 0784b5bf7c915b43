"""The terms of the machine model, and the model without each: so is seen what a term is there for.

A term that is data is dropped from the data. Of the features of computing, what is left of a line
is scaled to the samples that the line was fitted to, so that it is not judged by its sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from ooc_cudnn.functions.call.plan_chain import forget_plans
from ooc_cudnn.pricing import table as pricing_table
from perfmodel import ComputeModel, Line, MachineModel, TransferModel, fit_scaled

Edit = Callable[[MachineModel], MachineModel]


def transfer(**changed: Callable[[TransferModel], Any]) -> Edit:
    return lambda machine: replace(
        machine,
        transfer=replace(
            machine.transfer, **{name: made(machine.transfer) for name, made in changed.items()}
        ),
    )


def without(lines: Mapping[str, Line], term: str, *placements: str) -> dict[str, Line]:
    """Lines without a term; of some placements, or all."""
    return {
        key: replace(line, terms={name: rate for name, rate in line.terms.items() if name != term})
        if not placements or key in placements
        else line
        for key, line in lines.items()
    }


def rows(term: str, *placements: str) -> Edit:
    """Without what rows apart take, of copies from and to some placements."""
    return transfer(
        copy_in=lambda link: without(link.copy_in, term, *placements),
        copy_out=lambda link: without(link.copy_out, term, *placements),
    )


def loss(name: str) -> Edit:
    return lambda machine: replace(
        machine, losses={key: held for key, held in machine.losses.items() if key != name}
    )


def seconds(*names: str) -> Edit:
    return lambda machine: replace(machine, **dict.fromkeys(names, 0.0))


def no_launching(machine: MachineModel) -> MachineModel:
    compute = replace(machine.compute, launching={})
    return replace(machine, launch_seconds=0.0, compute=compute)


def feature(name: str) -> Edit:

    def edit(machine: MachineModel) -> MachineModel:
        lines = {}
        for key, line in machine.compute.lines.items():
            lines[key] = line
            samples = machine.samples.get(key) or machine.samples.get(
                key.replace("bfloat16", "float16")
            )
            if name in line.terms and samples is not None:
                (left,) = without({key: line}, name).values()
                lines[key] = fit_scaled(samples, left).line
        launching = dict(machine.compute.launching)
        return replace(machine, compute=ComputeModel(lines, launching=launching))

    return edit


#: By name; those of the features of computing are found in the lines of a model.
TERMS: Mapping[str, Edit] = {
    "latency of staged copies": transfer(latency=lambda link: {}),
    "others in flight": transfer(latency=lambda link: without(link.latency, "others")),
    "slowdown of each pair": transfer(slowdowns=lambda link: {}),
    "rows of pinned memory": rows("rows", "pinned"),
    "rows of what is staged": rows("rows", "pageable", "disk"),
    "loss to copies": loss("copies"),
    "loss to steps": loss("steps"),
    "launching": no_launching,
    "issue": seconds("step_seconds", "staged_step_seconds"),
    "issue beside staging": seconds("staged_step_seconds"),
    "setup": seconds("call_seconds", "operand_seconds"),
    "operands": seconds("operand_seconds"),
}


def _turning(of: Callable[[str], bool]) -> Callable[..., Any]:
    plain = TransferModel.turn_seconds

    def turn_seconds(self: Any, direction: str, placement: str, *given: Any) -> Any:
        return 0.0 if of(placement) else plain(self, direction, placement, *given)

    return turn_seconds


#: What is code and not data: (where it is defined, its name, what stands in for it).
REPLACED: Mapping[str, tuple[Any, str, Any]] = {
    "turning": (TransferModel, "turn_seconds", _turning(lambda where: where != "disk")),
    "filing": (TransferModel, "turn_seconds", _turning(lambda where: where == "disk")),
    "meeting": (pricing_table, "_meeting", lambda copies: (0.0, 0.0)),
}


def terms_of(machine: MachineModel) -> tuple[str, ...]:
    """Every term that may be dropped from a model."""
    features = sorted({name for line in machine.compute.lines.values() for name in line.terms})
    return (*TERMS, *REPLACED, *(f"computing: {name}" for name in features))


@contextmanager
def dropped(term: str, machine: MachineModel) -> Iterator[MachineModel]:
    """A machine model without a term, while everything is priced without it."""
    if term in REPLACED:
        owner, name, instead = REPLACED[term]
        # plans are remembered by the data of a model, which is the same
        forget_plans()
        with mock.patch.object(owner, name, instead):
            yield machine
        forget_plans()
    elif term in TERMS:
        yield TERMS[term](machine)
    elif term in terms_of(machine):
        yield feature(term.removeprefix("computing: "))(machine)
    else:
        raise ValueError(f"no term {term!r}; there are {', '.join(terms_of(machine))}")
