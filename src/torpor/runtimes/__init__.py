"""Implementations of `torpor.ports.Runtime`: containers and volumes."""
