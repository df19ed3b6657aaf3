"""The command line: it asks the API, and says what it heard."""
