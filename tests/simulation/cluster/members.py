"""Processes that join the cluster: the real `Endpoint` and `MemberHandle` on a simulated link."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pslib.client.endpoint import Endpoint
from pslib.client.membership import FREE_RANK, Joined, MemberHandle, RankRequest
from pslib.client.pending import Pending
from pslib.config import ClusterConfig, Timing
from pslib.errors import LogFullError, PslibError, WaitTimeoutError
from pslib.table.partition_map import PartitionMap
from pslib.wire.fields import Message
from pslib.wire.messages import Leave, Register, Registered
from tests.simulation.cluster.history import SimulationError
from tests.simulation.cluster.network import CODEC, Process
from tests.support.simulated.files import KilledError

if TYPE_CHECKING:
    from tests.simulation.cluster.world import World

__all__ = ["COORDINATOR", "TIMING", "Asker", "Member"]

COORDINATOR = "coordinator.0"
TIMING = Timing(
    heartbeat_s=0.3,
    silence_s=2.5,
    retry_s=0.2,
    retry_max_s=0.4,
    request_s=300.0,
    start_s=60.0,
    report_s=1e6,
    restart_s=12.0,
    cut_s=2.0,
)
TICK_S = 0.1
WAIT_MAX_S = 25.0
"""No process waits longer for one answer: the weather lasts four seconds, and the slowest message five."""


class _Link:
    """The door of a simulated process that asks."""

    def __init__(self, process: Process, address: str) -> None:
        self._process, self._address = process, address
        self.came: list[tuple[str, list[Any]]] = []

    def send_all(self, messages: Sequence[tuple[str, Sequence[Any]]]) -> None:
        for peer, frames in messages:
            self._process.network.send(self._address, peer, frames)

    def receive(self) -> list[tuple[str, list[Any]]]:
        came, self.came = self.came, []
        return came

    def ready(self) -> bool:
        return bool(self.came)

    def wait(self, timeout_s: float) -> None:
        return

    def refusals(self) -> list[tuple[str, str]]:
        return []

    def wake(self) -> None:
        return

    def close(self) -> None:
        return


class _Endpoint(Endpoint):
    """The real one; instead of a thread of its own, events call its turns."""

    def __init__(self, process: Process, link: _Link, first_request_id: int) -> None:
        super().__init__(link, CODEC, TIMING, process, first_request_id)
        self._thread.join()
        self._thread = threading.current_thread()  # the calling thread is its own, and never waits for room

    def _run(self) -> None:
        return

    def turn(self) -> None:
        """Do one turn of the member's thread."""
        self._turn()


class Asker(Process):
    """A process that asks others, again and again until they answer."""

    def __init__(self, world: World, name: str, generation: int = 1) -> None:
        super().__init__(world.network, name, generation)
        self.world = world
        self._link = _Link(self, f"{self.address}/asks")
        self.on_answer: Callable[[], None] = lambda: None
        first_id = world.random.getrandbits(62)
        self.endpoint = _Endpoint(self, self._link, first_id)
        self.listen(f"{self.address}/asks", self._answered)
        self.after(world.random.uniform(0, TICK_S), self._tick)

    def _answered(self, source: str, frames: list[bytes]) -> None:
        self._link.came.append((source.partition("/")[0], list(frames)))
        self.endpoint.turn()
        self.on_answer()

    def _tick(self) -> None:
        self.endpoint.turn()
        for peer, what, waited_s in self.endpoint.requests.waiting(self.endpoint.clock.now_s(), WAIT_MAX_S):
            raise SimulationError(f"{self} has waited {waited_s:.1f} s for {peer}: {what}")
        self.after(TICK_S, self._tick)

    def ask(
        self,
        peer: str,
        message: Message,
        then: Callable[[Any], None],
        patience_s: float | None = None,
        otherwise: Callable[[PslibError], None] | None = None,
    ) -> None:
        """Send a request until it is answered; then go on with the answer, or with what went wrong."""
        try:
            pending = self.endpoint.ask(peer, message, patience_s)
        except PslibError as error:
            (otherwise or self.failed)(error)
            return
        pending.on_done(partial(self._over, pending, then, otherwise or self.failed))

    def _over(
        self, pending: Pending[Any], then: Callable[[Any], None], otherwise: Callable[[PslibError], None]
    ) -> None:
        if not self.alive:
            return
        try:
            answer = pending.wait(0)
        except PslibError as error:
            self._surely(partial(otherwise, error))
        else:
            self._surely(partial(then, answer))

    def _surely(self, what: Callable[[], None]) -> None:
        """Futures swallow what their callbacks raise; nothing that is found here may be lost."""
        try:
            what()
        except KilledError:
            self.end("kill -9 while it wrote")
        except Exception as error:
            self.world.found(error)

    def failed(self, error: PslibError) -> None:
        """A request came to nothing."""
        raise SimulationError(f"{self}: {error}")


