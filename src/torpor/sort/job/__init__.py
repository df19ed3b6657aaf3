"""A whole sort on this machine: options, the pool of workers, status and report."""
