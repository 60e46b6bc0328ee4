"""Request endpoint of a process: sends requests, retries them, and delivers replies or timeouts.

Callers in any thread send their own requests and get a `Pending`; one thread receives the replies and
retries. The sessions are pure; one lock guards them and the link.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable
from math import inf

from pslib.client.gradients import check_process
from pslib.client.pending import Pending
from pslib.client.requests import Expired, RequestTable
from pslib.client.session import ClientSession
from pslib.clock import AwakeClock, Clock
from pslib.config import Timing
from pslib.errors import (
    ForeignMessageError,
    PslibError,
    RemoteProtocolError,
    UnavailableError,
    WaitTimeoutError,
)
from pslib.process.health import health
from pslib.transport import ClientLink
from pslib.wire.codec import Buffer, Codec
from pslib.wire.error_codes import error_of
from pslib.wire.fields import Message
from pslib.wire.messages import Failure

log = logging.getLogger("pslib")
IDLE_S = 0.25
"""Maximum delay of a heartbeat. A message ends a wait at once, and no wait is longer than until the next
retry. A turn of the thread costs some 30 us, which hundreds of processes on a machine would each pay 20
times a second.
"""


BEAT_LOOK_S = 0.02
"""Interval between checks for a due heartbeat, instead of a check for each of thousands of messages a second.
"""
WAITS_TOLD = 4
"""Peers named in the log and in heartbeats; a wait for more peers has a common cause."""


Came = tuple[str, list[Buffer]]
"""A message and its sender."""


def _bytes_of(messages: Iterable[Came]) -> int:
    """Return the bytes of all frames of all messages."""
    total = 0
    for _peer, frames in messages:
        total += len(frames[0]) if len(frames) == 1 else sum(map(len, frames))
    return total


class Endpoint:
    """Sender of requests to any number of peers, with its own receive thread.

    Parameters
    ----------
    link : ClientLink
        The link, used under this endpoint's lock.
    codec : Codec
        The cluster's codec.
    timing : Timing
        Retries, patience, and how often a long wait is reported.
    clock : Clock
        The machine's clock; waits are counted by an `AwakeClock`.
    first_request_id : int
        A random number, so that replies to a predecessor match nothing.
    """

    def __init__(
        self, link: ClientLink, codec: Codec, timing: Timing, clock: Clock, first_request_id: int
    ) -> None:
        self.timing, self.clock, self.machine_clock = timing, AwakeClock(clock), clock
        self.requests = RequestTable(codec, timing, first_request_id)
        self.session: ClientSession | None = None
        self.lock = threading.RLock()
        self._room = threading.Condition(self.lock)
        self._room_wanted = 0  # callers that wait for room
        self.every_heartbeat: Callable[[], None] | None = None
        self.bytes_sent = 0
        self.bytes_received = 0
        self.messages_sent = 0
        self.messages_received = 0
        self._link = link
        self._codec = codec
        self._asked: dict[int, Pending[Message]] = {}
        self._calls: dict[int, Pending[int]] = {}
        self._error: PslibError | None = None
        self._closing = False
        self._closed = False
        self._process = os.getpid()
        self._sleeps_until_s = self._looks_s = 0.0
        self.beat_due_s = inf
        self._reported_s = 0.0
        self._thread = threading.Thread(target=self._run, name="pslib-endpoint", daemon=True)
        self._thread.start()

    @property
    def cluster_id(self) -> str:
        """Id of the cluster, which is in every message."""
        return self._codec.cluster_id

    def begin_heartbeats(self, beat: Callable[[], None]) -> None:
        """Call ``beat`` in the thread, now and on each turn that it is due."""
        self.every_heartbeat, self._looks_s = beat, 0.0
        self._link.wake()

    def use_timing(self, timing: Timing) -> None:
        """Use the cluster's timing from the next request on."""
        with self.lock:
            self.timing = self.requests.timing = timing

    def use_space_s(self, space_s: float) -> None:
        """Limit the retries to a peer without log space to ``space_s``; the default is as for others."""
        self.requests.space_s = space_s

    def ask(self, peer: str, message: Message, patience_s: float | None = None) -> Pending[Message]:
        """Send a request until it is answered; a `Failure` becomes an exception."""
        check_process(self._process)
        pending: Pending[Message] = Pending(f"{message.kind} from {peer}")
        with self.lock:
            self._check()
            ticket = self.requests.start(self.clock.now_s(), peer, message, patience_s=patience_s)
            self._asked[ticket] = pending
            try:
                self._send_all()
            except PslibError:  # the peer has no such address
                self.requests.cancel(ticket)
                del self._asked[ticket]
                raise
        return pending

    def call(self, what: str, begin: Callable[[ClientSession, float], int]) -> tuple[int, Pending[int]]:
        """Start a pull or push of the session; the pending returns the call's number on completion.

        While more bytes wait for credit than may be in flight to one server, the caller waits too: a process
        must not buffer what a slow server does not take. Callbacks of this endpoint's thread never wait.

        Raises
        ------
        WaitTimeoutError
            When there is still no room after ``Timing.request_s``.
        """
        check_process(self._process)
        pending: Pending[int] = Pending(what)
        with self.lock:
            if self.requests.unsent_bytes:
                self._wait_for_room(what)
            self._check()
            assert self.session is not None
            number = begin(self.session, self.clock.now_s())
            self._calls[number] = pending
            if self.session.completed:
                self._complete_calls()
            self._send_all()
        return number, pending

    def _has_room(self) -> bool:
        share = self.requests.shares.share_bytes
        return not share or self.requests.unsent_bytes <= share or self._error is not None

    def _wait_for_room(self, what: str) -> None:
        if self._has_room() or threading.current_thread() is self._thread:
            return
        self._room_wanted += 1
        try:
            has_room = self._room.wait_for(self._has_room, self.timing.request_s)
        finally:
            self._room_wanted -= 1
        if not has_room:
            unsent = self.requests.unsent_bytes
            raise WaitTimeoutError(
                f"waited {self.timing.request_s:g} s to start {what}: {unsent:,} bytes wait for credit; "
                "is a server stopped?"
            )

    @property
    def calls_open(self) -> int:
        """Return the number of pulls and pushes in flight."""
        return len(self._calls)

    def end_waits_for(self, peer: str, error: PslibError) -> None:
        """Fail the requests to a peer that has left; parts of calls are the session's."""
        with self.lock:
            tickets = [ticket for ticket in self.requests.waits_for(peer) if ticket in self._asked]
            pending = [self._asked.pop(ticket) for ticket in tickets]
            for ticket in tickets:
                self.requests.cancel(ticket)
        for one in pending:
            one.fail(error)

    def forget(self, peer: str) -> None:
        """Drop all state of a peer that is gone; its requests are over or redirected."""
        with self.lock:
            self._send_all()  # otherwise the last messages to it would make the link reconnect
            self._link.forget(peer)

    def fail(self, error: PslibError) -> None:
        """End every wait, now and later, with this error."""
        with self.lock:
            self._error = self._error or error
            pending: list[Pending[Message] | Pending[int]] = [*self._asked.values(), *self._calls.values()]
            self._asked.clear()
            self._calls.clear()
            self.requests.cancel_all()
            self._room.notify_all()
        for one in pending:
            one.fail(error)

    @property
    def error(self) -> PslibError | None:
        """Error that ended this endpoint, if any."""
        return self._error

    def close(self) -> None:
        """Stop the thread; open requests fail."""
        self._closing = True
        self._link.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(5.0)
        self.fail(UnavailableError("this process has left the cluster"))

    # --- the thread ---------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._error:
            raise self._error

    def _run(self) -> None:
        try:
            with health.loop("endpoint") as turned:
                while not self._closing:
                    self._turn()
                    turned()
        except Exception as error:  # no caller may wait for a dead thread
            log.exception("pslib: the endpoint's thread has died")
            self.fail(UnavailableError(f"internal: {type(error).__name__}: {error}"))
        finally:
            with self.lock:
                try:
                    self._send_all()  # the last leave messages
                finally:
                    self._closed = True
                    self._link.close()

    def _turn(self) -> None:
        now_s = self.clock.now_s()
        if now_s >= self._looks_s or now_s >= self.beat_due_s:
            self._look_around(now_s)
        with self.lock:
            self._look_at_time(now_s)
            came = self._link.receive()
            refusals = self._link.refusals()
            self._sleeps_until_s = (
                now_s if came else min(now_s + IDLE_S, self.requests.due_s, self.beat_due_s)
            )
        patience_s = max(0.0, self._sleeps_until_s - now_s)
        came = came or self._receive_all(patience_s)
        if came:
            self.messages_received += len(came)
            self.bytes_received += _bytes_of(came)
            now_s = self.clock.now_s()
            for peer, frames in came:
                self._receive(now_s, peer, frames)
        for peer, reason in refusals:
            self._refused(peer, Failure("forbidden", reason))

    def _look_at_time(self, now_s: float) -> None:
        """Resend or expire due requests; send requests that have room now, and wake their callers."""
        for expired in self.requests.tick(now_s):
            self._expire(expired)
        self._complete_calls()
        if self._room_wanted and self._has_room():
            self._room.notify_all()
        if self.requests.outbox:
            self._send_all()

    def _look_around(self, now_s: float) -> None:
        """Run periodic work: report long waits, send a heartbeat."""
        self._looks_s = now_s + BEAT_LOOK_S
        self._report(now_s)
        beat = self.every_heartbeat  # another thread may clear it at any moment
        if beat:
            beat()

    def _send_all(self) -> None:
        """Send queued messages; wake the thread when it would miss a reply or sleep too long."""
        outgoing, self.requests.outbox = self.requests.outbox, []
        if not outgoing or self._closed:
            return
        self.messages_sent += len(outgoing)
        self.bytes_sent += _bytes_of(outgoing)
        self._link.send_all(outgoing)
        if threading.current_thread() is not self._thread and (
            self.requests.due_s < self._sleeps_until_s or self._link.ready()
        ):
            self._link.wake()

    def _receive_all(self, patience_s: float) -> list[Came]:
        """Wait for messages and return those that arrived."""
        self._link.wait(patience_s)
        with self.lock:
            return self._link.receive()

    def _receive(self, now_s: float, peer: str, frames: list[bytes | bytearray | memoryview]) -> None:
        try:
            request_id, message = self._codec.decode(frames)
        except ForeignMessageError as error:  # refused by another kind of process: permanent
            self._refused(peer, Failure("protocol", str(error)))
            return
        except RemoteProtocolError as error:
            log.warning("pslib: dropped a message from %s: %s", peer, error)
            return
        if request_id == 0 and isinstance(message, Failure):
            self.fail(error_of(message, peer))  # the peer could not decode the request
            return
        with self.lock:
            if isinstance(message, Failure) and message.code == "log-full":
                self.requests.refused_for_now(request_id, message.text)  # space may be freed
                return
            ticket = self.requests.receive(request_id, now_s)
            if ticket is not None and self.session is not None and ticket not in self._asked:
                self.session.receive(now_s, ticket, message)
                if self.session.completed:
                    self._complete_calls()
                return
        if ticket is not None:
            self._answer(now_s, peer, ticket, message)

    def _refused(self, peer: str, refusal: Failure) -> None:
        """Fail at once the requests to a peer that refuses connections, with its reason."""
        with self.lock:
            tickets = self.requests.give_up(peer)
        now_s = self.clock.now_s()
        for ticket in tickets:
            self._answer(now_s, peer, ticket, refusal)

    def _answer(self, now_s: float, peer: str, ticket: int, message: Message) -> None:
        with self.lock:
            pending = self._asked.pop(ticket, None)
            if pending is None and self.session:
                self.session.receive(now_s, ticket, message)
                self._complete_calls()
                return
        if pending is not None:
            if isinstance(message, Failure):
                pending.fail(error_of(message, peer))
            else:
                pending.succeed(message)

    def _complete_calls(self) -> None:
        if self.session is None or not self.session.completed:
            return
        over, self.session.completed = self.session.completed, []  # callbacks may begin, and end, more calls
        for completed in over:
            pending = self._calls.pop(completed.call, None)
            if pending and completed.error:
                pending.fail(completed.error)
            elif pending:
                pending.succeed(completed.call)

    def _expire(self, expired: Expired) -> None:
        ticket, peer, waited_s = expired.ticket, expired.peer, expired.waited_s
        if expired.why:
            refusal = Failure("log-still-full", f"{expired.why}; asked for {waited_s:.0f} s")
            self._answer(self.clock.now_s(), peer, ticket, refusal)
            return
        pending = self._asked.pop(ticket, None)
        if pending:
            pending.fail(WaitTimeoutError(f"waited {waited_s:.0f} s for {peer}: no answer; is it alive?"))
        elif self.session:
            self.session.expire(ticket, waited_s)

    def _report(self, now_s: float) -> None:
        if now_s - self._reported_s < self.timing.report_s:
            return
        self._reported_s = now_s
        for peer, what, seconds in self.waits(self.timing.report_s):
            log.warning("pslib: waiting %.0f s for %s (%s)", seconds, peer, what)

    def waits(self, longer_than_s: float) -> list[tuple[str, str, float]]:
        """Return (peer, what, seconds) of the oldest request to each peer and the oldest without credit."""
        with self.lock:
            waiting = self.requests.waiting(self.clock.now_s(), longer_than_s)
        longest: dict[tuple[str, bool], tuple[str, str, float]] = {}
        for peer, what, seconds in waiting:
            longest.setdefault((peer, "for credit" in what), (peer, what, seconds))
        return list(longest.values())[:WAITS_TOLD]
