"""The pipeline: planning a call, scheduling its steps, executing and tracing them."""
