"""Joining a cluster: registering with the coordinator, and heartbeats from then on."""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np

from pslib.client.endpoint import Endpoint
from pslib.client.pending import Pending
from pslib.config import ANY_RANK, ClusterConfig
from pslib.coordinator.checkpoint_barrier import moment_of_cut
from pslib.errors import PslibError, ServerLostError, SupersededError, UnavailableError, WaitTimeoutError
from pslib.process.file_limit import allow_peers
from pslib.process.shutdown import preemption
from pslib.table.partition_map import PartitionMap
from pslib.wire.error_codes import COUNTS_AS_LOST
from pslib.wire.messages import NOWHERE, Beat, CutReady, Heartbeat, Leave, Message, Register, Registered

__all__ = ["ANYWHERE", "Joined", "MemberHandle", "Place", "join"]

log = logging.getLogger("pslib")
CUT_BEAT_S = 0.01
"""Between heartbeats while a cut has others wait."""
ASK_AGAIN_S = 0.02
ASK_AGAIN_MAX_S = 1.0
"""Hundreds of processes that wait for a slow one are a few hundred small messages a second, and a machine on
which they start has other things to do."""


GOODBYE_S = 3.0
"""For the last words of a member."""
WAITS_S = 1.0
"""Heartbeats tell of requests that have waited so long."""

HEARTBEATS_A_PAUSE = 100
SLOWER_MAX = 2.0
"""More members than that beat more rarely, so that the coordinator hears 100 a second; half as often at
most, since three must fit the silence after which a member counts as lost."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which rank a process wants, and how often one was started there; `Register` says what that means."""

    rank: int = ANY_RANK
    generation: int = 0


ANYWHERE = Place()


@dataclass(frozen=True, slots=True)
class Joined:
    """What the coordinator told a new member; ``begins``: a server that has lost what it knew."""

    rank: int
    config: ClusterConfig
    map: PartitionMap
    term: int = 0
    begins: Mapping[str, Any] = field(default_factory=dict)


def _map_of(message: Registered | Beat, partition_bits: int) -> PartitionMap | None:
    if message.owners.size == 0:
        return None
    return PartitionMap(message.map_version, partition_bits, message.owners, tuple(message.addresses))


