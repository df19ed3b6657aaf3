"""Rendering of records as text, in colour or plain."""
