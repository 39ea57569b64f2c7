"""``navigator.storage`` of the simulated browser."""

from __future__ import annotations

from tabhelm.ports.storage import StorageEstimate
from tabhelm.simulated.disk import Storage


class SimulatedStorage:
    """Agrees to be persistent, unless ``Faults.persistence_refused``."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def persist(self) -> bool:
        if not self._storage.world.faults.persistence_refused:
            self._storage.persistent = True
        return self._storage.persistent

    async def persisted(self) -> bool:
        return self._storage.persistent

    async def estimate(self) -> StorageEstimate:
        return StorageEstimate(self._storage.size, self._storage.world.faults.quota)
