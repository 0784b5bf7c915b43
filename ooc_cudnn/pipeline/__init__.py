"""The pipeline: planning a call, scheduling its steps, executing and tracing them.

To read in this order: `program` (tasks and moves, and the tensors between them; `parts` cuts it
in two), `schedule` (a program's `steps` in order: `task_steps` makes those of a task, piece by
piece as `loops` says, and `issuing` what they wait for), `hazards` (who used which memory last,
and so what waits for what). Then what runs it: `execute`, with `offsets` and `views` (where
buffers lie), `bound_steps` (what is bound already), `ahead` (how far the host may run ahead) and
`repeated` (what is recorded as a graph); or what replays it on a virtual clock: `simulate`, of
`virtual_steps`. `trace` says what happened. `verify`, `exactness` and `checked_engines` compare
with float64.
"""
