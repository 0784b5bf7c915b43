"""Training steps of PyTorch's users: eager, compiled, checkpointed, and ours under limits.

Networks of `amp_networks` under autocast (or in TF32), a process and a record each, and one
table of those that are asked for: `--network NAME NAME`. Images come from pinned memory in each
step, gradients stay on the card. Limits are shares of what eager takes at its peak. Of each way:
seconds to the first step, peak memory, then steps of all ways in turns, and the kernels of one; of
ours also what was planned, in which time, and tasks beside their prediction. Gradients of a small
batch are compared with those in float64. What `--seconds` left no time for, and what failed, is
said.
"""

from __future__ import annotations

import argparse
import copy
import gc
import math
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._functorch.config
from torch import nn

import ooc_cudnn
import ooc_cudnn.torch as ooc
from benchmarks import networks
from benchmarks.amp_networks import CASES, Case, made
from benchmarks.pages.amp import HEAD, NAME, rows_of
from ooc_cudnn.bench import script
from ooc_cudnn.bench.contender import Unavailable
from ooc_cudnn.bench.diagnosis import kernels_of, seconds_of_tasks
from ooc_cudnn.bench.timing import LONG_SECONDS, WARM_UP, Timing, time_call
from ooc_cudnn.bench.torch_setup import precision
from ooc_cudnn.bench.torch_step import DTYPES, Data, Memory, Step, Way, planning_timed
from ooc_cudnn.devices import get_device
from ooc_cudnn.pipeline.simulate import simulate_program
from ooc_cudnn.units import parse_limit

#: Steps of a way in its turn, and turns of it.
IN_A_TURN, TURNS = 4, 3
#: Of the seconds of a network, what is kept for turns: no way is prepared then.
SHARE_OF_TURNS = 0.3
#: How far gradients may be from those in float64, beside eager's: the median over parameters.
APART = 1.2
#: Of what the card has free, what "all kept" may take at the most.
WHOLE = 0.8


#: In the order in which they are prepared: what the others are compared with comes first; and a
#: quarter before all other limits, for a first step of ours has compiled what another one needs.
WAYS = {
    "eager": Way(),
    "ours, 1/4": Way(share=0.25),
    "compile": Way(budget=1.0),
    "ours, all kept": Way(share=2.0),
    "ours, 1/2": Way(share=0.5),
    "checkpoint": Way(is_checkpointed=True),
    "compile, budget 0.5": Way(budget=0.5),
    "ours, 1/8": Way(share=0.125),
}


def drawn(case: Case, shape: tuple[int, ...], classes: int) -> Data:
    """Normal numbers, and labels that are one of a few classes."""

    def normal() -> torch.Tensor:
        x = torch.from_numpy(script.allocate_pinned(shape, "float32"))
        for image in x:
            image.normal_()
        return x

    torch.manual_seed(1)
    x = normal()
    if not classes:
        times = torch.from_numpy(script.allocate_pinned(shape[:1], "float32"))
        return Data((x, times.uniform_(0, 1000)), normal())
    sizes = (shape[0], *shape[2:]) if case.has_sites else shape[:1]
    labels = torch.from_numpy(script.allocate_pinned(sizes, "int64"))
    return Data((x,), labels.random_(0, min(classes, 3)))


# What is measured ---------------------------------------------------------------------------------


