"""Checkpoints of a simulated cluster: all units as they are at the instant of a cut, in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from pslib.coordinator.checkpoint_barrier import moment_of_cut
from pslib.server import shard_thread
from pslib.server.shard_thread import _Loads
from pslib.shard.partition_image import adopt_block, adopt_rows, image_of
from pslib.shard.shard import Shard
from pslib.table.partition_map import units_of_mask
from pslib.update_log.shard_log import ShardLog
from pslib.wire.messages import Adopt, CheckLoad, Image, Load

if TYPE_CHECKING:
    from tests.simulation.cluster.world import World

__all__ = ["Checkpoints", "Loads"]


class Checkpoints:
    """Contents of the files that servers would have written; each method is called after its cut."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.tables: dict[str, dict[str, Any]] = {}
        """The progress of every lease, by checkpoint."""
        self._images: dict[str, dict[int, Image]] = {}
        self.saved = ""
        """The last that the coordinator knows of."""
        self.too_large = 0
        """The number of next checkpoints that find no space."""
        self.refused = self.saved_after_refusal = 0

    def path_of(self, number: int) -> str:
        """Return the path of a cut; another life counts its cuts anew."""
        return f"{moment_of_cut(number)} of life {self._world.lives.number}"

    def take(self, number: int, table: dict[str, Any]) -> None:
        """Copy all units now, if a process may ever load them."""
        if self._world.config.recovery != "log":
            shards = self._world.live_shards()
            self.tables[self.path_of(number)] = table
            self._images[self.path_of(number)] = {
                unit: _copied(image_of(shard, unit, 0))
                for shard in shards
                for unit in units_of_mask(shard.owned).tolist()
            }

    def _is_whole(self, number: int) -> bool:
        """Return True if no unit is missing."""
        if self._world.config.recovery == "log":
            return True
        return len(self._images.get(self.path_of(number), ())) == self._world.map.owners.size

    def note_saved(self, path: str) -> bool:
        """The coordinator knows of it; whether that is news."""
        if self.saved == path:
            return False
        self.saved = path
        self.saved_after_refusal += bool(self.refused)
        return True

    def problem(self, number: int) -> str:
        """Why a cut can't become a checkpoint; empty: it can."""
        if self.too_large:
            self.too_large -= 1
            self.refused += 1
            return "No space left on device"
        return "" if self._is_whole(number) else "a unit is missing"

    def keep(self, shard: Shard, message: CheckLoad) -> None:
        """Copy what a shard owns, unless it has been copied: all is as it was at the first look."""
        images = self._images.setdefault(message.path, {})
        for unit in units_of_mask(shard.owned).tolist():
            if unit not in images:
                images[unit] = _copied(image_of(shard, unit, 0))

    def load(self, shard: Shard, message: Load) -> None:
        """Replace what a shard owns."""
        journal, shard.journal = shard.journal, None
        for unit in units_of_mask(shard.owned).tolist():
            image = self._images[message.path][unit]
            for store in shard.stores.values() if unit < shard.partitions else ():
                store.drop_partition(unit)
            adopt = Adopt(unit, 0, {}, image.content, image.keys)
            (adopt_rows if unit < shard.partitions else adopt_block)(shard, adopt)
        shard.journal = journal


class Loads(_Loads):
    """A server's memory of the loads of one shard; the files are those of the simulated cluster.

    Parameters
    ----------
    checkpoints : Checkpoints
    log : ShardLog or None
    """

    def __init__(self, checkpoints: Checkpoints, log: ShardLog | None) -> None:
        super().__init__(log)
        self._checkpoints = checkpoints

    def __call__(self, shard: Shard, message: Load | CheckLoad) -> dict[str, Any]:
        with (
            patch.object(shard_thread, "load_into", self._load),
            patch.object(shard_thread, "check_load", self._checkpoints.keep),
        ):
            return super().__call__(shard, message)

    def _load(self, shard: Shard, message: Load) -> dict[str, Any]:
        self._checkpoints.load(shard, message)
        return {"rows": 0}


def _copied(image: Image) -> Image:
    """Blocks change in place."""
    return replace(image, content={name: array.copy() for name, array in image.content.items()})
