"""The commands of the distributed sort, and their output."""
