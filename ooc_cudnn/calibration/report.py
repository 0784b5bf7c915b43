"""A machine model as text: every line with how well it fits, slowdowns, and what else was seen."""

from __future__ import annotations

from collections.abc import Mapping

from ooc_cudnn.calibration.lines import how_sure
from perfmodel import Line, MachineModel

#: Qualities in the order of their columns.
_QUALITIES = ("residual", "held_out_error", "spread")
_FACTS = {
    "allocate_pinned_bytes_per_second": "allocating pinned memory",
    "pin_bytes_per_second": "page-locking plain memory",
    "unpin_bytes_per_second": "releasing it",
}


def report(model: MachineModel) -> str:
    """Return everything that is known of a machine, for people.

    Parameters
    ----------
    model : MachineModel

    Examples
    --------
    >>> from perfmodel import shipped
    >>> print(report(shipped("h200")).splitlines()[0])
    h200, calibrated shipped
    """
    rows = [f"{model.name}, calibrated {model.calibrated}", "", *_lines(model), ""]
    if model.transfer.slowdowns:
        rows += ["while both directions are busy, copies take longer by", *_slowdowns(model), ""]
    rows.append(f"issuing a step: {model.step_seconds * 1e6:.1f} us")
    if model.staged_step_seconds:
        rows.append(f"and by threads that stage: {model.staged_step_seconds * 1e6:.1f} us")
    if model.operand_seconds:
        rows.append(f"and each operand beyond two: {model.operand_seconds * 1e6:.1f} us")
    rows += [*_facts(model.facts), "", *how_sure(model)]
    return "\n".join(rows)


def _lines(model: MachineModel) -> list[str]:
    """Each fitted line: seconds = work / speed + start + further terms."""
    lines = {f"copy_in/{name}": line for name, line in model.transfer.copy_in.items()}
    lines |= {f"copy_out/{name}": line for name, line in model.transfer.copy_out.items()}
    lines |= model.compute.lines
    width = max(len(name) for name in lines)
    rows = [
        f"{'':<{width}} {'speed':>14} {'start':>10} {'residual':>9} {'held out':>9} "
        f"{'spread':>7} {'samples':>8}  further terms"
    ]
    for name, line in lines.items():
        quality = model.quality.get(name, {})
        shares = (f"{quality[key]:.1%}" if key in quality else "" for key in _QUALITIES)
        residual, held_out, spread = shares
        count = f"{quality['samples']:.0f}" if "samples" in quality else ""
        rows.append(
            f"{name:<{width}} {_speed(name, line):>14} {line.beta * 1e6:>7.1f} us "
            f"{residual:>9} {held_out:>9} {spread:>7} {count:>8}  {_terms(line)}".rstrip()
        )
    return rows


def _speed(name: str, line: Line) -> str:
    if not line.alpha:
        return ""
    unit = "GFLOP/s" if name.startswith("convolution") else "GB/s"
    return f"{1e-9 / line.alpha:.4g} {unit}"


def _terms(line: Line) -> str:
    """Further terms as what one unit of each costs."""
    return ", ".join(f"{name} {rate:.3g} s" for name, rate in line.terms.items())


def _slowdowns(model: MachineModel) -> list[str]:
    """The factors of each pair, and the rates of its largest pieces where they were measured."""
    rows = []
    for pair, slower in model.transfer.slowdowns.items():
        source, target = pair.split("/")
        rates = []
        for direction, alone in (
            ("copy_in", f"copy_in/{source}"), ("copy_out", f"copy_out/{target}"),
        ):  # fmt: skip
            busy, free = model.samples.get(f"duplex/{pair}/{direction}"), model.samples.get(alone)
            if busy is not None and free is not None:
                known = dict(zip(free.work, free.seconds, strict=True))
                found = zip(busy.work, busy.seconds, strict=True)
                rates += [
                    f"{direction.removeprefix('copy_')} {work / seconds / 1e9:.1f} of "
                    f"{work / known[work] / 1e9:.1f} GB/s"
                    for work, seconds in list(found)[-1:]
                    if work in known
                ]
        about = f"  ({', '.join(rates)})" if rates else ""
        spread = model.quality.get(f"duplex/{pair}", {}).get("spread")
        varied = f", spread {spread:.1%}" if spread is not None else ""
        rows.append(
            f"  in from {source:<8} out to {target:<8}  in {slower.copy_in:.2f}, "
            f"out {slower.copy_out:.2f} times{about}{varied}"
        )
    return rows


def _facts(facts: Mapping[str, float]) -> list[str]:
    rows = [
        f"{words}: {facts[name] / 1e9:.2f} GB/s" for name, words in _FACTS.items() if name in facts
    ]
    for name, value in facts.items():
        if name.startswith("strided_"):
            which = name.removeprefix("strided_").removesuffix("_over_plain").replace("_", " ")
            rows.append(f"strided {which}: {value:.2f} times as long as a plain one")
        elif name.startswith("drift_of_"):
            which = name.removeprefix("drift_of_").removesuffix("_share").replace("_", " ")
            rows.append(f"drift of {which} from first to last: {value:+.1%}")
    if "calibration_seconds" in facts:
        rows.append(f"measured in {facts['calibration_seconds']:.1f} s")
    return rows
