"""Run the card's tests in many processes side by side: `python3 -m tests.gpu.shards [COUNT]`.

Most of their time is the host's, which builds cuDNN's plans: one process takes half an hour, 14 on
16 cores two minutes. Needs nothing but pytest. What follows COUNT goes to pytest.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

#: A shard that takes more than its part of so many seconds hangs: it is killed, and what it said is
#: shown. One process takes 1,800.
MOST_SECONDS = 7000.0
FOLDERS = ("tests/gpu", "tests/kernels")


def main(arguments):
    count = int(arguments[0]) if arguments else max(1, (os.cpu_count() or 2) - 2)
    traces = ("-o", "faulthandler_timeout=200")
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", *traces, *FOLDERS, *arguments[1:]]
    failed, until = 0, time.monotonic() + MOST_SECONDS / count
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as files:
        paths = [Path(folder, f"{at}.log") for at in range(count)]
        running = [
            subprocess.Popen(
                command,
                env=os.environ | {"OOC_TESTS_SHARD": f"{at}/{count}"},
                stdout=files.enter_context(path.open("w")),
                stderr=subprocess.STDOUT,
            )
            for at, path in enumerate(paths)
        ]
        for at, (process, path) in enumerate(zip(running, paths, strict=True)):
            try:
                status = process.wait(max(until - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()  # nobody waits for it: what hangs in the driver cannot be killed
                status = "hangs"
            lines = path.read_text().splitlines()
            shown = lines[-1:] if status == 0 else lines
            print(f"shard {at}: exit {status}", *shown, sep="\n  ", flush=True)
            failed += status not in (0, 5)  # 5: no test in this shard
    print(f"{count} shards, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
