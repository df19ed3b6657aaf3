"""Torpor: development workspaces that sleep when their people do, and wake when somebody knocks."""

__version__ = "0.1.0"
