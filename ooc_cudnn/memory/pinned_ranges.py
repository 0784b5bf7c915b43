"""Which host memory counts as pinned, on devices where nothing needs page-locking."""

from __future__ import annotations


class PinnedRanges:
    """Address ranges, by their first byte."""

    def __init__(self) -> None:
        self._bytes: dict[int, int] = {}

    def add(self, pointer: int, nbytes: int) -> None:
        """Count a range as pinned."""
        self._bytes[pointer] = nbytes

    def remove(self, pointer: int) -> None:
        """Count it no more; an unknown one is none of ours."""
        self._bytes.pop(pointer, None)

    def hold(self, pointer: int, nbytes: int) -> bool:
        """Whether a range lies within one of these.

        >>> ranges = PinnedRanges()
        >>> ranges.add(4096, 100)
        >>> ranges.hold(4100, 96), ranges.hold(4100, 97)
        (True, False)
        """
        return any(
            start <= pointer and pointer + nbytes <= start + count
            for start, count in tuple(self._bytes.items())
        )
