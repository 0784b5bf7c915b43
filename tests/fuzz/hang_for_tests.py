"""Stands for a worker of which one case hangs."""

import faulthandler
import json
import sys
import time


def main(argv):
    start, stop, step = map(int, argv[argv.index("--seeds") + 1].split(":"))
    for seed in range(start, stop, step):
        print(json.dumps({"begins": seed}), flush=True)
        if seed == 1:
            faulthandler.dump_traceback_later(0.2, exit=True)
            time.sleep(1000)
        outcome = {"seed": seed, "function": "f", "seconds": 0, "calls": 1, "findings": []}
        print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main(sys.argv)
