"""A call of short parts does, and leaves behind, what the same call does part by part, whatever is lost."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pslib.protocol.client_session import ClientSession, PushName
from pslib.protocol.pushes_between import Seen
from tests import protocol_worlds
from tests.protocol_worlds import CODEC, OneServer, completed, make_client, setup_of

DIM = 3


def content(frames: list[bytes]) -> str:
    """A message without its number, which two clients need not give alike once they ask again."""
    return repr(CODEC.decode(frames).message)


@dataclass
class World:
    """A client and two servers; messages lie where the script finds them, the oldest of each server first."""

    client: ClientSession
    servers: list[OneServer]
    asked: dict[str, list[list[bytes]]] = field(default_factory=lambda: {"0": [], "1": []})
    answers: dict[str, list[list[bytes]]] = field(default_factory=lambda: {"0": [], "1": []})
    over: list[Any] = field(default_factory=list)
    pulls: set[int] = field(default_factory=set)
    rows: list[Any] = field(default_factory=list)

    def send(self) -> None:
        """Take what the client wants to be sent."""
        outbox, self.client.requests.outbox = self.client.requests.outbox, []
        frames = [(one.peer, [bytes(frame) for frame in one.frames]) for one in outbox]
        for peer, some in sorted(frames, key=lambda one: content(one[1])):
            self.asked[peer].append(some)

    def pull(self, now_s: float, keys: NDArray[np.uint64]) -> None:
        """Begin a pull."""
        self.pulls.add(self.client.pull(now_s, {"t": keys}))

    def push(self, now_s: float, name: PushName, keys: Any, rows: Any, since: Seen) -> None:
        """Begin a push."""
        self.client.push(now_s, name, {"t": (keys, rows)}, since=since)

    def lose(self, server: str, pile: str) -> None:
        """All that is on its way to a server, or from it."""
        getattr(self, pile)[server].clear()

    def tick(self, now_s: float) -> None:
        """Time passes."""
        assert not self.client.requests.tick(now_s)

    def serve(self, server: str) -> None:
        """A server answers the oldest request."""
        self.answers[server].append(self.servers[int(server)].answer_to(self.asked[server].pop(0)))

    def take(self, server: str, now_s: float) -> None:
        """The client takes a server's oldest answer, as its endpoint does."""
        came: list[Any] = [(server, self.answers[server].pop(0))]
        for _peer, frames in self.client.receive_short(now_s, came):
            envelope = CODEC.decode(frames)
            ticket = self.client.requests.receive(envelope.request_id, now_s)
            if ticket is not None:
                self.client.receive(now_s, ticket, envelope.message)
        for call, error in completed(self.client):
            assert error is None
            self.over.append(call)
            if call in self.pulls:
                pulled = self.client.pulled(call)
                self.rows.append((call, pulled.rows["t"].tolist(), dict(pulled.seen)))

    def left(self) -> dict[str, Any]:
        """All that can be told apart when nothing is on its way any more."""
        client, shares = self.client, self.client.requests.shares
        return {
            "over": self.over,
            "rows": self.rows,
            "applied": [client.acked_below(stream) for stream in (7, 8)],
            "witnesses": [repr(client.acknowledged.question(server)) for server in (0, 1)],
            "between": client.between,
            "sent": (client.pushes_sent, client.updates_sent),
            "flying": [shares.in_flight_bytes(peer) for peer in ("0", "1")],
            "open": (len(client.requests), client.requests.unsent_bytes),
            "servers": [server.shards[0].counters for server in self.servers],
        }


def _world(monkeypatch: pytest.MonkeyPatch, way: str, share_bytes: int) -> World:
    monkeypatch.setattr(protocol_worlds, "way", way)
    client = make_client(2, {"t": DIM})
    client.requests.shares.share_bytes = share_bytes
    servers = [OneServer(units=list(range(8))), OneServer(units=list(range(8, 16)))]
    for server in servers:
        server.ask(setup_of(t=DIM))
    return World(client, servers)


class Script:
    """The same random things done in a world with short calls and in one without, one after the other."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.random, self.now_s = random.Random(seed), 0.0
        self.share_bytes = self.random.choice([0, 1 << 20, 400])
        self.worlds = [_world(monkeypatch, way, self.share_bytes) for way in ("short", "full")]
        self.numbers, self.seen, self.shorts = {7: 0, 8: 0}, Seen(), 0

    def everywhere(self, do: Callable[..., None], *arguments: Any) -> None:
        """Do it in both, and see the same messages wait in both."""
        for world in self.worlds:
            do(world, *arguments)
            world.send()
        contents = [[list(map(content, one)) for one in world.asked.values()] for world in self.worlds]
        assert contents[0] == contents[1]
        self.shorts += len(self.worlds[0].client.requests.short or ())

    def step(self) -> None:
        """Do one thing."""
        self.now_s += self.random.choice([0.0, 0.01, 0.2])
        keys = np.array(self.random.sample(range(60), self.random.randint(1, 9)), np.uint64)
        kind = self.random.choice(["pull", "push", "serve", "serve", "take", "take", "take", "lose", "wait"])
        server, first = self.random.choice("01"), self.worlds[0]
        if kind == "pull":
            self.everywhere(World.pull, self.now_s, keys)
        elif kind == "push":
            stream = self.random.choice([7, 8])
            rows = np.full((keys.size, DIM), self.random.random(), np.float32)
            name = PushName(stream, self.numbers[stream])
            self.numbers[stream] += 1
            self.everywhere(World.push, self.now_s, name, keys, rows, self.seen)
        elif kind == "serve" and first.asked[server]:
            self.everywhere(World.serve, server)
        elif kind == "take" and first.answers[server]:
            self.everywhere(World.take, server, self.now_s)
            self.seen = Seen({0: 1, 1: 1})
        elif kind == "lose" and self.random.random() < 0.3:
            self.everywhere(World.lose, server, self.random.choice(["asked", "answers"]))
        elif kind == "wait":
            self.now_s += self.random.choice([0.3, 1.1])
            self.everywhere(World.tick, self.now_s)

    def end(self) -> None:
        """Nothing is lost any more."""
        for _round in range(30):
            for server in "01":
                while self.worlds[0].asked[server]:
                    self.everywhere(World.serve, server)
                while self.worlds[0].answers[server]:
                    self.everywhere(World.take, server, self.now_s)
            self.now_s += 1.1
            self.everywhere(World.tick, self.now_s)


@pytest.mark.parametrize("seed", range(40))
def test_scripts_with_losses_and_second_tries_end_as_by_the_definition(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(seed, monkeypatch)
    for _step in range(120):
        script.step()
    script.end()
    short, full = (world.left() for world in script.worlds)
    assert short == full
    assert short["open"] == (0, 0)
    assert script.shorts > 0
