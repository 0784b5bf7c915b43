"""The version of the library: the same on the client and on its workers."""

from __future__ import annotations

import importlib.metadata

from ooc_cudnn.errors import OocError


def version() -> str:
    """Of the library that is installed here."""
    return importlib.metadata.version("ooc_cudnn")


def check_version(client_version: str) -> None:
    """Raise OocError on a worker that runs another version than the client."""
    if client_version != version():
        raise OocError(
            f"this worker runs ooc_cudnn {version()}, but the client made its arrays with "
            f"{client_version}: install the same version on both"
        )
