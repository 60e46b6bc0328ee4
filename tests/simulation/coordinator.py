"""The coordinator's process: a real `CoordinatorSession`, and an eye on every answer that it gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pslib.config import ClusterConfig
from tests.simulated_processes import CODEC
from tests.simulation.moves import with_restless_moves
from tests.simulation.network import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["Coordinator"]

TICK_S = 0.1


class Coordinator(Process):
    """Answers whatever comes, and looks around ten times a second."""

    def __init__(self, world: World, config: ClusterConfig) -> None:
        super().__init__(world.network, "coordinator")
        self.world = world
        self.session = with_restless_moves(world.planted.make_coordinator(config))
        self.listen(self.address, self._receive)
        self.after(TICK_S, self._tick)

    def _receive(self, source: str, frames: list[bytes]) -> None:
        envelope = CODEC.decode(frames)
        answer = self.session.handle(self.now_s(), envelope.message)
        self.world.checks.coordinator_answered(envelope.message, answer)
        self.network.send(self.address, source, CODEC.encode(envelope.request_id, answer))

    def _tick(self) -> None:
        self.session.tick(self.now_s())
        self.after(TICK_S, self._tick)

    def counts_as_lost(self, role: str, rank: int, incarnation: int) -> bool:
        """Whether a member has been silent too long, or is none at all."""
        member = self.session.members.find(role, rank, incarnation)
        return member is None or member.state == "lost"
