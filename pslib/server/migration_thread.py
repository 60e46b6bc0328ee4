"""Thread that runs a server's migration: asks the coordinator which units to hand over, and hands them over.

It runs while units move. `pslib.server.migration.Migration` decides the steps.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from pslib.client.endpoint import Endpoint
from pslib.client.membership import MemberHandle
from pslib.client.pending import Pending
from pslib.clock import Clock
from pslib.errors import (
    ConfigurationError,
    LocalProtocolError,
    MemoryLimitError,
    PslibError,
    ServerLeftError,
    WaitTimeoutError,
)
from pslib.server.migration import Action, Migration
from pslib.wire.error_codes import failure_of
from pslib.wire.fields import Message
from pslib.wire.messages import Failure, Hand, Setup

log = logging.getLogger(__name__)
PAUSE_S = 0.02
"""Interval between requests for work while other servers have not finished the wave."""
ASK_AGAIN_S = 1.0
"""Interval between requests to the coordinator for current owners, while units are in flight."""
PATIENCE_S = 20.0
"""Patience for one reply: a partition of 1 GiB takes some 10 s to cross a network of 1 Gbit/s."""

_FINAL = ConfigurationError | MemoryLimitError
"""Permanent refusals; all other errors are retried."""


class MigrationThread:
    """Thread that hands over units of a server.

    Parameters
    ----------
    endpoint : Endpoint
        Sends requests to the coordinator and other servers.
    member : MemberHandle
        This server's membership.
    clock : Clock
    ask_shards : callable
        Given a message and a callback for its reply, runs it on the own shards.
    setup : callable
        Returns the message that creates our tables at another server.
    published : callable
        Called with the map version up to which all moves are complete.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        member: MemberHandle,
        clock: Clock,
        ask_shards: Callable[[Message, Callable[[Message], None]], None],
        setup: Callable[[], Setup],
        published: Callable[[int], None],
    ) -> None:
        self._endpoint, self._member, self._clock = endpoint, member, clock
        self._ask_shards, self._published = ask_shards, published
        self._session = Migration(setup)
        self._events: SimpleQueue[tuple[Action, Message | None]] = SimpleQueue()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._reached: set[str] = set()

    def begin(self) -> None:
        """Start handing over units; may be called repeatedly, from one thread."""
        if self._thread is not None and self._thread.is_alive():
            return
        self._thread = threading.Thread(target=self._run, name="pslib-hand-over", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop soon; units in flight are requested again later."""
        self._closing.set()

    def join(self) -> None:
        """Wait for the end, after `stop` and after the endpoint has been closed."""
        if self._thread is not None:
            self._thread.join(5.0)

    # --- the thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing.is_set() and self._turn():
                pass
        except PslibError as error:  # the endpoint has failed, for all of the server
            log.info("pslib: moves end: %s", error)

    def _turn(self) -> bool:
        """Request work and do it; return False when no unit moves any more."""
        hand = self._ask_for_work()
        if hand is None or hand.state == "wait":
            self._closing.wait(PAUSE_S)
            return True
        if hand.state != "hand":
            self._published(hand.version)
            self._let_go()
            return False
        self._published(hand.version - 1)
        self._session.take(hand)
        asked_s = self._clock.now_s()
        while not self._session.over and not self._closing.is_set():
            now_s = self._clock.now_s()
            for action in self._session.actions(now_s):
                self._do(action)
            if not self._take_answers() and now_s - asked_s > ASK_AGAIN_S:
                return True  # a new owner may have another address by now
        return True

    def _ask_for_work(self) -> Hand | None:
        message = self._session.report(self._member.rank, self._member.incarnation)
        try:
            answer = self._endpoint.ask(self._member.coordinator, message, PATIENCE_S).wait()
        except WaitTimeoutError:
            return None
        return answer if isinstance(answer, Hand) else None

    def _let_go(self) -> None:
        """Drop all state of the servers that were reached: images for a dead one would stay for good."""
        for address in self._reached:
            self._endpoint.end_waits_for(address, ServerLeftError(f"{address}: all moves are over"))
            self._endpoint.forget(address)
        self._reached.clear()

    def _do(self, action: Action) -> None:
        if not action.address:
            self._ask_shards(action.message, partial(self._answered, action))
            return
        self._reached.add(action.address)
        try:
            pending = self._endpoint.ask(action.address, action.message, PATIENCE_S)
        except LocalProtocolError as error:  # exceeds the limits of a message
            self._answered(action, Failure("configuration", str(error)))
            return
        pending.on_done(lambda: self._answered(action, _outcome(pending)))

    def _answered(self, action: Action, answer: Message | None) -> None:
        self._events.put((action, answer))

    def _take_answers(self) -> bool:
        """Wait briefly for replies, and take all that have come; return whether there were any."""
        try:
            event = self._events.get(timeout=PAUSE_S)
        except Empty:
            return False
        while True:
            self._session.answered(self._clock.now_s(), *event)
            try:
                event = self._events.get_nowait()
            except Empty:
                return True


def _outcome(pending: Pending[Any]) -> Message | None:
    """Return the reply of a pending; None where the peer could not be reached."""
    try:
        answer: Message = pending.wait(0)
    except PslibError as error:
        return failure_of(error) if isinstance(error, _FINAL) else None
    return answer
