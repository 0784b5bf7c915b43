"""Planner of one call: enumerate tilings, cost each in closed form, keep the best that fits.

To read in this order: `request` (what is asked), `pieces` (the table) with its two builders
`grid_table` (a whole grid) and `exact_table` (a few splits, exactly), `slot_rings`, `table` (pieces
to seconds), `search`, `planner`, `plan`. `chain_partition` makes shorter chains of one that does
not fit, `chain_layouts` chooses memory orders within a chain, `explain` says it all.
"""
