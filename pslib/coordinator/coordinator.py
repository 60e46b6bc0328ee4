"""Coordinator: serves membership, the partition map and leases. One thread, one ROUTER socket."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from typing import Any

from pslib.clock import AwakeClock, Clock, SystemClock, utc_now_s
from pslib.config import ClusterConfig, Timing
from pslib.coordinator.session import CoordinatorSession
from pslib.errors import AddressInUseError, LocalProtocolError, LogError, RemoteProtocolError
from pslib.process.health import health
from pslib.process.machine import allow_peers
from pslib.process.platform import resident_bytes
from pslib.process.reported import Reporter, reported
from pslib.process.stacks import stacks_text
from pslib.transport import Keys, ServerLink, Transport, ZmqTransport
from pslib.update_log import CoordinatorLog, DiskFiles, in_words
from pslib.update_log.coordinator_log import has_begun
from pslib.wire.codec import Buffer, Codec
from pslib.wire.fields import Message
from pslib.wire.messages import Failure, Status

log = logging.getLogger(__name__)
LINGER_S = 3.0
"""Time after the end during which the coordinator still replies, so that a launcher reads the last status."""
TURN_S = 0.2
TELL_S = 0.5
"""Interval of the status that a coordinator reports by itself, as a launcher asks for it."""


class Coordinator:
    """Server of a `CoordinatorSession` at an address, until the cluster is over.

    Parameters
    ----------
    transport : Transport
        Transport to listen with.
    config : ClusterConfig
        The cluster's settings.
    cluster_id : str
        Id that is in every header.
    listen : str
        Address; port 0 means any free one.
    clock : Clock
        The machine's.
    journal : CoordinatorLog or None
        A predecessor's records are replayed first. Every later change is written before a reply reports
        it.
    ranks_named : bool
        True if the awaited trainers name their ranks; see `pslib.coordinator.membership.Membership`.
    """

    def __init__(
        self,
        transport: Transport,
        config: ClusterConfig,
        cluster_id: str,
        listen: str,
        clock: Clock,
        journal: CoordinatorLog | None = None,
        ranks_named: bool = False,
    ) -> None:
        self.session = CoordinatorSession(config, journal.term if journal else 0, ranks_named)
        self.session.history.unix_s, self.session.stacks.own = utc_now_s, stacks_text
        self.session.about = _about
        self._codec = Codec(cluster_id)
        self._clock, self._journal = AwakeClock(clock), journal
        last_s = self._replay()
        self._link = self._listen(transport, listen, config.timing)
        self._began_s = self._clock.now_s() - last_s
        """Clock time at cluster time 0; a successor continues its predecessor's cluster time."""
        self._stopped = False
        self._failure = ""
        self._last_status_s: float | None = None
        self._reporter = Reporter("coordinator", 0, cluster_id, str(self.session.term))
        self._saves, self._saved_s = self.session.registry.saves, utc_now_s()
        """Number of checkpoints, and the time of the last one, or of this start."""

    @property
    def address(self) -> str:
        """Address at which other processes reach it."""
        return self._link.address

    def resume(self) -> None:
        """Resume a run whose processes had all ended; call before `run`."""
        self.session.resume(self._now_s())

    def status_with_events(self) -> dict[str, Any]:
        """Return the status with events and checkpoints, for readers that ask for nothing else."""
        return self.session.status_with_events(self._now_s())

    def stop(self) -> None:
        """End `run` soon, whatever the state of the cluster; thread-safe."""
        self._stopped = True
        self._link.wake()

    def fail(self, reason: str) -> None:
        """End the run: every process gets the reason with its next heartbeat; thread-safe."""
        self._failure = reason
        self._link.wake()

    def run(self, tell: Callable[[dict[str, Any]], None] | None = None, stays: bool = False) -> None:
        """Serve until the cluster is over and the last status has been read, or `LINGER_S` has passed.

        Parameters
        ----------
        tell : callable or None
            Called with the status every `TELL_S`, in this thread: it must return at once.
        stays : bool
            True to serve on when all work is done: trainers that come later learn that it is.
        """
        over_s: float | None = None
        told_s = shown_s = -TELL_S
        try:
            with health.loop("coordinator") as turned:
                while not self._stopped and not self.session.superseded:
                    self._turn(final=over_s is not None)
                    turned()
                    now_s = self._clock.now_s()
                    if tell is not None and now_s - told_s >= TELL_S:
                        told_s = now_s
                        tell(self.status_with_events())
                    if reported.wanted and now_s - shown_s >= TELL_S:
                        shown_s = now_s
                        reported.show(self._reporter, self._figures())
                    if self.session.over and over_s is None:
                        over_s = now_s
                    lingers = over_s is not None and (now_s - over_s > LINGER_S or self._last_status_s)
                    if lingers and not (stays and not self.session.error):
                        break
        finally:
            reported.forget(self._reporter)
            self._link.close()

    def _figures(self) -> dict[str, Any]:
        """Return the values of `pslib.wire.counters.COORDINATOR`."""
        status = self.session.status(self._now_s())
        if status["saves"] != self._saves:
            self._saves, self._saved_s = status["saves"], utc_now_s()
        return status | {
            "lost_servers": len(status["servers_lost"]),
            "lost_trainers": len(status["trainers_lost"]),
            "training": int(status["phase"] == "training"),
            "examples_done": status["examples"],
            "checkpoints": self._saves,
            "checkpoint_s": self._saved_s,
            "rss_bytes": resident_bytes(),
        }

    def _listen(self, transport: Transport, address: str, timing: Timing) -> ServerLink:
        """Listen; a successor waits, and logs it, while another process still has the address."""
        began_s = said_s = self._clock.now_s()
        while True:
            try:
                return transport.listen(address)
            except AddressInUseError:
                now_s = self._clock.now_s()
                if now_s - began_s >= (timing.restart_s if self.session.term else 0.0):
                    raise
                if now_s == began_s or now_s - said_s >= timing.report_s:
                    said_s = now_s
                    waited = f"waiting {now_s - began_s:.0f} s for {address}"
                    log.warning("pslib: %s, where another process listens", waited)
                self._clock.sleep_s(TURN_S)

    def _replay(self) -> float:
        """Replay the journal; return the cluster's time at its end."""
        if self._journal is None:
            return 0.0
        last_s = 0.0
        for entries in self._journal.records():
            last_s = self.session.replay(entries)
        self.session.begin_again(last_s)
        self.session.journal.append = self._journal.append
        return last_s

    def _now_s(self) -> float:
        """Return the cluster's time: seconds since its first coordinator began, downtime excluded."""
        return self._clock.now_s() - self._began_s

    def _turn(self, final: bool) -> None:
        answers = [
            self._answer(peer, frames, final) for peer, frames in self._link.poll(TURN_S)
        ]  # replies go out after their records are written
        if self._failure:
            self.session.fail(self._failure)
        self.session.tick(self._now_s())
        if self._journal is None or self._journal.flush():
            for peer, frames in answers:
                self._link.send(peer, frames)
            if self._journal is not None and self._journal.is_long:
                self._journal.write_image(self.session.image(self._now_s()))

    def _answer(self, peer: bytes, frames: list[Buffer], final: bool) -> tuple[bytes, list[Buffer]]:
        try:
            envelope = self._codec.decode(frames)
        except RemoteProtocolError as error:
            log.warning("pslib coordinator: dropped a message: %s", error)
            return peer, self._codec.encode(0, Failure("protocol", str(error)))
        answer = self.session.handle(self._now_s(), envelope.message, getattr(peer, "role", None))
        if final and isinstance(envelope.message, Status):
            self._last_status_s = self._clock.now_s()
        return peer, self._encode(envelope.request_id, answer)

    def _encode(self, request_id: int, answer: Message) -> list[Buffer]:
        """Encode a reply; one beyond a limit must not end the run."""
        try:
            return self._codec.encode(request_id, answer)
        except LocalProtocolError as error:
            return self._codec.encode(request_id, Failure("internal", f"can't answer: {error}"))


