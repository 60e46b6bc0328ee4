"""A seeded simulator: real sessions, real shards, real bytes; a network, a clock and processes that are not.

`World(seed)` is a small cluster in which everything that may happen between processes does happen: a fifth
of the messages is lost, a fifth comes twice, all come late and in any order, some so late that the unit they
speak of has moved twice; partitions and dense blocks change their owner while pushes are in flight; clients
die, or are believed to be dead, and others take over their leases. All randomness comes from the seed and
time is a number in a heap, so a failing seed fails again:

    python -m tests.support.simulated.simulator SEED

Every optimizer is SGD with learning rate 1 and every gradient is a small negative integer, so sums are
exact and the last rows tell how often each push has been applied. What must hold is in
`tests/support/simulated/invariants.py`.
"""

from __future__ import annotations

import heapq
import random
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pslib.coordinator.leases import stream_of
from pslib.shard.shard import Shard
from pslib.table.partition_map import PartitionMap
from pslib.wire.applied_pushes import Marks
from tests.support.simulated.invariants import History, SimulationError, check_end
from tests.support.simulated.processes import (
    CODEC,
    DENSE_BLOCKS,
    PARTITION_BITS,
    Asker,
    Mover,
    Server,
    Trainer,
)
from tests.support.simulated.scripts import Script, make_scripts

HEALS_S = 2.5
"""From here on nothing is lost or doubled; what is under way still comes late."""
DRAINED_S = 60.0
"""By then every call must be over: liveness."""


class World:
    """One run of a small cluster.

    Parameters
    ----------
    seed : int
        All that is random.
    marks : callable
        Makes the memory of a shard; tests plant broken ones.
    make_shard : callable
        Makes a shard; tests plant broken ones.
    trace : callable or None
        Is told every delivery.
    """

    def __init__(
        self,
        seed: int,
        marks: Callable[[], Marks] = Marks,
        make_shard: Callable[..., Shard] = Shard,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self.seed, self.random, self.trace = seed, random.Random(seed), trace
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._event_number = 0
        self.messages = 0
        self.reported: dict[int, int] = {}
        self.credit_bytes = self.random.choice([0, 700, 1500])
        servers = self.random.randint(2, 4)
        self.map = PartitionMap.even(PARTITION_BITS, DENSE_BLOCKS, tuple(map(str, range(servers))))
        self.restless = self.random.sample(range(self.map.owners.size), 6)
        self.servers = [Server(self, index, make_shard, marks) for index in range(servers)]
        self.askers: list[Asker] = []
        self.mover = Mover(self)
        self.trainers = [Trainer(self) for _ in range(self.random.randint(2, 3))]
        self.scripts = make_scripts(self.random, len(self.trainers), self.restless)
        self.history = History(self.scripts, PARTITION_BITS)

    # --- time and network ---------------------------------------------------------------------------------

    def after(self, delay_s: float, event: Callable[[], None]) -> None:
        """Let something happen later."""
        self._event_number += 1
        heapq.heappush(self._events, (self.now_s + delay_s, self._event_number, event))

    def send(self, frames: Sequence[Any], deliver: Callable[[list[bytes]], None]) -> None:
        """Lose, double, delay: a message arrives never, once or twice, and not in order."""
        healed = self.now_s >= HEALS_S
        if not healed and self.random.random() < 0.2:
            return
        sent = [bytes(frame) for frame in frames]
        for _ in range(1 if healed or self.random.random() >= 0.2 else 2):
            self.messages += 1
            self.after(self._delay_s(healed), partial(self._deliver, deliver, sent))

    def _delay_s(self, healed: bool) -> float:
        kind = 1.0 if healed else self.random.random()
        if kind < 0.04:
            return self.random.uniform(1.0, 5.0)
        return self.random.uniform(0.05, 1.0) if kind < 0.15 else self.random.uniform(0.001, 0.04)

    def _deliver(self, deliver: Callable[[list[bytes]], None], frames: list[bytes]) -> None:
        if self.trace:
            self.trace(f"{self.now_s:8.4f} {deliver} {CODEC.decode(frames)}")
        deliver(frames)

    # --- what happens -------------------------------------------------------------------------------------

    def run(self) -> World:
        """Let it all happen, then check the end.

        Raises
        ------
        SimulationError
            When anything is not as it must be; the text ends in the command that shows it again.
        """
        try:
            self._begin()
            while self._events:
                self.now_s, _number, event = heapq.heappop(self._events)
                if self.now_s > DRAINED_S:
                    raise SimulationError(f"not all calls are over after {DRAINED_S:g} s")
                event()
            check_end(self)
        except SimulationError as error:
            raise SimulationError(
                f"seed {self.seed}: {error}; python -m tests.support.simulated.simulator {self.seed}"
            ) from error
        return self

    def _begin(self) -> None:
        for place, script in enumerate(self.scripts):
            self.trainers[place % len(self.trainers)].start(script, 0, epoch=0)
        for trainer in self.trainers:
            self.after(self.random.uniform(0, 0.1), trainer.turn)
        self.after(self.random.uniform(0, 0.3), self.mover.turn)
        for _ in range(4):
            self.after(self.random.uniform(0.1, HEALS_S), self._heartbeats)
        if self.random.random() < 0.5:
            self.after(self.random.uniform(0.2, 1.5), self._lose_a_trainer)

    def publish(self, new_map: PartitionMap) -> None:
        """A move is complete: tell each client later, or never (refusals tell it too)."""
        self.map = new_map
        for trainer in self.trainers:
            if self.random.random() < 0.5:
                self.after(self.random.uniform(0, 1.0), partial(self._tell, trainer, new_map))

    def _tell(self, trainer: Trainer, new_map: PartitionMap) -> None:
        trainer.session.set_map(self.now_s, new_map)
        trainer.send()

    def _heartbeats(self) -> None:
        for trainer in self.trainers:
            if not trainer.lost:
                trainer.report()
        leases = [script.stream for script in self.scripts if script.stream < 1 << 63]
        undone = [stream for stream in leases if not self.history.is_done(stream)]
        done_below = min(undone, default=stream_of(1, 0))
        for server in self.servers:
            learn = partial(server.learn, self.map.version, done_below)
            self.after(self.random.uniform(0, 0.5), learn)

    def _lose_a_trainer(self) -> None:
        """A trainer dies, or is only believed to be dead; another one takes over its leases later."""
        lost, successor = self.random.sample(self.trainers, 2)
        lost.lost = True
        lost.running = self.random.random() < 0.5
        mine = [script for place, script in enumerate(self.scripts) if self._holder(place) is lost]
        for script in mine:
            if script.stream < 1 << 63:
                self.after(self.random.uniform(0.05, 0.8), partial(self._take_over, successor, script))

    def _holder(self, place: int) -> Trainer:
        return self.trainers[place % len(self.trainers)]

    def _take_over(self, successor: Trainer, script: Script) -> None:
        was_idle = successor.idle
        successor.start(script, self.reported.get(script.stream, 0), epoch=1)
        if was_idle:
            successor.turn()


if __name__ == "__main__":
    World(int(sys.argv[1]), trace=print).run()
    print(f"seed {sys.argv[1]}: all is as it must be")
