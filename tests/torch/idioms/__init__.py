"""The table of idioms: what people write in PyTorch models, each against eager.

`python -m tests.torch.idioms` prints those that differ, and exits with their number; with
`--dynamo` it checks what the table expects of them by TorchDynamo. `-k WORD` takes some.

`table` has all of them, from one file a theme; `judge` runs and compares, `seen` says what of.
"""
