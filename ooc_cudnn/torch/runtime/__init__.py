"""A call of a captured model: its arguments, its step, its results."""
