"""Torpor: development workspaces that stop when idle and start on access."""

__version__ = "0.1.0"