class MemberHandle:
    """This process's membership: heartbeats run in the endpoint's thread until `leave`.

    Parameters
    ----------
    endpoint : Endpoint
        Asks the coordinator.
    coordinator : str
        Its address.
    role : {"server", "trainer"}
        What this process is.
    address : str
        Where it listens; empty for trainers.
    place : Place
        The one to take.
    """

    def __init__(
        self, endpoint: Endpoint, coordinator: str, role: str, address: str, place: Place = ANYWHERE
    ) -> None:
        self.endpoint, self.coordinator, self.role, self.address = endpoint, coordinator, role, address
        self.incarnation = secrets.randbits(62)
        self.place = place
        self.empty = False
        """Of a server: whether it knows nothing of what an earlier one at its place knew."""
        self.rank = -1
        self.term = 0
        self.map_version = 0
        self.streams_done_below = 0
        self.order = "go"
        self.reason = ""
        self.forsaken = False
        self.progress: Callable[[], dict[str, Any]] = dict
        self.on_map: Callable[[PartitionMap], None] = lambda _map: None
        self.on_order: Callable[[], None] = lambda: None
        self.on_hand: Callable[[], None] = lambda: None
        self.on_cut: Callable[[Mapping[str, Any]], None] | None = None
        self._cut: Mapping[str, Any] = {}
        self._aside = -1
        self._bits = 0
        self._next_s = 0.0
        self._pause_s = 0.0
        self._heard_s = self._asked_s = self._vouched_s = 0.0
        self._limit_s = 0.0
        self._waiting = False
        self._reports: list[Pending[Message]] = []

    def start_heartbeats(self, joined: Joined) -> None:
        """Beat from now on; ``progress``, ``on_map`` and ``on_order`` must be set before."""
        self.rank, self.map_version = joined.rank, joined.map.version
        self.term = max(self.term, joined.term)
        self._bits = joined.config.partition_bits
        members = joined.config.servers + joined.config.trainers
        self._pause_s = joined.config.timing.heartbeat_s * min(
            max(members / HEARTBEATS_A_PAUSE, 1.0), SLOWER_MAX
        )
        self._heard_s = self.endpoint.clock.now_s()
        self._vouched_s = self.endpoint.machine_clock.now_s()
        timing, comes_back = joined.config.timing, joined.config.coordinator_comes_back
        self.endpoint.use_space_s(timing.request_s)
        self._limit_s = timing.silence_s + (timing.restart_s if comes_back else timing.silence_s)
        self.endpoint.begin_heartbeats(self._turn)

    @property
    def may_be_replaced(self) -> bool:
        """Whether the coordinator may count this process as lost by now, and another have its place.

        Counted from when the last heartbeat was sent that it has answered: that came to it no earlier. By the
        machine's clock: the coordinator's went on while this process was stopped.
        """
        return self.endpoint.machine_clock.now_s() > self.vouched_until_s

    @property
    def vouched_until_s(self) -> float:
        """Until when it can't, by the machine's clock; later with each heartbeat that is answered."""
        return self._vouched_s + self.endpoint.timing.silence_s

    def stop_heartbeats(self) -> None:
        """Be silent from now on."""
        self.endpoint.every_heartbeat = None

    def report(self, message: Message) -> None:
        """Tell the coordinator what it must have heard before this process leaves."""
        self._reports.append(self.endpoint.ask(self.coordinator, message))

    @property
    def reported(self) -> bool:
        """Whether the coordinator has heard all reports, or can't."""
        return all(report.done for report in self._reports)

    def leave(self, well: bool = False) -> None:
        """Say that all work is flushed, with the last counters; an unreachable coordinator is no error.

        ``well``: the script is through with all of its calls, and has caught what ended one of them; else
        that one counts as work that is not done.
        """
        self.stop_heartbeats()
        if self.forsaken:  # whoever fails must be missed, not let go in peace
            return
        progress = self.progress() | ({"well": True} if well else {})
        message = Leave(self.role, self.rank, self.incarnation, progress, preemption.asked)
        for report in self._reports:  # nobody takes one from a member that has left
            with suppress(PslibError):
                report.wait(GOODBYE_S)
        try:
            self.endpoint.ask(self.coordinator, message, patience_s=GOODBYE_S).wait()
        except PslibError as error:
            log.info("pslib: could not say good-bye: %s", error)

    def _turn(self) -> None:
        if self.endpoint.error is not None:  # it can ask nothing any more; its owner looks at the error
            return
        now_s = self.endpoint.clock.now_s()
        silence_s = self.endpoint.timing.silence_s
        if now_s - self._heard_s > self._limit_s:
            self.forsaken = True
            self._obey(
                "fail",
                f"the coordinator at {self.coordinator} has not answered for {now_s - self._heard_s:.0f} s",
            )
            self._heard_s = now_s
            return  # a trainer's endpoint takes no question after that; a server asks again in the next turn
        if now_s < self._next_s or self._waiting:
            return
        self._next_s = now_s + self._pause_s
        waits = [list(one) for one in self.endpoint.waits(WAITS_S)] if self.role == "trainer" else []
        progress = self._cut_progress() or self.progress() | {"waits": waits}
        about = (self.role, self.rank, self.incarnation, self.map_version)
        message = Heartbeat(*about, progress, self.term)
        self._waiting, self._asked_s = True, self.endpoint.machine_clock.now_s()
        pending = self.endpoint.ask(self.coordinator, message, patience_s=silence_s)
        pending.on_done(lambda: self._answered(pending.wait))

    def _cut_progress(self) -> dict[str, Any]:
        """Of fast heartbeats: which cut this process knows, and nothing else."""
        fast = self.endpoint.beat_due_s < inf
        return {"cut": int(self._cut["number"])} if fast else {}

    def _answered(self, wait: Callable[[float], Any]) -> None:
        self._waiting = False
        try:
            beat = wait(0)
        except PslibError:
            return
        if not isinstance(beat, Beat) or beat.term < self.term:  # who is superseded does not know it
            return
        self.term = beat.term
        self._heard_s = self.endpoint.clock.now_s()
        if beat.order != "fail":
            self._vouched_s = self._asked_s
        self.streams_done_below = beat.streams_done_below
        new_map = _map_of(beat, self._bits)
        if new_map and new_map.version > self.map_version:
            self.map_version = new_map.version
            self.on_map(new_map)
        if beat.hand:
            self.on_hand()
        if beat.cut or self._cut:
            self._hear_of_cut(beat.cut)
        self._beat_soon()
        self._obey(beat.order, beat.reason)

    def _hear_of_cut(self, cut: Mapping[str, Any]) -> None:
        """Tell the trainer that is here; where there is none that could pause, nobody is to wait for it."""
        self._cut = cut
        if self.on_cut is not None:
            self.on_cut(cut)
        elif cut.get("phase") == "pause" and cut["number"] != self._aside:
            self._aside = int(cut["number"])
            with self.endpoint.lock:  # what is acknowledged until now is in it
                if self.endpoint.session:
                    self.endpoint.session.acknowledged.pause(moment_of_cut(self._aside))
            none = np.empty(0, np.uint64)
            about = (self.rank, self.incarnation, self._aside)
            self.endpoint.ask(self.coordinator, CutReady(*about, NOWHERE, True, none, none))

    def _beat_soon(self) -> None:
        """While a cut has others wait for this process, it beats fast."""
        if self._cut.get("phase") not in ("near", "pause", "begin"):
            self.endpoint.beat_due_s = inf
            return
        self._next_s = self.endpoint.beat_due_s = self.endpoint.clock.now_s() + CUT_BEAT_S

    def _obey(self, order: str, reason: str) -> None:
        if order == self.order:
            return
        self.order, self.reason = order, reason
        if order == "fail" and self.role == "trainer":
            self.endpoint.fail(_kind_of(reason)(reason))
        self.on_order()


