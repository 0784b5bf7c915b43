"""Planned steps as users run them: training, inference, two parts, files of plans."""
