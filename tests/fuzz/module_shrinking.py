"""A shorter program that fails in the same way: statements are taken away one by one."""

from __future__ import annotations

import ast
import copy
import time
from dataclasses import replace

from tests.fuzz.draw_module import REFUSALS
from tests.fuzz.modules import observe, reproduction, run_module

#: Functions of each program that stay as they are.
KEPT = {"varied", "data", "ready", "set_where", "halved", "make", "floats", "loss", "backward"}


def shrunk(program, chosen=None, seconds=120.0):
    """The source of the shortest program that was found in that time, as a reproduction."""
    device = getattr(chosen, "device", "host")
    verdict = run_module(program, device)
    kind = kind_of(verdict)
    end, before = time.perf_counter() + seconds, None
    while kind is not None and program.source != before:
        before = program.source
        for at in reversed(range(len(list(statements(parsed(before)[1]))))):
            for source in attempts(program.source, at):
                if time.perf_counter() > end:
                    return reproduction(program, verdict, device)
                tried = replace(program, source=source)
                try:
                    observe(source)
                    found = run_module(tried, device)
                except REFUSALS:
                    continue
                if kind_of(found) == kind:
                    program, verdict = tried, found
                    break
    return reproduction(program, verdict, device)


def kind_of(verdict):
    """What must stay: how the first finding begins."""
    if not verdict.findings:
        return None
    first = verdict.findings[0]
    return first[:60] if first.startswith("raises") else first.split(" ")[0]


def parsed(source):
    """What stays of a program, and the tree of the rest."""
    head, name, rest = source.partition("def set_where")
    return head, ast.parse(name + rest)


def attempts(source, at):
    """The program without a statement; or with a value that was there before in its place."""
    head, tree = parsed(source)
    body, index = list(statements(tree))[at]
    for instead in substitutes(body[index]):
        shorter = copy.deepcopy(tree)
        where, _ = list(statements(shorter))[at]
        where[index : index + 1] = instead
        if not where:
            where.append(ast.Pass())
        yield head + ast.unparse(ast.fix_missing_locations(shorter)) + "\n"


def statements(tree):
    """Each statement that may go: the list that it is in, and where."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name in KEPT:
            continue
        for field in ("body", "orelse"):
            body = getattr(node, field, None)
            if not isinstance(body, list) or isinstance(node, ast.Lambda):
                continue
            for index, statement in enumerate(body):
                named = getattr(statement, "name", "")
                if named in KEPT or "super" in ast.unparse(statement)[:8]:
                    continue
                yield body, index


def substitutes(statement):
    """What may stand in place of a statement: nothing; of its value a part of it."""
    yield []
    if isinstance(statement, ast.With):
        yield statement.body
    if isinstance(statement, ast.Assign):
        parts = [
            node for node in ast.walk(statement.value)
            if isinstance(node, ast.Name | ast.Call) and node is not statement.value
        ]  # fmt: skip
        for part in parts[:6]:
            yield [ast.Assign(targets=statement.targets, value=part)]
    if isinstance(statement, ast.Return) and isinstance(
        statement.value, ast.Tuple | ast.List | ast.Dict
    ):
        for part in getattr(statement.value, "elts", None) or statement.value.values:
            yield [ast.Return(value=part)]
