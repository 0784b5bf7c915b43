"""The version of the library: the same on the client and on its workers."""

from __future__ import annotations

import importlib.metadata

from ooc_cudnn.errors import OocError

#: Where it is on the path alone.
NOT_INSTALLED = "of a clone that is not installed"


def version() -> str:
    """Return the version of the library that is installed here."""
    try:
        return importlib.metadata.version("ooc_cudnn")
    except importlib.metadata.PackageNotFoundError:
        return NOT_INSTALLED


def check_version(client_version: str) -> None:
    """Raise OocError on a worker that runs another version than the client."""
    if client_version != version():
        raise OocError(
            f"this worker runs ooc_cudnn {version()}, but the client made its arrays with "
            f"{client_version}: install the same version on both"
        )
