"""The programs that a workspace can run, described as data."""
