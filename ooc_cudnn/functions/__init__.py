"""The public functions: thin; each builds a chain, asks for a plan and runs it."""
