"""cuDNN's engines: measured, checked against float64, and chosen for the launches of a plan."""
