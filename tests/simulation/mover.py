"""Gives units to other servers, one after the other: Release, Image, Adopt, and at last the new map."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pslib.protocol.messages import Adopt, Done, Image, Release
from tests.simulation.members import Asker

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["Mover"]


class Mover(Asker):
    """Moves a few restless units to and fro, so that they come back to where they have been."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "mover")
        self.left = world.random.randint(4, 10)
        self.unit: int | None = None

    @property
    def done(self) -> bool:
        """Whether no move is under way and none will begin."""
        return self.unit is None and not self.left

    def turn(self) -> None:
        """Begin a move when none is under way."""
        if self.unit is None and self.left:
            self.left -= 1
            self.unit = self.world.random.choice(self.world.restless)
            self._target = self.world.random.randrange(len(self.world.servers))
            current = self.world.map
            owner = current.addresses[int(current.owners[self.unit])]
            self.ask(owner, Release(self.unit, self._target, current.version + 1), self._released)
        if self.left:
            self.after(self.world.random.uniform(0.01, 0.3), self.turn)

    def _released(self, image: Image) -> None:
        adopt = Adopt(image.unit, image.map_version, image.marks, image.content, image.keys)
        self.ask(self.world.map.addresses[self._target], adopt, self._adopted)

    def _adopted(self, _answer: Done) -> None:
        assert self.unit is not None
        self.world.publish(self.world.map.moved(self.unit, self._target))
        self.unit = None
