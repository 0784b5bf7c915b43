"""Prints the idioms that differ from eager, and exits with their number."""

from __future__ import annotations

import argparse
import sys
import time

import pytest
import torch

import ooc_cudnn
from tests.support import searches
from tests.support.few_plans import compare_few
from tests.torch.idioms.judge import (
    as_expected,
    by_dynamo,
    counted,
    passes,
    under_an_ample,
    under_the_least,
)
from tests.torch.idioms.table import TABLE


def main():
    """Judge all idioms, or those whose names have a word in them."""
    parser = argparse.ArgumentParser(prog="python -m tests.torch.idioms", description=__doc__)
    parser.add_argument("-k", metavar="WORD", default="", help="only names with this word")
    parser.add_argument("--dynamo", action="store_true", help="what TorchDynamo makes of them")
    parser.add_argument("--ample", action="store_true", help="not under the least limit as well")
    parser.add_argument("-v", action="store_true", help="say it of those that pass, too")
    asked = parser.parse_args()
    torch.set_num_threads(1)  # threads for tensors as small as these take longer
    ooc_cudnn.settings(device="host", machine="host", progress=False)
    limits = {"ample": under_an_ample, "least": under_the_least}
    taken = [idiom for idiom in TABLE if asked.k in idiom.name]
    bad = 0
    if asked.ample:
        del limits["least"]
    with pytest.MonkeyPatch.context() as patch, searches.shared():
        compare_few(patch)
        for idiom in taken:
            wrong = False
            for where, judged in (
                {"dynamo": lambda each: (by_dynamo(each), None)} if asked.dynamo else limits
            ).items():
                began = time.perf_counter()
                verdict, _ = judged(idiom)
                right = (as_expected if asked.dynamo else passes)(idiom, verdict)
                wrong |= not right
                if asked.v or not right:
                    took = f"{time.perf_counter() - began:.1f} s"
                    print(
                        f"{verdict.kind:9} {where}: {idiom.name} ({took}) {verdict.why[:250]}",
                        flush=True,
                    )
            bad += wrong
    print(f"{len(taken)} idioms, {bad} differ from what the table expects; {counted(taken)}")
    return min(bad, 255)


sys.exit(main())
