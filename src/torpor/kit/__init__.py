"""The kit: a folder with the interpreter and the programs that Torpor runs in any Linux image."""
