"""``ooc-cudnn network NAME``: how a step of training a network would run, and runs."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any, TextIO

import numpy as np

from ooc_cudnn import networks
from ooc_cudnn.cli.arguments import (
    PROGRAM,
    add_device,
    add_machine,
    add_memory_limit,
    add_memory_limits,
    add_seconds,
    nearest,
    on_device,
    positive,
    whole,
)
from ooc_cudnn.cli.stdout import keep_stdout_clean
from ooc_cudnn.cli.sweep import limits, sweep
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.network.network import Network
from ooc_cudnn.network.search.plan_step import NAMES
from ooc_cudnn.plotting import check_can_draw
from ooc_cudnn.settings import settings
from ooc_cudnn.tensor import DTYPES, numpy_dtype
from ooc_cudnn.units import format_seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.epilog = (
        f"example: {PROGRAM} network resnet50 --batch 256 --memory-limit 16GiB --machine h200"
    )
    parser.add_argument(
        "network", type=_network, metavar="NAME", help=f"one of {', '.join(networks.__all__)}"
    )
    parser.add_argument(
        "--batch", type=positive, metavar="N",
        help="images of a step; this and the next three are the network's own when left out",
    )  # fmt: skip
    parser.add_argument(
        "--image", type=positive, metavar="N", help="extent of an image on each axis"
    )
    parser.add_argument("--classes", type=positive, metavar="N", help="classes that it tells apart")
    parser.add_argument("--width", type=float, metavar="FACTOR", help="of all channels (0.5: half)")
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="float32")
    add_memory_limit(
        parser,
        "memory of the card: a size (16GiB), or a share of what is free there (0.5); 0.9 when left "
        "out",
    )
    parser.add_argument(
        "--policy", dest="policies", choices=NAMES, action="append",
        help="who decides what is kept, offloaded and recomputed (docs/networks.md has each); "
        "best when left out; with --sweep several may be given, one --policy each",
    )  # fmt: skip
    where = parser.add_mutually_exclusive_group()
    add_machine(where)
    add_device(where)
    add_seconds(parser)
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    parser.add_argument(
        "--plot", metavar="FILE",
        help="draw streams and memory over the step, or a sweep (PNG, SVG, PDF)",
    )  # fmt: skip
    parser.add_argument(
        "--sweep", action="store_true",
        help="show seconds over memory, by all policies that plan in seconds and beside the bound",
    )  # fmt: skip
    add_memory_limits(
        parser,
        limits,
        "of a sweep: sizes, or shares of what keeping everything takes, not of what is free "
        "(0.8,0.4,16GiB)",
    )
    parser.add_argument(
        "--run", dest="steps", metavar="STEPS", nargs="?", const=1, default=0, type=whole,
        help="run so many steps, too, on drawn images (1 when left out); nothing is trained",
    )  # fmt: skip
    parser.add_argument(
        "--tune", action="store_true",
        help="first measure cuDNN's engines for the step's convolutions, and store them",
    )  # fmt: skip
    parser.set_defaults(run=_run)


def _network(text: str) -> str:
    """Read the name of a network; unlike a function's, its beginning may be another one's name."""
    name = text.replace("-", "_")
    if name not in networks.__all__:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a network{nearest(name, networks.__all__)}; "
            f"give one of {', '.join(networks.__all__)}"
        )
    return name


def _made(arguments: argparse.Namespace) -> tuple[Network, Tensor]:
    """The network that is asked for, and its loss."""
    names = ("batch", "image", "classes", "width")
    options = {name: getattr(arguments, name) for name in names}
    asked = {name: value for name, value in options.items() if value is not None}
    result: tuple[Network, Tensor] = getattr(networks, arguments.network)(
        dtype=arguments.dtype, **asked
    )
    return result


def _run(arguments: argparse.Namespace) -> int:
    for option, asked in (("--run", arguments.steps), ("--tune", arguments.tune)):
        if asked and arguments.machine is not None:
            raise ValueError(f"{option} measures this machine; leave --machine out")
    if arguments.steps < 0:
        raise ValueError(f"--run takes a number of steps, not {arguments.steps}")
    _check_sweep(arguments)
    if arguments.plot is not None:
        check_can_draw(arguments.plot)  # before the time is spent
    net, loss = _made(arguments)
    with (
        on_device(arguments.device, arguments.seconds),
        settings(memory_limit=arguments.memory_limit),
    ):
        if arguments.sweep:
            sweep(arguments, net, loss)
        else:
            _plan(arguments, net, loss)
    return 0


def _check_sweep(arguments: argparse.Namespace) -> None:
    """Refuse what a sweep does not do, and what it alone does."""
    if arguments.sweep:
        for option, asked in (
            ("--run", arguments.steps),
            ("--tune", arguments.tune),
            ("--memory-limit", arguments.memory_limit),
        ):
            if asked:
                raise ValueError(f"{option} is of one plan, and --sweep makes many; leave one out")
    elif arguments.limits is not None:
        raise ValueError("--memory-limits are of a sweep: add --sweep, or give one --memory-limit")
    elif len(arguments.policies or ()) > 1:
        raise ValueError("several policies are of a sweep: add --sweep, or give one --policy")


def _plan(arguments: argparse.Namespace, net: Network, loss: Tensor) -> None:
    """Plan one step, show the plan, and run it if that is asked for."""
    (policy,) = arguments.policies or ("best",)
    if arguments.tune:
        _tune(net, loss, policy)
    with keep_stdout_clean():
        plan = net.plan(loss, policy=policy, machine=arguments.machine, bound=True)
    beside = sys.stderr if arguments.json else sys.stdout  # JSON stands alone
    print(json.dumps(plan.to_json(), indent=2) if arguments.json else plan.explain())
    if arguments.plot is not None:
        net.plot(loss, plan, arguments.plot, machine=arguments.machine)
        print(f"drawn in {arguments.plot}", file=beside)
    if arguments.steps:
        _train(net, loss, plan, arguments.steps, beside)


def _tune(net: Network, loss: Tensor, policy: str) -> None:
    """Measure engines, and say how many; what is printed of the plan is left to stand alone."""
    begin = time.perf_counter()
    found = net.training_step(loss, policy=policy).tune(**drawn_inputs(net))
    seconds = format_seconds(time.perf_counter() - begin)
    print(f"engines of {len(found)} convolutions measured in {seconds}", file=sys.stderr)


def _train(net: Network, loss: Tensor, plan: Any, steps: int, out: TextIO) -> None:
    """Run steps on drawn inputs, and say what each takes; parameters stay as they are."""
    step = net.training_step(loss, plan=plan)
    inputs = drawn_inputs(net)
    print("steps on drawn images; nothing is trained: parameters stay as they are", file=out)
    for number in range(1, steps + 1):
        begin = time.perf_counter()
        value = step(**inputs)
        seconds = time.perf_counter() - begin
        print(
            f"step {number}: loss {float(np.asarray(value).reshape(())):.6g}, "
            f"{format_seconds(seconds)} measured, {format_seconds(plan.seconds)} predicted",
            file=out,
        )


def drawn_inputs(net: Network) -> dict[str, Any]:
    """Normal numbers for images; labels that are one of the classes, of which there are two."""
    random = np.random.default_rng(0)
    inputs: dict[str, Any] = {}
    for name, tensor in net.graph.tensors.items():
        if tensor.kind != "input":
            continue
        if tensor.is_floating:
            drawn = random.standard_normal(tensor.shape, np.float32)
            inputs[name] = drawn.astype(numpy_dtype(tensor.dtype))
        else:
            inputs[name] = random.integers(0, 2, tensor.shape).astype(tensor.dtype)
    return inputs
