"""Pictures of a plan: its timeline."""
