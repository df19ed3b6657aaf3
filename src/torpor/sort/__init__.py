"""The distributed sort: a master and workers that may be killed at any point and still write the same bytes."""
