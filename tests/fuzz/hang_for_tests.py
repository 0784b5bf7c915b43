"""Stands for a worker of which one case hangs."""

import faulthandler
import json
import sys
import time

start, stop, step = map(int, sys.argv[sys.argv.index("--seeds") + 1].split(":"))
for seed in range(start, stop, step):
    print(json.dumps({"begins": seed}), flush=True)
    faulthandler.dump_traceback_later(2, exit=True)
    if seed == 1:
        time.sleep(100)
    faulthandler.cancel_dump_traceback_later()
    print(
        json.dumps({"seed": seed, "function": "f", "seconds": 0, "calls": 1, "findings": []}),
        flush=True,
    )
