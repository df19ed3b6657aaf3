"""The command line: it calls the API and prints the result."""
