"""Report what the live controllers confine, and the warnings that follow from it."""

from collections.abc import Mapping, Sequence

from torpor.domain.sizes import WorkspaceSize
from torpor.domain.unconfined import port_warnings, size_warnings
from torpor.store.controller_members import Member
from torpor.store.service_store import ServiceStore
from torpor.templates.catalogue import Catalogue


class ConfinementService:
    def __init__(self, store: ServiceStore, catalogue: Catalogue) -> None:
        self._store = store
        self._catalogue = catalogue

    async def members(self) -> Sequence[Member]:
        """The live controllers, with the confinement of each."""
        return await self._store.members()

    async def template_warnings(self) -> Mapping[str, Sequence[str]]:
        """What users should know before they choose a template, by the template's name."""
        warnings = port_warnings(one.confinement for one in await self.members())
        return {one.name: warnings for one in self._catalogue.available.values() if one.takes_command}

    async def size_warnings(self, size: WorkspaceSize) -> Sequence[str]:
        """What is not enforced of this size."""
        return size_warnings((one.confinement for one in await self.members()), size)
