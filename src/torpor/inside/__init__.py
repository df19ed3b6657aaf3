"""The programs that run inside a workspace. Standard library only; they are mounted there and started by path."""
