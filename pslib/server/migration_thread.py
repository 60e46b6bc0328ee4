"""A server's moves, done: a thread that asks the coordinator what to hand over, and hands it over.

It lives while units move. What to do is for `pslib.server.migration.Migration` to say.
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
from pslib.wire.messages import Failure, Hand, Message, Setup

__all__ = ["MigrationThread"]

log = logging.getLogger("pslib")
PAUSE_S = 0.02
"""Between two questions for work while others are not through with the wave."""
ASK_AGAIN_S = 1.0
"""While units are on their way the coordinator is asked so often where their owners are now."""
PATIENCE_S = 20.0
"""For one answer: a partition of 1 GiB takes some 10 s to cross a network of 1 Gbit/s."""

_FINAL = ConfigurationError | MemoryLimitError
"""Refusals that stay what they are; whatever else happens, it is tried again."""


class MigrationThread:
    """Hands units over for a server.

    Parameters
    ----------
    endpoint : Endpoint
        Asks the coordinator and other servers.
    member : MemberHandle
        Who we are.
    clock : Clock
    ask_shards : callable
        Given a message and who takes its answer, has the own shards do it.
    setup : callable
        Gives the message that makes our tables at another server.
    published : callable
        Told up to which map all moves are complete.
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
        """There is something to hand over; any number of times, from one thread."""
        if self._thread is not None and self._thread.is_alive():
            return
        self._thread = threading.Thread(target=self._run, name="pslib-hand-over", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End soon; what is on its way is asked for again by somebody."""
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
        except PslibError as error:  # it can ask nobody any more, and so can't the rest of the server
            log.info("pslib: moves end: %s", error)

    def _turn(self) -> bool:
        """Ask for work and do it; False when nothing moves any more."""
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
                return True  # perhaps a new owner is elsewhere by now
        return True

    def _ask_for_work(self) -> Hand | None:
        message = self._session.report(self._member.rank, self._member.incarnation)
        try:
            answer = self._endpoint.ask(self._member.coordinator, message, PATIENCE_S).wait()
        except WaitTimeoutError:
            return None
        return answer if isinstance(answer, Hand) else None

    def _let_go(self) -> None:
        """Keep nothing for servers that were reached: images for one that died would stay for good."""
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
        except LocalProtocolError as error:  # larger than a message may be
            self._answered(action, Failure("configuration", str(error)))
            return
        pending.on_done(lambda: self._answered(action, _outcome(pending)))

    def _answered(self, action: Action, answer: Message | None) -> None:
        self._events.put((action, answer))

    def _take_answers(self) -> bool:
        """Wait a moment for answers, and take all that have come; whether there were any."""
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
    """The answer that a pending has; None where the peer could not be reached."""
    try:
        answer: Message = pending.wait(0)
    except PslibError as error:
        return failure_of(error) if isinstance(error, _FINAL) else None
    return answer
