"""The version of the library, as pyproject.toml has it."""

__version__ = "0.1.0"
