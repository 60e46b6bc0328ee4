"""Membership in a cluster: registration with the coordinator, then heartbeats."""

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
from pslib.process.health import health
from pslib.process.machine import allow_peers
from pslib.process.reported import Reporter, reported
from pslib.process.shutdown import preemption
from pslib.process.stacks import stacks_text
from pslib.table.partition_map import PartitionMap
from pslib.wire.error_codes import COUNTS_AS_LOST
from pslib.wire.fields import Message
from pslib.wire.messages import NOWHERE, STACKS, Beat, CutReady, Heartbeat, Leave, Register, Registered

log = logging.getLogger("pslib")
CUT_BEAT_S = 0.01
"""Heartbeat interval while other trainers wait for this one in a cut."""
ASK_AGAIN_S = 0.02
ASK_AGAIN_MAX_S = 1.0
"""Maximum pause before the next registration. Hundreds of processes that wait for a slow one send a few
hundred small messages a second, and their machine has other work at start.
"""


GOODBYE_S = 3.0
"""Timeout of the leave message."""
WAITS_S = 1.0
"""Age from which heartbeats report a waiting request."""

HEARTBEATS_A_PAUSE = 100
SLOWER_MAX = 2.0
"""Maximum factor of the heartbeat interval in large clusters, so that the coordinator gets about 100 a
second. At most 2, since three heartbeats must fit the silence after which a member counts as lost.
"""


@dataclass(frozen=True, slots=True)
class RankRequest:
    """Rank that a process asks for, and its generation; see `Register`."""

    rank: int = ANY_RANK
    generation: int = 0


FREE_RANK = RankRequest()
"""Request of a process that takes any free rank."""


