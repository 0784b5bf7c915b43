"""Figures on the pages that are of no measurement: page -> words -> where they are from."""

from __future__ import annotations

from collections.abc import Mapping

_PAPER = "the paper"
_DERIVED = "derived on the page from the paper's figures"
_AIM = "a bound or a setting of the code"
_SHEET = "the card's data sheet"

STATED: Mapping[str, Mapping[str, str]] = {
    "docs/maintaining.md": {
        "takes more than 5 seconds once it is warm": _AIM,
        "took 564 ms, and in TF32": "a record that is not stored",
        "no difference to it, 351 ms": "a record that is not stored",
    },
    "docs/tutorial.md": {"takes 90 % of what is free": _AIM},
    "docs/model-method.md": {
        "computing takes 0.2 ms or more": _AIM,
        "or 0.1 s if that is more": _AIM,
        "30 pieces or more | within 5 %": _AIM,
        "a smaller last piece | within 2 %": _AIM,
        "It should take about 60 s on an H200": _AIM,
        "20 s on the host device, and 5 s with": _AIM,
        "lie more than 25 % from their median (files: 100 %)": _AIM,
    },
    "docs/paper.md": {
        "more than 8 % off the paper's": _AIM,
        "than the paper's 3.4 % off": _PAPER,
        "90 % of 16 GiB": _AIM,
        "Arithmetic: 7629 GFLOPS": _PAPER,
        "Few channels: 7.36 ns": _DERIVED,
        "4332 GFLOPS at 64 channels": _PAPER,
        "s = 7.36e-9 s": _DERIVED,
        "Link: 9.31 GB/s each way": _DERIVED,
        "The paper states 8 GB/s one way": _PAPER,
        "2.474e12 flops / 2574e9 = 0.961 s, 8.59e9 B / 0.961 s = 8.94 GB/s": _DERIVED,
        "2.474e12 flops / 2681e9 = 0.923 s, 8.59e9 B / 0.923 s = 9.31 GB/s": _DERIVED,
        "At 8 GB/s neither could take less than 1.07 s": _DERIVED,
        "10 us for each copy": "assumed, as the page says",
        "run at 75 % of the 732 GB/s of the data sheet": _SHEET,
        "took 42 % of the time": _PAPER,
        "So 42 % means": _PAPER,
        "l at 8 to 9.31 GB/s": _DERIVED,
        "18 (4332 GFLOPS)": _DERIVED,
        "182 (6787 GFLOPS) | 134 to 115 | 40 to 44 %": _DERIVED,
        "649 at least (7629 GFLOPS) | 268 to 231 | 55 % at least": _DERIVED,
        "and 42 % would take a link of 22 GB/s": _DERIVED,
        "paper's 5 to 27 %": _PAPER,
        "7629 of 9300 GFLOPS": _SHEET,
    },
}
