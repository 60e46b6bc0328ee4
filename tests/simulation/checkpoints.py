"""Checkpoints of a simulated cluster: all units as they are at the instant of a cut, in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pslib.protocol.cut_session import moment_of_cut
from pslib.protocol.messages import Adopt, Image, Load
from pslib.shard.images import adopt_block, adopt_rows, image_of
from pslib.shard.shard import Shard
from pslib.table.partition_map import units_of_mask

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["Checkpoints"]


class Checkpoints:
    """What servers would have written to files; each is called after its cut."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._images: dict[str, dict[int, Image]] = {}
        self.saved = ""
        """The last that the coordinator knows of."""

    def take(self, number: int) -> None:
        """Copy all units now, where somebody may ever load them."""
        if self._world.config.recovery == "partial":
            shards = self._world.live_shards()
            self._images[moment_of_cut(number)] = {
                unit: _copied(image_of(shard, unit, 0))
                for shard in shards
                for unit in units_of_mask(shard.owned).tolist()
            }

    def is_whole(self, number: int) -> bool:
        """Whether no unit is missing."""
        if self._world.config.recovery != "partial":
            return True
        return len(self._images.get(moment_of_cut(number), ())) == self._world.map.owners.size

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


def _copied(image: Image) -> Image:
    """Blocks change in place."""
    return replace(image, content={name: array.copy() for name, array in image.content.items()})