class Measuring:
    """One network in all ways: prepared one after the other, then timed in turns."""

    def __init__(self, report: script.Report, network: str) -> None:
        self.report, self.asked, self.case = report, report.arguments, CASES[network]
        self.dtype = report.arguments.dtype
        self.place = "cuda" if self.asked.cuda else "cpu"
        self.data = self.draw(self.case.shape)
        self.begin = time.perf_counter()
        self.rows: dict[str, dict[str, Any]] = {}
        self.steps: dict[str, Step] = {}
        report.measure("network", str(self.case))
        report.measure("dtype", self.dtype)
        report.measure("rows", self.rows, spoken="to be filled")

    def draw(self, shape: tuple[int, ...]) -> Data:
        """Data of a shape, or of the tiny one."""
        case = self.case
        if self.report.quick:
            return drawn(case, case.tiny_shape, case.tiny_classes)
        return drawn(case, shape, case.classes)

    @property
    def left(self) -> float:
        """Seconds."""
        return float(self.asked.seconds - (time.perf_counter() - self.begin))

    def ways(self) -> dict[str, Way]:
        """Those that are asked for; limits of the case itself where it has some.

        Such a case is beyond PyTorch, which is not tried unless it is asked for.
        """
        own = {f"ours, {limit}": Way(share=limit) for limit in self.asked.limit or self.case.limits}
        asked = self.asked.way or ([] if self.case.limits else [*WAYS])
        if any(isinstance(WAYS[name].share, float) for name in asked):
            asked = ["eager", *asked]  # shares are of what it takes
        return {name: way for name, way in WAYS.items() if name in asked} | own

    def measure(self) -> None:
        """Prepare, time, compare."""
        for name, way in self.ways().items():
            row = self.rows[name] = {"status": "not measured"}
            if self.left < SHARE_OF_TURNS * self.asked.seconds:
                row["reason"] = f"the {self.asked.seconds:g} s were over"
            else:
                self.attempt(name, partial(self.prepare, name, way))
            said = ("status", "first_seconds", "second_seconds", "planning_seconds", "peak_bytes")
            self.report.say(f"{name}: { {key: row[key] for key in said if key in row} }")
            self.report.write()
        self.attempt("", self.compare)
        self.report.say(f"turns begin; {self.left:.0f} s are left")
        self.in_turns()
        self.report.write()
        # CUPTI, which sees kernels, has ended a process: what is known without it is written first
        for look in (self.look_at_tasks, self.look_at_kernels):
            for name in [*self.steps]:
                if self.left > 0:
                    self.attempt(name, partial(look, name))
                else:
                    self.report.note(f"{name}: no time was left to look at its tasks or kernels")
            self.report.write()

    def attempt(self, name: str, run: Callable[[], None]) -> None:
        """Run; where it fails, its row says so: others are still worth their time on the card."""
        try:
            run()
        except Exception as error:
            self.steps.pop(name, None)
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
            if name in self.rows:
                self.rows[name] |= {"status": "failed", "reason": reason}
            else:
                self.report.check("contents: gradients", {"ok": False, "reason": reason})
            self.report.note(f"{name or 'gradients'}: {reason}")
            traceback.print_exception(error)
            traceback.clear_frames(error.__traceback__)  # they hold tensors
        self.release()

    def release(self) -> None:
        """Give the card back; pinned memory of prepared steps stays, for it takes long to get."""
        for step in self.steps.values():
            step.model.zero_grad(set_to_none=True)
        gc.collect()
        self.report.synchronize()
        get_device(self.asked.device).arena.release()
        if self.asked.cuda:
            torch.cuda.empty_cache()

    def limit(self, way: Way) -> int | None:
        """Bytes that ours may take; `Unavailable` where shares are of what is not known."""
        if way.share is None or isinstance(way.share, str):
            return parse_limit(way.share, name="limit") if way.share else None
        eager = self.rows.get("eager", {}).get("peak_bytes")
        if not eager:
            raise Unavailable("what eager takes at its peak is not known")
        limit = int(way.share * eager)
        return min(limit, int(WHOLE * torch.cuda.mem_get_info()[0])) if self.asked.cuda else limit

    def step(self, model: nn.Module, way: Way, limit: int | None, dtype: str) -> Step:
        """A step of the case."""
        criterion = nn.CrossEntropyLoss() if self.case.classes else nn.MSELoss()
        return Step(model, way, limit, dtype, self.place, criterion=criterion,
                    blocks=self.case.blocks, is_loss_inside=self.case.is_loss_inside)  # fmt: skip

    def prepare(self, name: str, way: Way) -> None:
        """Run the first steps of a way: their seconds, and what the card holds at the most."""
        limit, row = self.limit(way), self.rows[name]
        memory = Memory(self.asked.device)
        model = made(self.case, is_tiny=self.report.quick, place=self.place)
        step = self.step(model, way, limit, self.dtype)
        if limit is not None:
            row["limit_bytes"] = limit
            if self.asked.tune_seconds:
                begin = time.perf_counter()
                row["engines"] = len(step.tune(self.data, self.asked.tune_seconds))
                row["tuning_seconds"] = time.perf_counter() - begin
        memory.begin()
        with planning_timed() as planned:
            run = partial(step, self.data)
            row["first_seconds"] = time_call(run, self.report.synchronize)
        row["second_seconds"] = time_call(run, self.report.synchronize)
        row["memory of the first two"] = memory.figures()
        memory.begin()  # cuDNN's engines were tried in the first
        for _ in range(0 if row["second_seconds"] > LONG_SECONDS or self.report.quick else WARM_UP):
            run()
        row |= {"loss": run(), "memory": memory.figures(), "status": "prepared"}
        row["peak_bytes"] = row["memory"]["total"]
        if self.report.quick and limit is None:  # PyTorch counts no bytes of a host
            ready = ooc.plan(copy.deepcopy(model), *self.data.inputs, memory_limit="1GiB",
                             machine="host") if name == "eager" else None  # fmt: skip
            row["peak_bytes"] = ready.device_bytes if ready else 0
        if not math.isfinite(row["loss"]):
            raise ArithmeticError(f"the loss is {row['loss']}")
        if limit is not None:
            plan = step.plan
            row |= {"planning_seconds": sum(planned), "plan": networks.figures_of(plan)}
            filed = "".join(each if each.isalnum() else "_" for each in name)
            path = Path(self.asked.output) / f"{self.report.file}-{filed}.txt"
            path.write_text(plan.explain() + "\n", encoding="utf-8")
            row["explain"] = path.name
        self.steps[name] = step

    def in_turns(self) -> None:
        """Time all ways in turns, each with the whole card: some steps to get there, then some."""
        samples: dict[str, list[float]] = {name: [] for name in self.steps}

        def turn(name: str, warm: int, count: int) -> None:
            run = partial(self.steps[name], self.data)
            for _ in range(warm):
                run()
            samples[name] += [time_call(run, self.report.synchronize) for _ in range(count)]

        takes = {name: self.rows[name]["second_seconds"] for name in self.steps}
        for at in range(1 if self.report.quick else TURNS):
            for name in [*self.steps]:
                is_long, is_ours = takes[name] > LONG_SECONDS, self.steps[name].limit is not None
                warm, count = (0 if is_long else WARM_UP if is_ours else 2), IN_A_TURN
                if self.report.quick or is_long:
                    warm, count = 0, 1
                if at and self.left < (warm + count) * takes[name]:
                    self.report.note(f"{name}: the {self.asked.seconds:g} s left {at} turns")
                else:
                    self.attempt(name, partial(turn, name, warm, count))
        for name in self.steps:
            self.rows[name] |= {"seconds": Timing(tuple(samples[name])).to_json()}
            self.rows[name]["status"] = "measured"

    def look_at_tasks(self, name: str) -> None:
        """Keep where the time of one of ours goes: tasks, as measured and as predicted."""
        step, row = self.steps[name], self.rows[name]
        if step.limit is None:
            return
        run = partial(step, self.data)
        run()
        with ooc_cudnn.profile() as recorded:
            run()
        ready = step.run.forward.last
        predicted = simulate_program(ready.step.program)
        traces = [call.trace for call in recorded.calls]
        row["tasks"] = seconds_of_tasks(traces, predicted)
        row["halves"] = [call.seconds for call in recorded.calls]

    def look_at_kernels(self, name: str) -> None:
        """Keep the kernels of a way that take longest."""
        if self.asked.cuda:
            kernels = kernels_of(partial(self.steps[name], self.data))
            self.rows[name]["kernels"] = dict([*kernels.items()][: self.asked.kernels])

    def compare(self) -> None:
        """Compare gradients of a small batch with those in float64: ours beside eager's."""
        data = self.draw(self.case.checked)
        model = partial(made, self.case, is_tiny=self.report.quick, place=self.place)
        double = self.step(model(dtype=torch.float64), Way(), None, "float64")
        with precision(torch, tf32=False):
            target = data.target if self.case.classes else data.target.double()
            double(Data(tuple(each.double() for each in data.inputs), target))
        exact, errors = double.gradients(), []
        del double
        for limit in (None, torch.cuda.mem_get_info()[0] // 2 if self.asked.cuda else 2**30):
            step = self.step(model(), Way(), limit, self.dtype)
            step(data)
            found = step.gradients()
            errors.append({n: float((found[n] - each).norm()) for n, each in exact.items()})
        eager, ours = errors
        ratios = {name: ours[name] / eager[name] for name in exact if eager[name]}
        median = statistics.median(ratios.values())
        self.report.measure("gradients: errors, ours over eager's", ratios, spoken=f"{median:.3f}")
        self.report.claim("gradients: error, ours over eager's, median", median, "<=", APART)
        is_ok = math.isfinite(median) and (self.report.quick or median <= 2 * APART)
        self.report.check("contents: gradients", {"ok": is_ok, "median": median})


# The command line ---------------------------------------------------------------------------------


def body(report: script.Report) -> None:
    asked = report.arguments
    (network,) = asked.network
    report.file = f"{NAME}_{network}_{asked.dtype}"
    more: dict[str, Any] = {"allow_tf32": True}
    if asked.cuda:  # by a machine that is named, plans would not follow what is measured
        more |= {"host_memory_limit": networks.host_limit(asked.device), "machine": None}
    Path(asked.output).mkdir(parents=True, exist_ok=True)
    with script.no_stored_engines(), ooc_cudnn.settings(**more), precision(torch, tf32=True):
        found = Measuring(report, network)
        found.measure()
    measured = {name: row for name, row in found.rows.items() if "seconds" in row}
    takes = {name: row["seconds"]["median"] for name, row in measured.items()}
    for name, row in measured.items():
        if "plan" in row:
            report.claim(f"{name}: predicted / measured", row["plan"]["seconds"] / takes[name])
        if "eager" in takes:
            report.claim(f"{name}: times eager", takes[name] / takes["eager"])


def options(parser: argparse.ArgumentParser) -> None:
    _several(parser)
    parser.add_argument("--way", action="append", choices=WAYS, help="beside eager; by default all")
    parser.add_argument("--limit", action="append", help="of ours, beside shares of eager's peak")
    parser.add_argument("--tune-seconds", type=float, default=15.0,
                        help="to measure engines before each of our ways; 0: none")  # fmt: skip
    parser.add_argument("--kernels", type=int, default=30, help="of a way, the longest, to keep")


def _several(parser: argparse.ArgumentParser) -> None:
    """What a process for all networks hands on to those for one."""
    parser.add_argument("--network", nargs="+", choices=CASES, default=[*CASES])
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--seconds", type=float, default=140.0, help="for each network")


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    several = argparse.ArgumentParser(add_help=False)
    _several(several)
    several.add_argument("--output", default=str(script.RESULTS))
    asked, _ = several.parse_known_args(words)
    status, begin = 0, time.time()
    if len(asked.network) == 1 or {"-h", "--help"} & set(words):
        status = script.run(NAME, body, __doc__, words, more=options)
    else:
        for network in asked.network:
            command = [sys.executable, "-m", "benchmarks.amp", *words, "--network", network]
            # a way that has begun ends later; what was measured is written
            status |= bool(script.run_apart(command, 1.5 * asked.seconds + 60))
    rows = []
    for network in asked.network:
        path = Path(asked.output) / f"{NAME}_{network}_{asked.dtype}.json"
        if path.exists() and path.stat().st_mtime >= begin - 1:
            rows += rows_of(script.load_record(path.stem, path.parent))
        else:
            rows.append((f"{CASES[network]}", "", "not measured", *[""] * 6))
    print(f"\n{asked.dtype}\n{script.table(HEAD, rows)}")
    return status


if __name__ == "__main__":
    sys.exit(main())
