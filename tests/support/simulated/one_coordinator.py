"""A coordinator alone, and the members' side of its protocol, through the codec."""

from __future__ import annotations

from typing import Any

import numpy as np

from pslib.config import ClusterConfig, Timing
from pslib.coordinator.leases import stream_of
from pslib.coordinator.session import CoordinatorSession
from pslib.wire.codec import Codec
from pslib.wire.fields import Message
from pslib.wire.messages import EndLease, Heartbeat, Leave, NextLease, OpenJob, Register, Result, Status

__all__ = ["CODEC", "EVERYBODY", "NO_WINDOWS", "Cluster"]

CONFIG = ClusterConfig(
    servers=2, trainers=2, partition_bits=5, dense_blocks=4, timing=Timing(silence_s=6.0, start_s=60.0)
)
CODEC = Codec("demo")
NO_WINDOWS = np.zeros(0, np.uint32)


class Cluster:
    """A coordinator session, and the members' side of its protocol; all through the codec."""

    def __init__(self, trainers: int = 2, config: ClusterConfig = CONFIG, **named: bool) -> None:
        self.session = CoordinatorSession(config, **named)
        self.now_s = 0.0
        self.incarnations: dict[tuple[str, int], int] = {}
        """Incarnations that differ from 100 plus the rank, by role and rank."""
        for number in range(2):
            self.register("server", number)
        for number in range(2):
            self.beat("server", number)
        for number in range(trainers):
            self.register("trainer", number)

    def ask(self, message: Message) -> Any:
        received = CODEC.decode([bytes(frame) for frame in CODEC.encode(1, message)]).message
        answer = self.session.handle(self.now_s, received)
        return CODEC.decode([bytes(frame) for frame in CODEC.encode(1, answer)]).message

    def register(self, role: str, number: int) -> Any:
        return self.ask(Register(role, f"tcp://{role}:{number}", 100 + number, 7, "host"))

    def incarnation(self, role: str, rank: int) -> int:
        return self.incarnations.get((role, rank), 100 + rank)

    def beat(self, role: str, rank: int, version: int = 1, **progress: Any) -> Any:
        return self.ask(Heartbeat(role, rank, self.incarnation(role, rank), version, progress))

    def leave(self, role: str, rank: int) -> Any:
        return self.ask(Leave(role, rank, self.incarnation(role, rank), {}))

    def open(self, rank: int, job: int = 0, leases: int = 3, by_rank: bool = False, **changes: Any) -> Any:
        values = {"what": "fit", "fingerprint": 5, "details": {"epochs": 1, "examples": 30}} | changes
        about = values["what"], values["fingerprint"], values["details"], np.zeros(leases, np.uint32)
        return self.ask(OpenJob(rank, job, *about, by_rank))

    def lease(self, rank: int, holding: tuple[int, ...] = (), job: int = 0) -> Any:
        streams = np.array([stream_of(job, index) for index in holding], np.uint64)
        return self.ask(NextLease(rank, self.incarnation("trainer", rank), job, streams))

    def end(self, rank: int, index: int, epoch: int = 0, job: int = 0, payload: Any = None) -> Any:
        incarnation = self.incarnation("trainer", rank)
        return self.ask(EndLease(rank, incarnation, job, stream_of(job, index), epoch, payload or {}))

    def pass_time(self, seconds: float, *alive: tuple[str, int]) -> None:
        """Let time pass; only ``alive`` are heard."""
        for _ in range(int(seconds * 2)):
            self.now_s += 0.5
            for role, rank in alive:
                self.beat(role, rank)
            self.session.tick(self.now_s)

    @property
    def status(self) -> dict[str, Any]:
        answer = self.ask(Status())
        assert isinstance(answer, Result)
        return dict(answer.values)


EVERYBODY = (("server", 0), ("server", 1), ("trainer", 0), ("trainer", 1))
