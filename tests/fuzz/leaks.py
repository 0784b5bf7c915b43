"""What the library holds between calls: threads, files, device bytes and pinned bytes."""

from __future__ import annotations

import gc
import os
import threading

from ooc_cudnn.devices import get_device
from ooc_cudnn.memory import pinned, release

#: Threads of a pool, which begin whenever a call is first large enough for them, eight at most; and
#: that of the bars that PyTorch 2.11 shows where it looks into a Function.
POOLED = "ooc_cudnn helper", "tqdm_monitor"


class Leaks:
    """Counts after everything that can be given back has been; compared from time to time.

    Threads and files are compared with the fullest state of the first calls, in which pools and
    libraries start; bytes with none at all.
    """

    def __init__(self, device):
        self.device = get_device(device)
        self.most = {}

    def held(self):
        while gc.collect():  # autograd's nodes lie between cycles: one lets go of the next
            pass
        release()
        return {
            "threads": sum(not each.name.startswith(POOLED) for each in threading.enumerate()),
            "files": len(os.listdir("/proc/self/fd")),
            "device bytes": self.device.arena.held_bytes,
            "pinned bytes": pinned.held_bytes(self.device),
        }

    def settle(self):
        """Take what is held now as no leak, but for bytes."""
        for name, count in self.held().items():
            self.most[name] = max(self.most.get(name, 0), 0 if "bytes" in name else count)

    def findings(self):
        """What is held beyond that, a line each; each is told once."""
        found = []
        for name, count in self.held().items():
            if count > self.most[name]:
                found.append(f"leak: {count} {name}, {self.most[name]} before")
                self.most[name] = count
        return found
