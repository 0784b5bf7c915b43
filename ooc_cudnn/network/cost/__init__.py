"""Cost model: seconds of computing and of copies, in whole and at the least."""
