"""Device memory is handed out in multiples of a fixed number of bytes."""

#: Bytes.
ALIGNMENT = 256


def align(count: int) -> int:
    """Round bytes up to the alignment of the arena.

    >>> align(1), align(256)
    (256, 256)
    """
    return -(-count // ALIGNMENT) * ALIGNMENT
