"""Memory: the arena and its limit, users' arrays, pinned memory, copies between placements."""


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
    from ooc_cudnn import interrupts
    from ooc_cudnn.devices import loaded_devices  # they import this package

    for device in loaded_devices():
        with interrupts.deferred(), device.arena.lock:
            device.release_caches()
