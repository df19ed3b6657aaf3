"""How do settings become a running product? The only wiring there is."""

from torpor.assemble.program import run_serve, run_up

__all__ = ["run_serve", "run_up"]