class Member(Asker):
    """A server or trainer: registers, then beats until it leaves or is told to end."""

    role = ""

    def __init__(self, world: World, name: str, generation: int = 1) -> None:
        super().__init__(world, name, generation)
        self.member = MemberHandle(self.endpoint, COORDINATOR, self.role, self._where(), self._rank_request())
        self.member.incarnation = world.random.getrandbits(62)
        self.member.progress = self.progress
        self.member.on_map = lambda new_map: self._surely(partial(self.new_map, new_map))
        self.member.on_order = self._ordered
        self.leaving = False
        self.on_answer = lambda: self.world.checks.obeyed(str(self), self.member.term)
        self.after(world.random.uniform(0, 0.1), self._register)

    def _where(self) -> str:
        return ""

    def _rank_request(self) -> RankRequest:
        return FREE_RANK

    def registration(self) -> Register:
        """Return its message to join."""
        own, asked = (self.member.incarnation, 1, str(self)), self.member.rank_request
        return Register(self.role, self._where(), *own, asked.rank, asked.generation, self.member.empty)

    def _register(self) -> None:
        message = self.registration()
        self.ask(COORDINATOR, message, self._registered, TIMING.silence_s, self._not_registered)

    def _not_registered(self, error: PslibError) -> None:
        if isinstance(error, WaitTimeoutError) and not self.world.lives.abandoned:
            self._register()
        else:
            self.failed(error)

    def _registered(self, answer: Registered) -> None:
        config = ClusterConfig.from_dict(dict(answer.config))
        if not answer.ready:
            self.after(self.world.random.uniform(0.02, 0.2), self._register)
            return
        current = PartitionMap(
            answer.map_version, config.partition_bits, answer.owners, tuple(answer.addresses)
        )
        joined = Joined(answer.rank, config, current, answer.term, answer.begins)
        try:
            self.joined(joined)
        except LogFullError as error:  # a server that can't begin its log ends, and is restarted
            self.end(str(error))
            return
        self.member.start_heartbeats(joined)

    def _ordered(self) -> None:
        self._surely(self._obey)

    def _obey(self) -> None:
        if self.member.order == "leave":
            self.told_to_leave()
        elif self.member.order == "fail":
            self.told_to_fail(self.member.reason)

    def joined(self, joined: Joined) -> None:
        """All needed members are there."""
        raise AssertionError

    def progress(self) -> dict[str, Any]:
        """Counters for the coordinator."""
        raise AssertionError

    def new_map(self, new_map: PartitionMap) -> None:
        """A map has been published."""
        raise AssertionError

    def told_to_leave(self) -> None:
        """All work is done."""
        raise AssertionError

    def told_to_fail(self, reason: str) -> None:
        """The coordinator can't use this process any more, or can't be reached."""
        self.world.checks.may_fail(self, reason)
        self.end(f"fails: {reason}")

    def failed(self, error: PslibError) -> None:
        """Only a member that counts as lost may be refused: another one does its work."""
        if not self.leaving:  # it has left: answers to its earlier requests are void
            self.told_to_fail(str(error))

    def leave(self, preempted: bool = False) -> None:
        """Say good-bye until it is heard, and end."""
        self.leaving = True
        self.member.stop_heartbeats()
        message = Leave(self.role, self.member.rank, self.member.incarnation, self.progress(), preempted)
        comes_back = self.world.config.coordinator_comes_back
        self.ask(COORDINATOR, message, self._has_left, None if comes_back else 3.0, self._has_left)

    def _has_left(self, _answer: Message | PslibError) -> None:
        self.end("has left")
