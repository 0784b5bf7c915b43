"""Lowering: offsets, plans of calls, spills and prefetches; from a step to a program."""
