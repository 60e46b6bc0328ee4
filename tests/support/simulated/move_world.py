"""A small world around a coordinator's moves, for tests: members, servers that hand over, one trainer."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np

from pslib.config import ClusterConfig, Timing
from pslib.coordinator.membership import Membership
from pslib.coordinator.rebalance import Rebalance
from pslib.wire.messages import Hand, NextHand, Scale

TIMING = Timing(heartbeat_s=1.0, silence_s=6.0, start_s=60.0)
CONFIG = ClusterConfig(servers=2, trainers=1, partition_bits=8, dense_blocks=8, timing=TIMING)


class World:
    """A coordinator's members and moves, servers that hand over what they are told, and one trainer."""

    def __init__(self, servers: int = 2, config: ClusterConfig = CONFIG) -> None:
        self.members = Membership(config)
        self.lines: list[str] = []
        self.records: list[dict[str, Any]] = []
        self.moves = Rebalance(self.members, self.say, wave_units=64)
        self.moves.on_record = self.records.append
        self.now_s = 0.0
        self.names = count(1)
        for _ in range(servers):
            self.join()
        self.members.register(0.0, "trainer", 900, "", "")
        self.beat()

    def say(self, text: str, *_about: object) -> None:
        self.lines.append(text)

    def join(self) -> None:
        number = len(self.members.servers)
        self.members.register(self.now_s, "server", 100 + number, f"tcp://server:{number}", "")

    def beat(self) -> None:
        """All members hear the newest map."""
        assert self.members.map is not None
        for member in (*self.members.servers, *self.members.trainers):
            member.map_version, member.heard_s = self.members.map.version, self.now_s

    def settle(self) -> None:
        """All members hear of the newest servers, and moves begin if they may."""
        self.tick()
        self.beat()
        self.tick()

    def scale(self, servers: int, drain: tuple[int, ...] = ()) -> Any:
        return self.moves.scale(self.now_s, Scale(servers, list(drain), next(self.names)))

    def tick(self, seconds: float = 0.5, busy: bool = False) -> None:
        self.now_s += seconds
        self.moves.tick(self.now_s, busy)

    def ask(self, rank: int, hand: Hand | None = None, kept: int = 0) -> Hand:
        """A server's question, after it has done what ``hand`` says, but for the first ``kept`` units."""
        version, units = (0, np.empty(0, np.uint32)) if hand is None else (hand.version, hand.units)
        message = NextHand(rank, 100 + rank, version, 10 * units.size, "full", units[kept:], units[:kept])
        answer = self.moves.next_hand(self.now_s, message)
        assert isinstance(answer, Hand), answer
        return answer

    def hand_over_all(self) -> int:
        """Let all servers do all of their work; how many waves that took."""
        versions: set[int] = set()
        for _ in range(1000):
            for server in self.members.live("server"):
                hand = self.ask(server.rank)
                if hand.state == "hand":
                    versions.add(hand.version)
                    self.ask(server.rank, hand)
            self.beat()
            self.tick()
            if not self.moves.moving:
                return len(versions)
        raise AssertionError("moves never end")

    def units(self) -> list[int]:
        """Partitions of each server."""
        assert self.members.map is not None
        owners = self.members.map.owners[: self.members.map.partitions]
        return np.bincount(owners, minlength=len(self.members.servers)).tolist()

    def version(self) -> int:
        assert self.members.map is not None
        return self.members.map.version


def grown(servers: int = 4) -> World:
    world = scaled(servers, joins=servers - 2)
    world.settle()
    return world


def scaled(servers: int, drain: tuple[int, ...] = (), joins: int = 0) -> World:
    """A world that is to have so many servers, of which some have joined."""
    world = World()
    world.scale(servers, drain)
    for _ in range(joins):
        world.join()
    return world


def first_map(world: World) -> Any:
    """The map at the start, with the addresses that are known now."""
    fresh = Membership(CONFIG)
    for server in world.members.servers[:2]:
        fresh.register(0.0, "server", server.incarnation, server.address, "")
    assert fresh.map is not None
    for server in world.members.servers[2:]:
        fresh.map = fresh.map.with_address(server.rank, server.address)
    return fresh.map