@dataclass(frozen=True, slots=True)
class Joined:
    """Coordinator's reply to a new member; ``begins``: for a server that has lost its state."""

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
    """Membership of this process: heartbeats run in the endpoint's thread until `leave`.

    Parameters
    ----------
    endpoint : Endpoint
        Sends requests to the coordinator.
    coordinator : str
        Its address.
    role : {"server", "trainer"}
        Role of this process.
    address : str
        Listening address; empty for trainers.
    rank_request : RankRequest
        Rank to take.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        coordinator: str,
        role: str,
        address: str,
        rank_request: RankRequest = FREE_RANK,
    ) -> None:
        self.endpoint, self.coordinator, self.role, self.address = endpoint, coordinator, role, address
        self.incarnation = secrets.randbits(62)
        self.rank_request = rank_request
        self.empty = False
        """For a server: whether it has none of the state of its predecessor."""
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
        self._stacks_wanted = False
        self._aside = -1
        self._bits = 0
        self._next_s = 0.0
        self._pause_s = 0.0
        self._heard_s = self._asked_s = self._vouched_s = 0.0
        self._limit_s = 0.0
        self._waiting = False
        self._reports: list[Pending[Message]] = []

    def start_heartbeats(self, joined: Joined) -> None:
        """Start heartbeats; ``progress``, ``on_map`` and ``on_order`` must be set before."""
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
        health.waits_for = ""

    @property
    def may_be_replaced(self) -> bool:
        """Return True if the coordinator may count this process as lost, and have replaced it.

        Counted from the sending of the last heartbeat that was answered: the coordinator received it no
        earlier. Uses the machine's clock: the coordinator's went on while this process was stopped.
        """
        return self.endpoint.machine_clock.now_s() > self.vouched_until_s

    @property
    def vouched_until_s(self) -> float:
        """Return the machine-clock time until which it cannot; each answered heartbeat extends it."""
        return self._vouched_s + self.endpoint.timing.silence_s

    @property
    def _reporter(self) -> Reporter:
        return Reporter(self.role, self.rank, self.endpoint.cluster_id, f"{self.incarnation:x}")

    def stop_heartbeats(self) -> None:
        """Stop heartbeats."""
        self.endpoint.every_heartbeat = None
        reported.forget(self._reporter)

    def report(self, message: Message) -> None:
        """Send the coordinator a report that it must have before this process leaves."""
        self._reports.append(self.endpoint.ask(self.coordinator, message))

    @property
    def reported(self) -> bool:
        """Return True if the coordinator has all reports, or is unreachable."""
        return all(report.done for report in self._reports)

    def leave(self, well: bool = False) -> None:
        """Send the leave message with the last counters, all work flushed; ignore an unreachable coordinator.

        ``well``: the script has completed all of its calls, and has caught any error of them; otherwise the
        last call counts as unfinished work.
        """
        self.stop_heartbeats()
        if self.forsaken:  # a failing process must count as lost, not as one that left
            return
        progress = self.progress() | ({"well": True} if well else {})
        message = Leave(self.role, self.rank, self.incarnation, progress, preemption.asked)
        for report in self._reports:  # the coordinator takes no report from a member that has left
            with suppress(PslibError):
                report.wait(GOODBYE_S)
        try:
            self.endpoint.ask(self.coordinator, message, patience_s=GOODBYE_S).wait()
        except PslibError as error:
            log.info("pslib: could not say good-bye: %s", error)

    def _turn(self) -> None:
        if self.endpoint.error is not None:  # a failed endpoint sends nothing; its owner handles the error
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
            return  # a trainer's endpoint takes no request after that; a server asks again in the next turn
        if now_s < self._next_s or self._waiting:
            return
        self._next_s = now_s + self._pause_s
        waits = [list(one) for one in self.endpoint.waits(WAITS_S)] if self.role == "trainer" else []
        progress = self._cut_progress()
        if not progress:
            progress = self.progress() | {"waits": waits}
            reported.show(self._reporter, progress)
        if self._stacks_wanted:
            progress, self._stacks_wanted = progress | {STACKS: stacks_text()}, False
        about = (self.role, self.rank, self.incarnation, self.map_version)
        message = Heartbeat(*about, progress, self.term)
        self._waiting, self._asked_s = True, self.endpoint.machine_clock.now_s()
        pending = self.endpoint.ask(self.coordinator, message, patience_s=silence_s)
        pending.on_done(lambda: self._answered(pending.wait))

    def _cut_progress(self) -> dict[str, Any]:
        """Return the progress of fast heartbeats: only the cut that this process knows."""
        fast = self.endpoint.beat_due_s < inf
        return {"cut": int(self._cut["number"])} if fast else {}

    def _answered(self, wait: Callable[[float], Any]) -> None:
        self._waiting = False
        try:
            beat = wait(0)
        except PslibError:
            return
        if not isinstance(beat, Beat) or beat.term < self.term:  # a superseded coordinator does not know it
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
        if beat.order == "go" and beat.reason == STACKS:
            self._stacks_wanted, self._next_s = True, 0.0
        self._obey(beat.order, beat.reason)

    def _hear_of_cut(self, cut: Mapping[str, Any]) -> None:
        """Pass a cut to the trainer; where no trainer can pause, report so that none waits."""
        self._cut = cut
        if self.on_cut is not None:
            self.on_cut(cut)
        elif cut.get("phase") == "pause" and cut["number"] != self._aside:
            self._aside = int(cut["number"])
            with self.endpoint.lock:  # the cut includes what is acknowledged until now
                if self.endpoint.session:
                    self.endpoint.session.acknowledged.pause(moment_of_cut(self._aside))
            none = np.empty(0, np.uint64)
            about = (self.rank, self.incarnation, self._aside)
            self.endpoint.ask(self.coordinator, CutReady(*about, NOWHERE, True, none, none))

    def _beat_soon(self) -> None:
        """Beat fast while other trainers wait for this process in a cut."""
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
    """Register, and again until all needed members are there; ``start_s`` counts without stalls.

    Raises
    ------
    WaitTimeoutError
        After ``start_s``, naming the missing members.
    ConfigurationError
        When the cluster has no rank for this process, or the system allows too few open files for it.
    """
    asked, clock = member.rank_request, member.endpoint.clock
    own = (member.incarnation, os.getpid(), socket.gethostname())
    message = Register(member.role, member.address, *own, asked.rank, asked.generation, member.empty)
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
    """Return the reply to a registration.

    Its patience and retry pauses are short, however slow the coordinator was: a process that is silent longer
    counts as lost, also before all members are there.
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
