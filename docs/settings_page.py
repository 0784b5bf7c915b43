"""Write docs/settings.md from the table in the code: ``python docs/settings_page.py``.

`--check` says whether the page is up to date, and changes nothing; a test runs it.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from ooc_cudnn.settings_table import SETTINGS, Setting

PAGE = Path(__file__).parent / "settings.md"
BEGIN = "<!-- settings: begin (python docs/settings_page.py) -->"
END = "<!-- settings: end -->"


def main(argv: list[str] | None = None) -> int:
    """Write the page, or check it; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; 1 if out of date")
    arguments = parser.parse_args(argv)
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    made = f"{before}{BEGIN}\n\n{generated()}\n{END}{after}"
    if arguments.check:
        if made != text:
            sys.stderr.write("docs/settings.md is out of date: python docs/settings_page.py\n")
        return int(made != text)
    PAGE.write_text(made, encoding="utf-8")
    return 0


def generated() -> str:
    """Return what stands between the marks: the table, then a section for each setting."""
    lines = [
        "| setting | default | environment variable |",
        "|---|---|---|",
        *(_row(each) for each in SETTINGS),
        "",
        *(line for each in SETTINGS for line in _section(each)),
    ]
    return "\n".join(lines)


def _row(setting: Setting) -> str:
    name, variable = setting.name, setting.environment_variable
    return f"| [`{name}`](#{name}) | `{setting.default!r}` | `{variable}` |"


def _section(setting: Setting) -> Iterator[str]:
    yield f"## {setting.name}"
    yield ""
    yield f"Default `{setting.default!r}`; in the environment `{setting.environment_variable}`."
    for paragraph in (setting.meaning, setting.trade_off):
        yield ""
        yield from textwrap.wrap(_as_code(paragraph), 100, break_long_words=False)
    yield ""


def _as_code(text: str) -> str:
    """Set quoted values in a fixed width: 'auto' is `"auto"`. An apostrophe follows a letter."""
    return re.sub(r"(?<!\w)'([^']+)'", r'`"\1"`', text)


if __name__ == "__main__":
    raise SystemExit(main())
