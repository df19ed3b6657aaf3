"""Refuse to build a wheel without the dashboard and the terminal, which set-up builds and Git does not track."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# Set-up writes the stamp last, so that a folder with a stamp is complete.
BUILT = {"the dashboard": "src/torpor/dashboard/built/.stamp", "the terminal": "src/torpor/inside/assets/vendor/.stamp"}


class WheelHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        # Set-up installs the package in place before it builds them.
        if version == "editable":
            return
        missing = [name for name, stamp in BUILT.items() if not (Path(self.root) / stamp).is_file()]
        if missing:
            raise SystemExit(
                f"Cannot build a wheel: {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not built. "
                f"Run `make setup` in {self.root} and build again."
            )
