"""The notebooks, and what they share: `story`, `pictures`, `occupancy`, and `execute`."""
