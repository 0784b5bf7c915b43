"""What tests share: calls of every function, references in float64, bounds, and stand-ins."""
