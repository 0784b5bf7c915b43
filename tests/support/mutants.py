"""Judge a sample of tests by mutants: what all cases find, the sample should find.

    python -m tests.support.mutants tests/torch/test_modules.py \\
        --code "ooc_cudnn/torch/lowering/rules/*.py"

A mutant is one function of the code with one small edit: a comparison, an off by one, a dropped
condition. It runs in a fork of a process that has collected the tests: first the cases of
`make test`, then those that `make test-all` has beside them, and the former again as they run
there, until one fails. A line is printed
for each mutant: its edit, and `sample`, `REST` (all cases find it, and the sample does not) or
`survived`, with the test. Only functions that some of the tests call are edited.
"""

from __future__ import annotations

import argparse
import ast
import glob
import importlib
import json
import os
import random
import signal
import sys
import threading
import time
import types
from functools import partial
from pathlib import Path

SWAPPED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


def edits(function):
    """The edits that a function's body may have, each a call that makes it in the tree."""
    for node in (node for statement in function.body for node in ast.walk(statement)):
        if isinstance(node, ast.Compare):
            for at, op in enumerate(node.ops):
                yield (
                    node,
                    lambda node=node, at=at, op=op: node.ops.__setitem__(at, SWAPPED[type(op)]()),
                )
        elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPPED:
            yield node, lambda node=node: setattr(node, "op", SWAPPED[type(node.op)]())
            if isinstance(node, ast.BoolOp):  # drop the last condition
                yield node, lambda node=node: node.values.__setitem__(-1, node.values[0])
        elif isinstance(node, ast.If | ast.IfExp | ast.While):
            yield node, lambda node=node: setattr(node, "test", ast.UnaryOp(ast.Not(), node.test))
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield node, lambda node=node: setattr(node, "value", node.value + 1)
        elif isinstance(node, ast.Constant) and type(node.value) is bool:
            yield node, lambda node=node: setattr(node, "value", not node.value)


def functions_of(module):
    """The functions and methods that a module defines."""
    members = list(vars(module).values())
    members += [m for c in members if isinstance(c, type) for m in vars(c).values()]
    for member in members:
        for within in ("fget", "func", "__func__", "__wrapped__"):
            member = getattr(member, within, None) or member
        is_function = isinstance(member, types.FunctionType)
        if is_function and member.__code__.co_filename == module.__file__:
            yield member


def first_line(node):
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def codes(code):
    """A code object and those within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)


def parsed(function):
    """The tree of a function's file, and its node there."""
    tree = ast.parse(Path(function.__code__.co_filename).read_text(encoding="utf-8"))
    where = function.__code__.co_name, function.__code__.co_firstlineno
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and (node.name, first_line(node)) == where:
            return tree, node
    raise LookupError(f"no function {where} in {function.__code__.co_filename}")


def mutant(function, draw):
    """The code of a function with one of its edits, and what the edit is."""
    tree, node = parsed(function)
    edited, edit = draw.choice(list(edits(node)))
    before = ast.unparse(edited).splitlines()[0][:70]
    edit()
    after = ast.unparse(ast.fix_missing_locations(edited)).splitlines()[0][:70]
    path, where = function.__code__.co_filename, (node.name, first_line(node))
    (code,) = (
        code
        for code in codes(compile(tree, path, "exec"))
        if (code.co_name, code.co_firstlineno) == where
    )
    return code, f"{os.path.relpath(path)}:{edited.lineno} {before} -> {after}"


class Judging:
    """A pytest plugin: in place of one run of the tests, one a mutant."""

    def __init__(self, options):
        self.options = options

    def pytest_runtestloop(self, session):
        from tests.support import sampling

        out = sampling.left_out(session.items)
        sample = [item for item in session.items if item not in out]
        rest = sorted(out, key=session.items.index)
        draw = random.Random(self.options.seed)
        draw.shuffle(rest)
        print(f"{len(sample)} cases of the sample, {len(rest)} beside them", flush=True)
        self._fails(sample[0], None)  # what is imported late
        called, failing, seconds = in_fork(lambda: self._try_unchanged(sample))
        print(f"the sample takes {seconds:.0f} s; fail unchanged: {failing}", flush=True)
        sample = [item for item in sample if item.nodeid not in failing]
        for function in self._drawn(draw, {tuple(each) for each in called}):
            code, edit = mutant(function, draw)
            verdict = in_fork(partial(self._judged, function, code, sample, rest))
            print(f"{edit}\n    {verdict or 'sample: the process died'}", flush=True)
        return True

    def _drawn(self, draw, called):
        """Functions to edit, each once, of those that tests call."""
        found = []
        for pattern in self.options.code:
            for path in sorted(glob.glob(pattern, recursive=True)):
                module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
                found += [
                    function
                    for function in functions_of(module)
                    if (path, function.__code__.co_firstlineno) in called
                    and any(edits(parsed(function)[1]))
                ]
        draw.shuffle(found)
        return found[: self.options.count]

    def _judged(self, function, code, sample, rest):
        from tests.support import sampling

        function.__code__ = code
        began = time.process_time()
        for whole, items in ((False, sample), (True, [*rest, *sample])):
            sampling.EVERY = whole
            for item, following in zip(items, [*items[1:], None], strict=True):
                if whole and time.process_time() - began > self.options.seconds:
                    return "survived (not all of the rest was tried)"
                signal.alarm(120)  # what hangs is found
                if self._fails(item, following):
                    return f"{'REST' if whole else 'sample'}: {item.nodeid}"
        return "survived"

    def _try_unchanged(self, items):
        """What is called (path, line), which tests fail, and the CPU seconds."""
        called, root = set(), f"{Path(__file__).parents[2]}/"

        def note(frame, event, _):
            if event == "call" and (path := frame.f_code.co_filename).startswith(root):
                called.add((path.removeprefix(root), frame.f_code.co_firstlineno))

        began = time.process_time()
        sys.setprofile(note)
        threading.setprofile(note)
        after = [*items[1:], None]
        failing = [i.nodeid for i, then in zip(items, after, strict=True) if self._fails(i, then)]
        return sorted(called), failing, time.process_time() - began

    def _fails(self, item, following):
        self.has_failed = False
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        return self.has_failed

    def pytest_runtest_logreport(self, report):
        self.has_failed |= report.failed


def in_fork(work):
    """What a call returns in a fork of this process; None where that died."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reads)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        with os.fdopen(writes, "w") as out:
            json.dump(work(), out)
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--code", nargs="+", required=True, help="what is edited: paths, or globs")
    parser.add_argument("--count", type=int, default=12, help="mutants, each of another function")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60, help="CPU time of one mutant")
    parser.add_argument("tests", nargs="+", help="files or folders of tests")
    options = parser.parse_args()
    os.environ["OOC_TESTS_EVERY_CASE"] = "1"
    import pytest

    arguments = [*options.tests, "-q", "-s", "-p", "no:cacheprovider", "-o", "timeout=0"]
    return pytest.main(arguments, plugins=[Judging(options)])


if __name__ == "__main__":
    sys.exit(main())
