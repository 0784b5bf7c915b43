"""Packages that parts of the library need, and the extras that bring them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def brought_by(extra: str, *packages: str) -> Iterator[None]:
    """While modules are imported, say which extra brings a package that is not there.

    >>> with brought_by("torch", "no_such_package"):
    ...     import no_such_package
    Traceback (most recent call last):
    ...
    ModuleNotFoundError: ooc_cudnn.torch needs no_such_package: pip install "ooc_cudnn[torch]"
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in packages:
            raise
        said = f'ooc_cudnn.{extra} needs {missing}: pip install "ooc_cudnn[{extra}]"'
        raise ModuleNotFoundError(said, name=missing) from error
