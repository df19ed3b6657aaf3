"""The fake runtime and its engine, loaded only for `runtime=fake`."""
