"""Device and pinned memory: the arena and its limit, what is lent again, copies as 2-D blocks.

`arena` and `loans` are device memory, `limit` how much there may be of it; `pinned` and
`host_memory` that of the host; `offset_assignment` assigns offsets to what lives when; `blocks` are
copies.
"""

from collections.abc import Callable

#: Each gives back what somebody keeps; devices enter theirs.
_givers: list[Callable[[], None]] = []


def release() -> None:
    """Give back all memory that the library keeps for later, on every device in use.

    The block that calls work in, device memory and pinned memory whose arrays are gone, staging
    slabs, and what CuPy's pool keeps. Arrays that you hold stay. Waits for the device, and for
    calls of other threads.

    Examples
    --------
    >>> import ooc_cudnn
    >>> ooc_cudnn.memory.release()
    """
    for give_back in _givers:
        give_back()


def on_release(give_back: Callable[[], None]) -> None:
    """Have `release` call something that keeps memory for later."""
    _givers.append(give_back)
