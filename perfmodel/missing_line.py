"""Error of a machine model that lacks a line."""

from __future__ import annotations

from collections.abc import Iterable


class MissingLineError(KeyError, ValueError):
    """A machine model has no line for what is asked of it.

    Parameters
    ----------
    what : str
        What would have to be measured.
    known : iterable of str
        What was.

    Examples
    --------
    >>> print(MissingLineError("copies in of 'pinned' memory", ["disk"]))
    the machine model has no line for copies in of 'pinned' memory; it has some for disk. Run \
'ooc-cudnn calibrate' to measure it, or name another model.
    """

    def __init__(self, what: str, known: Iterable[str]) -> None:
        self.what, self.known = what, tuple(known)
        super().__init__(what, self.known)

    def __str__(self) -> str:
        # KeyError would show the arguments
        return (
            f"the machine model has no line for {self.what}; it has some for "
            f"{', '.join(self.known) or 'nothing'}. Run 'ooc-cudnn calibrate' to measure it, or "
            "name another model."
        )
