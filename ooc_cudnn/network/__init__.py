"""Networks: graphs of nodes, and the phases of a step that they become.

What a network is; how a step is planned and run, the engine knows. `tensors` and `phases` are what
it takes; `nodes/` says how an operation becomes phases; `builders/` are the methods of `Network`;
`backward` is the rewrite from a graph to a step.
"""
