"""Drawn calls of every public function, against float64 references that are not this library's.

One case is one seed: `python -m tests.fuzz --device host --seed 1234` draws it again, on any
machine. The way of a case: `cases` draws what is asked (a `Problem`, from the `draw_` files), where
its operands lie and under which settings; `runner` lays the operands, calls, and checks the result,
the inputs, the bytes around `out` and the memory; `workers` runs many under a watchdog.

With `--modules` a case is a program of a `torch.nn.Module` (`draw_module`, of what the `module_`
files know), which is run by PyTorch and under a limit (`modules`) and compared (`compare_modules`).
"""
