"""`python -m torpor` is `torpor`."""

from torpor.cli.begin import main

main()
