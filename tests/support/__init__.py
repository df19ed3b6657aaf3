"""Helpers for tests of several folders: waiting, processes, servers and stages."""
