"""The distributed sort: a master and workers that survive any kill and write the same bytes."""