def _kind_of(reason: str) -> type[PslibError]:
    if reason.startswith(COUNTS_AS_LOST):
        return SupersededError
    return ServerLostError if "server" in reason else UnavailableError


def join(member: MemberHandle, start_s: float) -> Joined:
    """Register, and ask again until everybody who is needed is there; ``start_s`` counts without stalls.

    Raises
    ------
    WaitTimeoutError
        After ``start_s``, naming who is missing.
    ConfigurationError
        When the cluster has no place for this process, or the system allows too few open files for it.
    """
    place, clock = member.place, member.endpoint.clock
    own = (member.incarnation, os.getpid(), socket.gethostname())
    message = Register(member.role, member.address, *own, place.rank, place.generation, member.empty)
    started_s = clock.now_s()
    reported_s, pause_s = started_s, ASK_AGAIN_S
    while True:
        answer = _ask(member, message, started_s + start_s)
        assert isinstance(answer, Registered)
        config = ClusterConfig.from_dict(dict(answer.config))
        allow_peers(config.servers + (config.trainers if member.role == "server" else 0))
        current = _map_of(answer, config.partition_bits)
        if answer.ready and current:
            return Joined(answer.rank, config, current, answer.term, answer.begins)
        now_s = clock.now_s()
        if now_s - started_s > start_s:
            raise WaitTimeoutError(f"waited {start_s:.0f} s for {answer.missing}; look at their logs")
        if now_s - reported_s > member.endpoint.timing.report_s:
            reported_s = now_s
            log.warning("pslib: waiting %.0f s for %s", now_s - started_s, answer.missing)
        clock.sleep_s(pause_s)
        pause_s = min(pause_s * 1.5, ASK_AGAIN_MAX_S)


def _ask(member: MemberHandle, message: Register, until_s: float) -> Message:
    """The answer to a registration.

    Its patience is short, and so are the pauses between its copies, however slow the coordinator was: whoever
    is silent longer counts as lost, also before everybody is there.
    """
    endpoint = member.endpoint
    while True:
        now_s = endpoint.clock.now_s()
        patience_s = min(endpoint.timing.silence_s, max(until_s - now_s, 0.0))
        try:
            return endpoint.ask(member.coordinator, message, patience_s).wait()
        except WaitTimeoutError:
            if endpoint.clock.now_s() >= until_s:
                raise
