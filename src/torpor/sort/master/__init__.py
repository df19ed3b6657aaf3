"""The master's program and the service that its workers call."""
