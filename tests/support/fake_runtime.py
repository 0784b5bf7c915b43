"""What staging and runs ask of CUDA, done at once in host memory: so they are tested anywhere."""

import ctypes
import types


def fake_cupy(asked):
    """A `cupy` whose device memory is the host's; what is asked of it is appended to a list."""

    def memcpy(to, from_, nbytes, kind, stream):
        asked.append(("memcpy", stream, nbytes))
        ctypes.memmove(to, from_, nbytes)

    runtime = types.SimpleNamespace(
        eventCreateWithFlags=lambda flags: object(),
        eventDestroy=lambda event: None,
        eventRecord=lambda event, stream: asked.append(("record", stream)),
        eventSynchronize=lambda event: asked.append(("wait for", event)),
        memcpyAsync=memcpy,
        streamWaitEvent=lambda stream, event: None,
        streamSynchronize=lambda stream: asked.append(("synchronize", stream)),
    )
    return types.SimpleNamespace(cuda=types.SimpleNamespace(runtime=runtime))


class Stream:
    """A stream by its number."""

    def __init__(self, ptr):
        self.ptr = ptr
