"""`python -m torpor` is `torpor`."""

from torpor.cli.main import main

main()
