"""Users' arrays: what they are and where they live, making and copying them, page-locking."""