def _about() -> dict[str, Any]:
    """Return where this process is, as members tell it, and its memory."""
    return {"where": f"pid {os.getpid()} on {socket.gethostname()}", "rss_bytes": resident_bytes()}


def run_coordinator(
    config: ClusterConfig,
    cluster_id: str,
    listen: str,
    announce: Callable[[str], None],
    insecure_network: bool = False,
    keys: Keys | None = None,
    journal: str | None = None,
    resume: bool = False,
    tell_end: Callable[[dict[str, Any]], None] | None = None,
    ranks_named: bool = False,
    tell: Callable[[dict[str, Any]], None] | None = None,
    alone: bool = False,
) -> int:
    """Run a coordinator process over ZeroMQ; return its exit code.

    Parameters
    ----------
    config, cluster_id, listen
        As for `Coordinator`.
    announce : callable
        Called once with the address, when processes can connect.
    insecure_network : bool
        True if ``listen`` may be reachable from other machines without encryption.
    keys : Keys or None
        The server-side keys of an encrypted cluster.
    journal : str or None
        Folder of its journal, for a restart.
    resume : bool
        True if an ended run is resumed: its failures and leaves no longer count.
    tell_end : callable or None
        Called once with the final status, when the cluster is over and its counters are complete.
    ranks_named : bool
        As for `Coordinator`.
    tell : callable or None
        As for `Coordinator.run`.
    alone : bool
        True for a coordinator without a launcher: with the journal of a run that has ended early it resumes
        that run, and when all work is done it serves on until it is asked to leave.

    Raises
    ------
    LogError
        If a run is to resume without its journal: it would silently begin anew.
    """
    if resume and journal is not None and not has_begun(journal):
        raise LogError(
            f"--resume: {journal}: expected the journal of the run that is to go on, got none: restore its "
            "logs, or begin another run with its checkpoint (load.path)"
        )
    transport = ZmqTransport(insecure_network=insecure_network, keys=keys)
    log_ = None
    try:
        allow_peers(config.servers + config.trainers)
        log_ = open_journal(journal, config, cluster_id)
        coordinator = Coordinator(transport, config, cluster_id, listen, SystemClock(), log_, ranks_named)
        if resume or (alone and coordinator.session.has_ended_early):
            coordinator.resume()
        health.waits_for = ""
        announce(coordinator.address)
        coordinator.run(tell, stays=alone)
        if tell_end is not None and coordinator.session.over:
            tell_end(coordinator.status_with_events())
    finally:
        if log_ is not None:
            log_.close()
        transport.close()
    return 69 if coordinator.session.error or coordinator.session.superseded else 0


def open_journal(folder: str | None, config: ClusterConfig, cluster_id: str) -> CoordinatorLog | None:
    """Open the coordinator's journal in a folder; None for none."""
    if folder is None:
        return None
    with in_words(folder):
        files = DiskFiles(folder)
    return CoordinatorLog(
        files,
        cluster_id,
        SystemClock(),
        disk=config.durability == "disk",
        patience_s=config.timing.silence_s,
        place=folder,
        space_s=config.timing.request_s,
    )
