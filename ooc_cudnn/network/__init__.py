"""Networks: graphs of nodes, planned and run as steps under a memory limit.

From the ground up: `ir` (steps, tensors, live ranges, plans) and `solver`; `graph` (what users
build, autodiff) and `cost`; `passes` rewrite steps; `lowering` makes programs of them, `policies`
decide by rule; `bound` and `search` look for the fastest plan; `runtime` runs it, `tiled` does so
tile by tile, `tradeoff` and `report` draw it. `network` is the class that users call.
"""
