"""Units on their way: random waves, an administrator that scales, and a server's part in both."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pslib.coordinator.rebalance import Rebalance
from pslib.coordinator.session import CoordinatorSession
from pslib.errors import PslibError
from pslib.server.migration import Action, Migration
from pslib.wire.fields import Message
from pslib.wire.messages import Failure, Hand, Result, Scale
from tests.simulation.cluster.members import COORDINATOR, Asker
from tests.simulation.cluster.network import CODEC

if TYPE_CHECKING:
    from tests.simulation.cluster.server import Server
    from tests.simulation.cluster.world import World

__all__ = ["Admin", "Hands", "RestlessMoves", "with_restless_moves"]

PAUSE_S = 0.02
ASK_AGAIN_S = 1.0
PATIENCE_S = 5.0


class RestlessMoves(Rebalance):
    """Moves what it is told to; plans of its own it makes only once servers have been asked for."""

    more_to_come = False

    @property
    def moving(self) -> bool:
        """True if servers should ask again soon."""
        return self.more_to_come or super().moving

    def send(self, units: list[int], targets: list[int]) -> None:
        """Begin a wave of these units, unless one is under way."""
        if self.wave is None and self.members.map is not None and not self._asked:
            version = (self.members.map.version // (1 << 16) + 1) << 16
            self._record({"kind": "wave", "version": version, "units": units, "targets": targets})

    def _begin(self, now_s: float) -> None:
        if self._asked:
            super()._begin(now_s)


def with_restless_moves(session: CoordinatorSession) -> CoordinatorSession:
    """The same session; its moves are told by the world what to do."""
    session.moves.__class__ = RestlessMoves
    return session


class Admin(Asker):
    """Sends a few units to and fro, so that they come back to where they were; in some worlds, scales."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "admin")
        self.left = world.random.randint(4, 10)
        self._scale_requests: list[Scale] = []
        self._scales = world.random.randint(1, 2) if world.random.random() < 0.4 else 0

    @property
    def done(self) -> bool:
        """True if no move is under way and none will begin."""
        return not self.left and not self._scales and self.world.moves.wave is None

    def rest(self) -> None:
        """Move nothing, as there is nowhere to."""
        self.left = self._scales = 0

    def begin(self) -> None:
        """All servers are there."""
        self.after(self.world.random.uniform(0, 0.3), self._turn)

    def _turn(self) -> None:
        if self.left:
            self._send_some()
            self.world.moves.more_to_come = self.left > 0
            self.after(self.world.random.uniform(0.01, 0.3), self._turn)
        elif self._scales:
            self._scale()

    def _send_some(self) -> None:
        choice, world = self.world.random, self.world
        units = sorted(choice.sample(world.restless, choice.randint(1, 3)))
        owners = world.map.owners[units].tolist()
        ranks = world.ranks
        if not ranks or (len(ranks) == 1 and world.mishaps.asked):  # the run has failed; others were drained
            self.left = 0
            return
        targets = [choice.choice([rank for rank in ranks if rank != owner] or owners) for owner in owners]
        pairs = [(u, t) for u, o, t in zip(units, owners, targets, strict=True) if o != t]
        if pairs and world.moves.wave is None and not world.coordinator.session.registry.at_files:
            self.left -= 1
            world.moves.send([unit for unit, _target in pairs], [target for _unit, target in pairs])

    def _scale(self) -> None:
        self._wish(self.world.random.randint(1, 4))

    def _wish(self, servers: int) -> None:
        message = Scale(servers, [], self.world.random.getrandbits(62))
        self.network.tell(f"{self} wants {servers} servers")
        for earlier in self._scale_requests:  # a copy that was on its way for long comes when others count
            delay_s = self.world.random.uniform(0.0, 1.0)
            frames = CODEC.encode(self.world.random.getrandbits(62), earlier)
            self.after(delay_s, partial(self.network.send, f"{self.address}/asks", COORDINATOR, frames))
        self._scale_requests.append(message)
        self.ask(COORDINATOR, message, partial(self._granted, servers))

    def _granted(self, servers: int, answer: Result) -> None:
        for _ in range(0 if self.world.lives.down else int(answer.values["awaited"])):
            self.world.start_server()
        self._wait(servers)

    def _wait(self, servers: int) -> None:
        """Until as many own units as were asked for, and all is at rest."""
        owning = np.unique(self.world.map.owners).size
        if self.world.mishaps.asked:  # a request to leave has asked for fewer servers since
            servers = self.world.moves.wanted
        if owning == servers and not self.world.moves.moving:
            self._scales -= 1
            self.after(self.world.random.uniform(0, 0.5), self._turn)
        elif self.world.moves.progress.stopped or self.world.moves.wanted < servers:
            # A disk was full, or a server that was awaited has not come: people see to it, and wish again.
            self.after(ASK_AGAIN_S, partial(self._wish, servers))
        else:
            self.after(0.1, partial(self._wait, servers))


class Hands:
    """The thread of `pslib.server.migration_thread.MigrationThread`, in events."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._session = Migration(server.shards[0].setup_message)
        self._running = False
        self._asked_s = 0.0

    def begin(self) -> None:
        """There is something to hand over; any number of times."""
        if not self._running:
            self._running = True
            self._ask()

    def _ask(self) -> None:
        member = self._server.member
        message = self._session.report(member.rank, member.incarnation)
        self._server.ask(COORDINATOR, message, self._hand, PATIENCE_S, lambda _error: self._ask())

    def _hand(self, hand: Hand) -> None:
        server = self._server
        if hand.state == "wait":
            server.after(PAUSE_S, self._ask)
        elif hand.state != "hand":
            server.moves_over(hand.version)
            self._running = False
        else:
            server.moves_over(hand.version - 1)
            self._session.take(hand)
            self._asked_s = server.now_s()
            self._step()

    def _step(self) -> None:
        server = self._server
        for action in self._session.actions(server.now_s()):
            self._do(action)
        if self._session.over or server.now_s() - self._asked_s > ASK_AGAIN_S:
            self._ask()
        else:
            server.after(PAUSE_S, self._step)

    def _do(self, action: Action) -> None:
        answered = partial(self._answered, action)
        if action.address:
            self._server.ask(action.address, action.message, answered, PATIENCE_S, partial(self._not, action))
        else:
            self._server.ask_shards(action.message, answered)

    def _answered(self, action: Action, answer: Message | None) -> None:
        self._session.answered(self._server.now_s(), action, answer)

    def _not(self, action: Action, error: PslibError) -> None:
        code: Any = "configuration" if type(error).__name__ == "ConfigurationError" else None
        self._answered(action, Failure(code, str(error)) if code else None)
