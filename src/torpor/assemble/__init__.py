"""Build the running product from the settings: the only wiring."""

from torpor.assemble.program import run_serve, run_up

__all__ = ["run_serve", "run_up"]
