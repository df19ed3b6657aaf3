"""What runs inside a workspace? Standard library only: it is mounted there and started by file path."""
