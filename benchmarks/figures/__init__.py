"""Tables and pictures of what `benchmarks.contenders` measured: of benchmarks/results/bench.

``python -m benchmarks.figures.pictures`` draws, ``python -m benchmarks.bench_page`` writes the
page that shows them. A case that was not measured and a contender that could not run are shown as
such, with the reason.
"""
