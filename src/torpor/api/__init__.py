"""The HTTP API: the route table, the access rule of each route, JSON in and out, event streams."""
