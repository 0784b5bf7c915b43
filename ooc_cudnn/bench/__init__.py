"""The benchmark suite: named cases as data, one runner, baselines measured in the same run.

``ooc-cudnn bench`` is its command line. `case` says what a case is and `cases` lists them;
`contender` is the contract of whatever is timed, the library and its baselines alike; `runner`
times, verifies and records.
"""
