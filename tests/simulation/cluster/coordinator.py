"""The coordinator's process: the real `Coordinator` with its journal, and an eye on all that it says."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pslib.config import ClusterConfig
from pslib.coordinator.coordinator import Coordinator
from pslib.coordinator.session import CoordinatorSession
from pslib.update_log import CoordinatorLog
from pslib.wire.fields import Message
from pslib.wire.messages import Heartbeat
from tests.simulation.cluster.members import COORDINATOR
from tests.simulation.cluster.moves import with_restless_moves
from tests.simulation.cluster.network import CODEC, Process

if TYPE_CHECKING:
    from tests.simulation.cluster.world import World

__all__ = ["CoordinatorProcess"]

TICK_S = 0.1
JOURNAL_BYTES = 1_500
"""Small, so that images are written and older records go in every world."""
ASTRAY = 0.3
"""Share of the heartbeats that go to a deposed predecessor while it lives, as some routes are old.
They carry the term, and end it. Other questions it would refuse, as it knows of nothing new: nothing but the
lock on its journal and its one address keeps those from it, so none of them goes there."""


class _Link:
    """The coordinator's link: one message a turn, and every answer is checked when it leaves."""

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

    def __init__(
        self,
        world: World,
        config: ClusterConfig,
        before: CoordinatorProcess | None = None,
        resumes: bool = False,
    ) -> None:
        super().__init__(world.network, "coordinator", before.generation + 1 if before else 1)
        self.world, self.predecessor = world, before
        self.questions: list[Message] = []
        self._link = _Link(self)
        self.files = world.disk("coordinator").files("journal")
        journal = None
        if config.durability != "memory":
            disk = config.durability == "disk"
            about = {"disk": disk, "journal_bytes": JOURNAL_BYTES}
            journal = CoordinatorLog(self.files, CODEC.cluster_id, self, **about)
        transport: Any = _Transport(self._link)
        self._role = Coordinator(transport, config, CODEC.cluster_id, COORDINATOR, self, journal)
        if resumes:
            self._role.resume()
        self._watch(self.session)
        self.deposed = False
        self.listen(COORDINATOR, self._receive)
        self.after(TICK_S, self._tick)

    @property
    def session(self) -> CoordinatorSession:
        """The coordinator's session."""
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
        before = self.predecessor
        astray = self.predecessor_lives and isinstance(CODEC.decode(frames).message, Heartbeat)
        if before is not None and astray and self.world.random.random() < ASTRAY:
            before.take(source, frames)
        else:
            self.take(source, frames)

    @property
    def predecessor_lives(self) -> bool:
        """True if a deposed coordinator runs beside this one."""
        return self.predecessor is not None and self.predecessor.alive

    def take(self, source: str, frames: list[bytes]) -> None:
        """A message has found its way here."""
        self._happen(partial(self._take, source, frames), True)

    def _take(self, source: str, frames: list[bytes]) -> None:
        self._link.came.append((source.encode(), list(frames)))
        self._turn()

    def _tick(self) -> None:
        self._turn()
        self.after(TICK_S, self._tick)

    def _turn(self) -> None:
        self.questions.clear()
        self._role._turn(final=False)
        if self.session.superseded:
            self.end("has heard of a higher term")

    def depose(self) -> None:
        """Its journal and its address go to a successor elsewhere; it lives, and does not know."""
        self.network.tell(f"{self} is deposed")
        self.deposed = True
        self.world.disk("coordinator").kill(self.files)
        self._succeeded_soon()

    def end(self, why: str) -> None:
        if self.deposed:
            self.alive, self.ended = False, why
            return
        super().end(why)
        self.world.disk("coordinator").kill(self.files)
        self._succeeded_soon()

    def _succeeded_soon(self) -> None:
        if self.world.config.coordinator_comes_back:
            again = partial(self.world.restart_coordinator, self)
            self.network.after(self.world.random.uniform(0.05, 1.0), again)

    def counts_as_lost(self, role: str, rank: int, incarnation: int) -> bool:
        """Return True if a member has been silent too long, or is unknown."""
        member = self.session.members.find(role, rank, incarnation)
        return member is None or member.state == "lost"
