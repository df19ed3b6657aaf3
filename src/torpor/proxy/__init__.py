"""The proxy: one port, a routing decision for each request, then bytes."""
