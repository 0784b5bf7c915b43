"""``ooc-cudnn plan --torch MODULE:NAME``: how a step of a PyTorch model would run."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import sys
from typing import Any

from ooc_cudnn.cli.arguments import (
    PROGRAM,
    ArrayArgument,
    add_device,
    add_machine,
    add_memory_limit,
    add_memory_limits,
    add_seconds,
    nearest,
    on_device,
    operand,
    positive,
)
from ooc_cudnn.cli.stdout import keep_stdout_clean
from ooc_cudnn.cli.sweep import limits, show
from ooc_cudnn.plotting import check_can_draw
from ooc_cudnn.tensor import DTYPES

EXAMPLE = (
    f"{PROGRAM} plan --torch torchvision.models:resnet50 --input 768x3x224x224 "
    "--memory-limit 16GiB --machine h200"
)


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the options of a model, which stand in place of a function."""
    group = parser.add_argument_group("a PyTorch model, in place of a function")
    group.add_argument(
        "--torch",
        type=_name,
        metavar="MODULE:NAME",
        help="a torch.nn.Module, or what makes one of no arguments: torchvision.models:resnet50",
    )
    group.add_argument(
        "--input", dest="inputs", type=operand, action="append", default=[],
        metavar="SHAPE[@PLACEMENT]",
        help="of each argument of its forward, in order; pinned where no placement is named",
    )  # fmt: skip
    add_memory_limit(group)
    group.add_argument(
        "--forward", action="store_true", help="forward alone, of the model in evaluation"
    )
    group.add_argument("--dtype", choices=tuple(DTYPES), default="float32")
    where = group.add_mutually_exclusive_group()
    add_machine(where)
    add_device(where)
    add_seconds(group)
    group.add_argument("--json", action="store_true", help="print the plan as JSON")
    group.add_argument(
        "--sweep", action="store_true", help="show seconds over memory: plans under several limits"
    )
    add_memory_limits(
        group,
        limits,
        "of a sweep: sizes, or shares of what keeping everything takes (0.5,0.25,2GiB)",
    )
    group.add_argument(
        "--within", type=positive, metavar="SECONDS",
        help="of a sweep: begin no further plan after so many seconds",
    )  # fmt: skip
    group.add_argument("--plot", metavar="FILE", help="draw a sweep (PNG, SVG, PDF)")


def plan_model(arguments: argparse.Namespace) -> int:
    """Plan the model that a command line names, and print the plan."""
    if not arguments.inputs:
        raise ValueError("--torch needs --input, the shape of what the model is called with")
    _check_sweep(arguments)
    placements = {given.placement or "pinned" for given in arguments.inputs}
    if len(placements) > 1:
        raise ValueError(f"--input: all are in one place, not {' and '.join(sorted(placements))}")
    model = build_model(*arguments.torch)
    with on_device(arguments.device, arguments.seconds):
        if arguments.sweep:
            _sweep(model, arguments, *placements)
            return 0
        plan = _planned(model, arguments, *placements)
    print(json.dumps(plan.to_json(), indent=2) if arguments.json else plan.explain())
    return 0


def _check_sweep(arguments: argparse.Namespace) -> None:
    """Refuse what a sweep does not do, and what it alone does."""
    if arguments.sweep:
        if arguments.memory_limit is not None:
            raise ValueError("--memory-limit is of one plan, and --sweep makes many; leave one out")
        if arguments.plot is not None:
            check_can_draw(arguments.plot)  # before the time is spent
        return
    for option, given in (
        ("--memory-limits", arguments.limits),
        ("--within", arguments.within),
        ("--plot", arguments.plot),
    ):
        if given is not None:
            raise ValueError(f"{option} is of a sweep: add --sweep")


def _planned(model: Any, arguments: argparse.Namespace, placement: str) -> Any:
    from ooc_cudnn.torch import plan

    shapes, asked = _asked(model, arguments, placement)
    return plan(model, *shapes, memory_limit=arguments.memory_limit, **asked)


def _sweep(model: Any, arguments: argparse.Namespace, placement: str) -> None:
    """Plan the model under several limits, and show what comes of it."""
    from ooc_cudnn.torch.sweeping import SHARES, sweep

    shapes, asked = _asked(model, arguments, placement)
    within = math.inf if arguments.within is None else arguments.within
    with keep_stdout_clean():
        trade = sweep(
            model, *shapes, memory_limits=arguments.limits or SHARES, within_seconds=within, **asked
        )
    show(trade, arguments)


def _asked(
    model: Any, arguments: argparse.Namespace, placement: str
) -> tuple[list[tuple[int, ...]], dict[str, Any]]:
    """Make a model ready to be planned; return the shapes of its inputs, and how it is planned."""
    import torch

    model.to(getattr(torch, arguments.dtype)).train(not arguments.forward)
    inputs: list[ArrayArgument] = arguments.inputs
    return [given.shape for given in inputs], {
        "machine": arguments.machine,
        "placement": placement,
        "with_gradients": not arguments.forward,
    }


def build_model(module: str, name: str) -> Any:
    """The model that a module has under a name, or that what is there makes of no arguments.

    Raises
    ------
    ModuleNotFoundError
        If PyTorch or the module is not there.
    ValueError
        If the module fails while it is imported, or has no such name.
    TypeError
        If that is no model.
    """
    import torch

    here = os.getcwd()
    sys.path.insert(0, here)  # the user's own files, as `python -m` finds them
    try:
        namespace = importlib.import_module(module)
    except ModuleNotFoundError:
        raise
    except Exception as error:  # it may do anything, and be built for another torch
        raise ValueError(
            f"--torch: importing {module} failed, as in Python without {PROGRAM}: "
            f"{type(error).__name__}: {error}"
        ) from error
    finally:
        sys.path.remove(here)
    if not hasattr(namespace, name):
        raise ValueError(f"--torch: {module} has no {name!r}{nearest(name, dir(namespace))}")
    model = getattr(namespace, name)
    if not isinstance(model, torch.nn.Module) and callable(model):
        model = model()
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"--torch: {module}:{name} is a {type(model).__name__}, not a model")
    return model


def _name(text: str) -> tuple[str, str]:
    """Read "torchvision.models:resnet50"."""
    module, _, name = text.partition(":")
    if not module or not name:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not MODULE:NAME; give one like torchvision.models:resnet50"
        )
    return module, name
