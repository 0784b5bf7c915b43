"""The planner's intermediate representation: steps, tensors, live ranges, plans, constraints."""
