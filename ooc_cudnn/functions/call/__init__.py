"""The path of a call: arguments are bound, a plan is found or made, and run."""
