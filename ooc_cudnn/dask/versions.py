"""The version of the library: the same on the client and on its workers."""

from __future__ import annotations

import ooc_cudnn
from ooc_cudnn.errors import OocError


def version() -> str:
    """Of the library here, which need not be installed: a clone on the path will do."""
    return ooc_cudnn.__version__


def check_version(client_version: str) -> None:
    """Raise OocError on a worker that runs another version than the client."""
    if client_version != version():
        raise OocError(
            f"this worker runs ooc_cudnn {version()}, but the client made its arrays with "
            f"{client_version}: install the same version on both"
        )
