"""The directive ``command-help``: what ``ooc-cudnn`` and each of its commands say to --help."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from ooc_cudnn import cli
from ooc_cudnn.cli.plan import function_parser
from ooc_cudnn.functions.call.decorator import FUNCTIONS

WIDTH = "90"


class CommandHelp(SphinxDirective):
    """A block for the program, and a section for each command."""

    def run(self) -> list[nodes.Node]:
        """Return the nodes that stand in the directive's place."""
        made: list[nodes.Node] = []
        with mock.patch.dict(os.environ, COLUMNS=WIDTH):
            for name, parser in parsers():
                block = nodes.literal_block("", parser.format_help(), language="text")
                if name:
                    title, ids = nodes.title("", name), [nodes.make_id(name)]
                    made.append(nodes.section("", title, block, ids=ids))
                else:
                    made.append(block)
        return made


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield the program's parser with an empty name, then those of its commands and functions."""
    program = cli.commands._parser()
    yield "", program
    for action in program._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, parser in action.choices.items():
                yield name, parser
                if name == "plan":
                    yield from ((f"plan {each}", function_parser(each)) for each in FUNCTIONS)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to Sphinx."""
    app.add_directive("command-help", CommandHelp)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
