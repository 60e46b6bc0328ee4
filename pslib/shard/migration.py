"""Moves of units between servers, in one shard: release and adopt, each move once.

A move is named by its unit and the version of the map that it makes, as a push is by its stream and number:
repeated or late messages change nothing. `pslib.shard.partition_image` has the content of an image.
"""

from __future__ import annotations

from collections.abc import Callable

from pslib.errors import ConfigurationError, LogFullError, PslibError
from pslib.shard.partition_image import adopt_block, adopt_rows, image_of
from pslib.shard.state import MINE, NOT_OWNED, ShardState
from pslib.wire.applied_pushes import check_marks
from pslib.wire.messages import Adopt, Image, Keep, Release


class Moves:
    """Moves of a shard's units, and the record of past ones.

    Parameters
    ----------
    shard : ShardState
        Owner of the units.
    left : callable
        Called with a released unit and its new owner.
    came : callable
        Called when a unit of another server has been adopted.

    Attributes
    ----------
    moved : dict of int to int
        Version of the last move of each unit here.
    hints : dict of int to int
        `ShardState.hints`.
    released : dict of int to Image
        Images of released units, until the map of the move is published.
    declined : dict of int to (int, PslibError)
        Refused units, with version and reason.
    published : int
        Version of the newest map that is known to be published.
    """

    def __init__(self, shard: ShardState, left: Callable[[int, int], None], came: Callable[[], None]) -> None:
        self._shard, self._left, self._came = shard, left, came
        self.moved: dict[int, int] = {}
        self.hints = shard.hints
        self.released: dict[int, Image] = {}
        self.declined: dict[int, tuple[int, PslibError]] = {}
        self.published = 0

    def release(self, message: Release) -> Image:
        """Stop owning a unit and return its image; a repeated request returns the same image.

        Raises
        ------
        ConfigurationError
            When this server does not own the unit, or the unit has moved on under a later map.
        """
        shard, unit, version = self._shard, message.unit, message.map_version
        known = self.moved.get(unit, 0)
        if version == known and unit in self.released:
            self.hints[unit] = message.owner  # `Rejoin` names no owner, as it may have no state yet
            return self.released[unit]
        if version <= known or not shard.owned >> unit & 1:
            raise ConfigurationError(
                f"unit {unit} can't be released under map {version}: this server does not own it, "
                f"or took part in a later move (map {known})"
            )
        image = image_of(shard, unit, version)
        shard.say(message)
        shard.owned &= ~(1 << unit)
        self.moved[unit] = version
        self.hints[unit] = message.owner
        self.released[unit] = image
        shard.marks.forget_unit(unit)
        self._left(unit, message.owner)
        if unit < shard.partitions:
            shard.kind_of_partition[unit] = NOT_OWNED
            for store in shard.stores.values():
                store.drop_partition(unit)
        elif shard.dense:
            shard.dense.drop(unit - shard.partitions)
        return image

    def adopt(self, message: Adopt) -> None:
        """Own a unit with the content of another server's image; a second copy changes nothing, however late.

        Raises
        ------
        ConfigurationError
            When the image does not fit the tables here, its marks are invalid, or the unit is owned already
            by another move. Then nothing has changed, and no copy of this message will be taken: the unit may
            be elsewhere by then.
        MemoryLimitError
            When there is no room for its rows; the same holds.
        """
        shard, unit, version = self._shard, message.unit, message.map_version
        known = self.moved.get(unit, 0)
        if version < known or (version == known and shard.owned >> unit & 1):
            return
        if shard.owned >> unit & 1:
            raise ConfigurationError(f"unit {unit} can't be adopted under map {version}: it is owned already")
        declined, error = self.declined.get(unit, (0, None))
        if error and version <= declined:
            raise error
        if version <= self.published:
            raise ConfigurationError(
                f"unit {unit} can't be adopted under map {version}: map {self.published} is published, so "
                "that move is over"
            )
        try:
            check_marks(unit, message.marks)
            self.take(message, bounded=True)
        except LogFullError:
            raise
        except PslibError as refusal:
            shard.say({"note": "declined", "unit": unit, "version": version, "why": str(refusal)})
            self.decline(unit, version, refusal)
            raise
        self._came()

    def decline(self, unit: int, version: int, why: PslibError) -> None:
        """Refuse every copy of a move from now on."""
        self.declined[unit] = version, why

    def keep(self, message: Keep) -> None:
        """Own a unit again that its new owner has refused, as it was; no limit forbids that.

        Raises
        ------
        ConfigurationError
            When the unit was not released here under this version, or its move is complete.
        """
        shard, unit, version = self._shard, message.unit, message.map_version
        if shard.owned >> unit & 1 and self.moved.get(unit, 0) >= version:
            return
        image = self.released.get(unit)
        if image is None or image.map_version != version:
            raise ConfigurationError(
                f"unit {unit} can't be kept under map {version}: it was not released under it"
            )
        self.take(Adopt(unit, version, image.marks, image.content, image.keys))

    def take(self, message: Adopt, bounded: bool = False) -> None:
        """Own a unit with this content, without checks of moves; limits count if ``bounded``."""
        shard, unit, version = self._shard, message.unit, message.map_version
        if unit < shard.partitions:
            adopt_rows(shard, message, bounded)
            shard.kind_of_partition[unit] = MINE
            shard.changes.mark_stale(unit)
        elif bounded or message.content:  # a kept unit may have no values yet
            adopt_block(shard, message)
        else:
            shard.say(message)
        shard.owned |= 1 << unit
        self.moved[unit] = version
        self.released.pop(unit, None)
        self.hints.pop(unit, None)
        shard.marks.adopt(unit, message.marks)

    def forget_images(self, map_version: int) -> None:
        """Drop the images kept for moves up to ``map_version``: that map is published, the moves complete."""
        if map_version > self.published:
            self._shard.say_later({"note": "forget", "version": map_version})
        self.published = max(self.published, map_version)
        done = [unit for unit, image in self.released.items() if image.map_version <= map_version]
        for unit in done:
            del self.released[unit]
        for unit in [unit for unit, (version, _error) in self.declined.items() if version <= map_version]:
            del self.declined[unit]
