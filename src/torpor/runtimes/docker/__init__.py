"""Run workspaces as containers of a Docker engine.

Not complete, and so not a choice of the setting `runtime`: see docs/decisions for what is missing.
"""
