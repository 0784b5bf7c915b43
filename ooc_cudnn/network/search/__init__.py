"""Search for the fastest plan: strategies, what they try, and the incumbent."""
