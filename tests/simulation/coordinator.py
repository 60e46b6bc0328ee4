"""The coordinator's process: the real `Coordinator` with its journal, and an eye on all that it says."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pslib.config import ClusterConfig
from pslib.coordinator import Coordinator
from pslib.protocol.coordinator_session import CoordinatorSession
from pslib.protocol.messages import Message
from pslib.update_log import CoordinatorLog
from tests.simulated_processes import CODEC
from tests.simulation.members import COORDINATOR
from tests.simulation.moves import with_restless_moves
from tests.simulation.network import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["CoordinatorProcess"]

TICK_S = 0.1


class _Link:
    """Where it listens: one message a turn, and every answer is looked at when it leaves."""

    address = COORDINATOR

    def __init__(self, process: CoordinatorProcess) -> None:
        self._process = process
        self.came: list[tuple[bytes, list[Any]]] = []

    def poll(self, timeout_s: float) -> list[tuple[bytes, list[Any]]]:
        came, self.came = self.came, []
        return came

    def send(self, peer: bytes, frames: Sequence[Any]) -> None:
        process = self._process
        process.world.checks.coordinator_answered(process.questions.pop(0), CODEC.decode(frames).message)
        process.network.send(COORDINATOR, peer.decode(), frames)

    def wake(self) -> None:
        return

    def close(self) -> None:
        return


class _Transport:
    def __init__(self, link: _Link) -> None:
        self._link = link

    def listen(self, address: str) -> Any:
        return self._link


class CoordinatorProcess(Process):
    """Answers whatever comes, and looks around ten times a second; killed, it has a successor."""

    def __init__(self, world: World, config: ClusterConfig, generation: int = 1) -> None:
        super().__init__(world.network, "coordinator", generation)
        self.world = world
        self.questions: list[Message] = []
        self._link = _Link(self)
        self.files = world.disk("coordinator").files("journal")
        journal = None
        if config.durability != "memory":
            disk = config.durability == "disk"
            journal = CoordinatorLog(self.files, CODEC.cluster_id, self, disk=disk)
        transport: Any = _Transport(self._link)
        self._role = Coordinator(transport, config, CODEC.cluster_id, COORDINATOR, self, journal)
        self._watch(self.session)
        self.listen(COORDINATOR, self._receive)
        self.after(TICK_S, self._tick)

    @property
    def session(self) -> CoordinatorSession:
        """What it knows."""
        return self._role.session

    def _watch(self, session: CoordinatorSession) -> None:
        with_restless_moves(session)
        self.world.planted.change_coordinator(session)
        session.handle = partial(self._handle, session.handle)  # type: ignore[method-assign]

    def _handle(self, handle: Any, now_s: float, message: Message, role: str | None = None) -> Message:
        self.questions.append(message)
        answer: Message = handle(now_s, message, role)
        return answer

    def _receive(self, source: str, frames: list[bytes]) -> None:
        self._link.came.append((source.encode(), list(frames)))
        self._turn()

    def _tick(self) -> None:
        self._turn()
        self.after(TICK_S, self._tick)

    def _turn(self) -> None:
        self.questions.clear()
        self._role._turn(final=False)

    def end(self, why: str) -> None:
        super().end(why)
        self.world.disk("coordinator").kill(self.files)
        self.network.after(self.world.random.uniform(0.05, 1.0), self.world.restart_coordinator)

    def counts_as_lost(self, role: str, rank: int, incarnation: int) -> bool:
        """Whether a member has been silent too long, or is none at all."""
        member = self.session.members.find(role, rank, incarnation)
        return member is None or member.state == "lost"
