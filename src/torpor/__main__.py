"""`python -m torpor` is `torpor`."""

from torpor.cli.entry_point import main

main()
