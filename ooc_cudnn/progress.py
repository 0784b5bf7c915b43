"""Progress of long calls: a bar, a user's callable, or nothing, behind one small interface.

The executor makes one reporter per call and tells it how far it is; it does not know which kind it
has. A bar never disturbs the run: where it cannot be written, it is silent. A user's callable may
raise, and that ends the run like any other error.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import math
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Self

from ooc_cudnn.units import format_seconds

if TYPE_CHECKING:
    from ooc_cudnn.settings_table import Progress

SHORTEST_SECONDS: Final = 2.0
"""Calls predicted to take no longer get no bar from ``progress="auto"``."""

_TEXT_WIDTH: Final = 30
_SECONDS_PER_REDRAW: Final = 0.1


class _Held(threading.local):
    """Count of this thread's activities on the line where a bar would be (`activity`)."""

    count = 0


held_line = _Held()


class Reporter:
    """Take in how far a run is, and show nothing: also the base of those that show something.

    Use it as a context manager, so that it is closed whatever happens. `total` is how much there is
    to do, in units of the caller's choice.

    >>> with Reporter(3) as report:
    ...     report.update(3)
    """

    def __init__(self, total: int) -> None:
        self.total = total

    def update(self, done: int) -> None:
        """Say that `done` of `total` is done, counted from the start of the run."""

    def close(self) -> None:
        """Say that the run is over, complete or not. A second time does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class CallableReporter(Reporter):
    """Pass on each update to a user's ``function(done, total)``; what it raises is not caught.

    >>> with CallableReporter(2, lambda done, total: print(done, "of", total)) as report:
    ...     report.update(1)
    1 of 2
    """

    def __init__(self, total: int, function: Callable[[int, int], object]) -> None:
        super().__init__(total)
        self._function = function

    def update(self, done: int) -> None:
        """Call the function."""
        self._function(done, self.total)


class QuietStderr:
    """The current stderr, without its errors: a closed pipe must not end a long run."""

    def write(self, text: str) -> None:
        """Write where that can be."""
        if sys.stderr is not None:  # None under pythonw
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(text)

    def flush(self) -> None:
        """Flush where that can be."""
        if sys.stderr is not None:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.flush()

    def __getattr__(self, name: str) -> object:
        return getattr(sys.stderr, name)


class TextReporter(Reporter):
    """A bar of one line on stderr, for where tqdm is not installed; before it stands `label`."""

    def __init__(self, total: int, label: str) -> None:
        super().__init__(total)
        self._label = label
        self._started = time.monotonic()
        self._drawn = -math.inf
        self._done = 0
        self._open = True
        self._draw()

    def update(self, done: int) -> None:
        """Redraw the line, ten times a second at most."""
        self._done = done
        if time.monotonic() - self._drawn >= _SECONDS_PER_REDRAW:
            self._draw()

    def close(self) -> None:
        """Draw the last state and end the line."""
        if self._open:
            self._open = False
            self._draw(end="\n")

    def _draw(self, end: str = "") -> None:
        self._drawn = time.monotonic()
        share = min(1.0, self._done / self.total) if self.total > 0 else 1.0
        bar = ("#" * math.floor(share * _TEXT_WIDTH)).ljust(_TEXT_WIDTH, ".")
        elapsed = format_seconds(self._drawn - self._started)
        stream = QuietStderr()
        stream.write(f"\r{self._label} [{bar}] {share:4.0%} {elapsed:<12}{end}")
        stream.flush()


class TqdmReporter(Reporter):
    """A tqdm bar: the notebook's in a notebook that has widgets, else a line on stderr."""

    def __init__(self, total: int, label: str) -> None:
        super().__init__(total)
        # tqdm.auto would warn in notebooks without ipywidgets.
        has_widgets = _in_notebook() and importlib.util.find_spec("ipywidgets") is not None
        tqdm = importlib.import_module("tqdm.notebook" if has_widgets else "tqdm").tqdm
        stream = {} if has_widgets else {"file": QuietStderr(), "dynamic_ncols": True}
        self._bar: Any = tqdm(total=total, desc=label, unit="piece", miniters=1, **stream)

    def update(self, done: int) -> None:
        """Advance the bar to `done`."""
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._bar.close()


def reporter(setting: Progress, *, total: int, label: str, predicted_seconds: float) -> Reporter:
    """Choose the reporter of one call.

    Parameters
    ----------
    setting : "auto", bool or callable
        The setting ``progress``. "auto" is a bar if the call is predicted to take more than
        `SHORTEST_SECONDS`, and stderr is a terminal or this is a notebook. True is always a bar.
        Bars are tqdm's, and of plain text without it. A callable is called as
        ``setting(done, total)``.
    total : int
        How much there is to do; `Reporter.update` counts up to it.
    label : str
        What is running, to stand before the bar.
    predicted_seconds : float
        What the plan expects the call to take.

    Examples
    --------
    >>> seen = []
    >>> with reporter(
    ...     lambda done, total: seen.append((done, total)),
    ...     total=2, label="convolution_forward", predicted_seconds=0.1,
    ... ) as report:
    ...     report.update(1)
    ...     report.update(2)
    >>> seen
    [(1, 2), (2, 2)]
    """
    if setting is False:
        return Reporter(total)
    if setting is True or setting == "auto":
        if not shows(setting, predicted_seconds):
            return Reporter(total)
        return TqdmReporter(total, label) if _has_tqdm() else TextReporter(total, label)
    if callable(setting):
        return CallableReporter(total, setting)
    raise TypeError(f"progress={setting!r}; give 'auto', True, False or a callable (done, total)")


def shows(setting: Progress, predicted_seconds: float) -> bool:
    """Return whether `reporter` would show or tell anything of a call."""
    if setting is False or (held_line.count and not callable(setting)):
        return False
    return setting != "auto" or (predicted_seconds > SHORTEST_SECONDS and somebody_watches())


def _has_tqdm() -> bool:
    return importlib.util.find_spec("tqdm") is not None


def somebody_watches() -> bool:
    """True if stderr is a terminal, or this is a notebook."""
    if _in_notebook():
        return True
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except ValueError:  # closed
        return False


def _in_notebook() -> bool:
    """True if this process is a Jupyter kernel, found without importing IPython."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return type(shell).__name__ == "ZMQInteractiveShell"
