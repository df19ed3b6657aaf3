"""The front of the product: one port, a routing decision, and then bytes."""
