"""Pricing of splits, and the choice among them: one table, one formula, one grid.

To read in this order: `request` (what is asked), `pieces` (the table) with its two builders
`lines` (a whole grid) and `classes` (a few splits, exactly), `rings`, `table` (pieces to
seconds), `search`, `planner`, `plan`. `cutting` makes shorter chains of one that does not fit,
`chain_layouts` chooses memory orders within a chain, `explain` says it all.
"""
