"""Tables, pictures and quoted figures of README.md and docs, made of the stored records.

``python -m benchmarks.regenerate`` writes them all. What was not measured, and a contender that
could not run, is shown as such, with the reason.
"""
