"""The messages between master and workers: gRPC calls, conversion, tokens, TLS."""
