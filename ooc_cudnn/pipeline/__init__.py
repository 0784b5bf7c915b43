"""The pipeline: planning a call, scheduling its instructions, executing and tracing them.

To read in this order: `program` (tasks and moves, and the tensors between them; `segments` cuts it
at pauses), `schedule` (a program's `instructions` in order: `task_steps` makes those of a task,
piece by piece as `loops` says, and `instruction_builder` adds what they wait for), `hazards` (who
used which memory last, and so what waits for what). Then what runs it: `execute`, with
`task_buffers` and `views` (where buffers lie), `bound_steps` (what is bound already), `lookahead`
(how far the host may run ahead) and `graph_replay` (what is recorded as a graph); or what replays
it on a virtual clock: `simulate`, of `virtual_steps`. `trace` says what happened. `verify`,
`exactness` and `check_engines` compare with float64.
"""
