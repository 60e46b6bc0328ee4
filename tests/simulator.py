"""A seeded simulator: real sessions, real shards, real bytes; a network, a clock and processes that are not.

`World(seed)` is a small cluster in which everything that may happen between processes does happen: a fifth
of the messages is lost, a fifth comes twice, all come late and in any order, some so late that the unit they
speak of has moved twice; partitions and dense blocks change their owner while pushes are in flight; clients
die, or are believed to be dead, and others take over their leases. All randomness comes from the seed and
time is a number in a heap, so a failing seed fails again:

    python -m tests.simulator SEED

Every optimizer is SGD with learning rate 1 and every gradient is a small negative integer, so sums are
exact and the last rows tell how often each push has been applied. What must hold is in `tests/invariants.py`.
"""

from __future__ import annotations

import heapq
import random
import sys
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from pslib.config import Timing
from pslib.errors import MemoryLimitError
from pslib.initializers import Constant
from pslib.leases import stream_of
from pslib.optimizers import SGD
from pslib.partition_map import PartitionMap
from pslib.protocol.client_session import ClientSession, PushName
from pslib.protocol.codec import Codec
from pslib.protocol.marks import Marks
from pslib.protocol.messages import Adopt, Done, Failure, Image, Message, Release, Setup
from pslib.protocol.requests import RequestTable
from pslib.protocol.server_session import Job, ServerSession, run_on_shard
from pslib.shard import Shard
from pslib.tables import PartSpec, TableSpec
from tests.invariants import History, SimulationError, check_end, check_owners
from tests.scripts import DENSE_LENGTH, Op, Script, make_scripts

PARTITION_BITS, DENSE_BLOCKS = 4, 5
CODEC = Codec("simulated")
TIMING = Timing(retry_s=0.2, retry_max_s=0.8, request_s=300.0)
HEALS_S = 2.5
"""From here on nothing is lost or doubled; what is under way still comes late."""
DRAINED_S = 60.0
"""By then every call must be over: liveness."""
TICK_S = 0.1
SGD_1 = SGD(learning_rate=1.0)
SETUP = Setup(
    tables={
        "tables": [
            TableSpec(name, (PartSpec("v", dim, SGD_1, Constant(0.0)),)).to_dict()
            for name, dim in (("item", 2), ("user", 1))
        ]
    },
    dense_length=DENSE_LENGTH,
    dense_optimizer=SGD_1.to_dict(),
    dense=np.zeros(DENSE_LENGTH, np.float32),
)
DIMS = {"item": 2, "user": 1}


class Server:
    """A `ServerSession` and its shards; shards take their jobs in order, at their own pace."""

    def __init__(
        self, world: World, index: int, make_shard: Callable[..., Shard], marks: Callable[[], Marks]
    ) -> None:
        self.world, self.index = world, index
        count = world.random.randint(1, 3)
        self.shards = [make_shard(PARTITION_BITS, DENSE_BLOCKS, i, count, marks()) for i in range(count)]
        for shard in self.shards:
            shard.own(world.map.units_of(index))
            shard.setup(SETUP)
        self.session = ServerSession(CODEC, self.shards)
        self._jobs: list[deque[Job]] = [deque() for _ in range(count)]

    def receive(self, peer: int, frames: list[bytes]) -> None:
        """Take a message from the network."""
        job = self.session.receive(peer.to_bytes(4, "big"), frames)
        if job:
            for index, jobs in enumerate(self._jobs):
                jobs.append(job)
                self.world.after(self.world.random.uniform(0, 0.004), partial(self._work, index))
        self._send()

    def _work(self, index: int) -> None:
        job = self._jobs[index].popleft()
        result = run_on_shard(self.shards[index], job, _no_files)
        if isinstance(result, Failure) and result.code == "internal":
            raise SimulationError(f"server {self.index}: {result.text}")
        if isinstance(job.message, Release | Adopt):
            check_owners(self.world)
        self.session.complete(job, index, result)
        self._send()

    def _send(self) -> None:
        replies, self.session.outbox = self.session.outbox, []
        for reply in replies:
            peer = int.from_bytes(reply.peer, "big")
            self.world.send(reply.frames, self.world.askers[peer].receive)

    def learn(self, map_version: int, done_below: int) -> None:
        """What a heartbeat tells: images of published moves may be forgotten, and streams that are done."""
        for shard in self.shards:
            shard.forget_images(map_version)
            shard.marks.finish_below(done_below)


def _no_files(_shard: Shard, _message: Message) -> dict[str, Any]:
    raise AssertionError("the simulator asks for no files")


class Asker:
    """Whoever has a `RequestTable`: sends, resends, and takes answers while it is running."""

    def __init__(self, world: World) -> None:
        self.world, self.number = world, len(world.askers)
        self.requests = RequestTable(CODEC, TIMING, first_request_id=(self.number + 1) << 32)
        self.running = True
        self._ticking = False
        world.askers.append(self)

    def receive(self, frames: list[bytes]) -> None:
        """Take a message from the network."""
        envelope = CODEC.decode(frames)
        ticket = self.requests.receive(envelope.request_id)
        if ticket is not None and self.running:
            self.answered(ticket, envelope.message)
            self.send()

    def answered(self, ticket: int, message: Message) -> None:
        """Do what an answer asks for."""
        raise AssertionError("an asker says what an answer means")

    def send(self) -> None:
        """Put what the session wants to be sent on the network."""
        outbox, self.requests.outbox = self.requests.outbox, []
        for one in outbox:
            receive = self.world.servers[int(one.peer)].receive
            self.world.send(one.frames, partial(receive, self.number))
        if len(self.requests) and not self._ticking:
            self._ticking = True
            self.world.after(TICK_S, self._tick)

    def _tick(self) -> None:
        self._ticking = False
        if self.running:
            if self.requests.tick(self.world.now_s):
                raise SimulationError(f"asker {self.number} was never answered")
            self.send()


class Trainer(Asker):
    """A client that works on scripts: pushes and erases by name, and pulls that check what they see."""

    IN_FLIGHT_MAX = 3

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.session = ClientSession(self.requests, world.map, DIMS, DENSE_LENGTH)
        self.scripts: list[tuple[Script, int]] = []
        self.pulls_left = world.random.randint(1, 3)
        self.lost = False
        self._epochs: dict[int, int] = {}
        self._calls: dict[int, Op | Callable[[Any], None]] = {}
        self._refused: list[Op] = []
        """Pushes for which a server had no room: sent again under their names."""

    @property
    def idle(self) -> bool:
        """Whether it has nothing to do and waits for nothing."""
        return not self.running or not (self.scripts or self._calls or self._refused)

    def start(self, script: Script, first: int, epoch: int) -> None:
        """Work on ``script`` from number ``first`` on: a new lease, or one that is taken over."""
        self.session.open_stream(script.stream, first)
        self._epochs[script.stream] = epoch
        self.scripts.append((script, first))

    def turn(self) -> None:
        """Start one more call, and come back later."""
        if self.running:
            if len(self._calls) < self.IN_FLIGHT_MAX:
                self._begin()
            self.send()
            if not self.idle:
                self.world.after(self.world.random.uniform(0.005, 0.2), self.turn)

    def _begin(self) -> None:
        choice = self.world.random
        if self.pulls_left and choice.random() < 0.3:
            self.pulls_left -= 1
            self._pull()
        elif self._refused:
            self._start(self._refused.pop(0))
        elif self.scripts:
            place = choice.randrange(len(self.scripts))
            script, number = self.scripts[place]
            if number == len(script.ops):
                del self.scripts[place]
            elif self._may_start(script.ops[number]):
                self.scripts[place] = script, number + 1
                self._start(script.ops[number])
        self._completed()

    def _may_start(self, op: Op) -> bool:
        """Whether the call that this one must come after is over."""
        return not any(
            isinstance(other, Op) and (op.stream, op.after) == (other.stream, other.number)
            for other in (*self._calls.values(), *self._refused)
        )

    def _start(self, op: Op) -> None:
        name = PushName(op.stream, op.number, self._epochs[op.stream])
        self.world.history.started(op)
        if op.erases:
            call = self.session.erase(self.world.now_s, name, {t: pair[0] for t, pair in op.rows.items()})
        else:
            call = self.session.push(self.world.now_s, name, op.rows, op.dense)
        self._calls[call] = op

    def _pull(self) -> None:
        keys, check = self.world.history.expectation(self.world.random)
        self._calls[self.session.pull(self.world.now_s, keys, dense=True)] = check

    def answered(self, ticket: int, message: Message) -> None:
        if not self.session.receive(self.world.now_s, ticket, message):
            raise SimulationError(f"trainer {self.number}: nobody waits for {message.kind}")
        self._completed()

    def _completed(self) -> None:
        done, self.session.completed = self.session.completed, []
        for completed in done:
            call = self._calls.pop(completed.call)
            if isinstance(completed.error, MemoryLimitError) and isinstance(call, Op):
                self._refused.append(call)
                units = self.world.history.units(call)
                self.session.pushes_sent -= bool(units)
                self.session.updates_sent -= units
            elif completed.error is not None:
                self._failed(str(completed.error))
            elif isinstance(call, Op):
                self.world.history.acknowledged(call)
            else:
                call(self.session.pulled(completed.call))

    def _failed(self, text: str) -> None:
        """Only who counts as dead without being so may be refused: somebody else holds its lease."""
        if not self.lost or "is held under epoch" not in text:
            raise SimulationError(f"trainer {self.number}: {text}")
        self.running = False

    def report(self) -> None:
        """A heartbeat: how far each stream is acknowledged, as the coordinator knows it from now on."""
        for stream in self._epochs:
            self.world.reported[stream] = max(
                self.world.reported.get(stream, 0), self.session.acked_below(stream)
            )


class Mover(Asker):
    """Gives units to other servers, one after the other: Release, Image, Adopt, and at last the new map."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.left = world.random.randint(6, 14)
        self.unit: int | None = None
        self._target = 0

    def turn(self) -> None:
        """Begin a move when none is under way."""
        if self.unit is None and self.left:
            self.left -= 1
            world, version = self.world, self.world.map.version + 1
            # few units, so that they come back to where they have been
            self.unit = world.random.choice(world.restless)
            self._target = world.random.randrange(len(world.servers))
            owner = int(world.map.owners[self.unit])
            self.requests.start(world.now_s, str(owner), Release(self.unit, self._target, version))
            self.send()
        if self.left:
            self.world.after(self.world.random.uniform(0.01, 0.3), self.turn)

    def answered(self, ticket: int, message: Message) -> None:
        if isinstance(message, Image):
            adopt = Adopt(message.unit, message.map_version, message.marks, message.content, message.keys)
            self.requests.start(self.world.now_s, str(self._target), adopt)
        elif isinstance(message, Done) and self.unit is not None:
            self.world.publish(self.world.map.moved(self.unit, self._target))
            self.unit = None
        else:
            raise SimulationError(f"the mover was answered {message}")


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
                f"seed {self.seed}: {error}; python -m tests.simulator {self.seed}"
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
                self.after(self.random.uniform(0, 1.0), partial(trainer.session.set_map, new_map))

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
        lost, heir = self.random.sample(self.trainers, 2)
        lost.lost = True
        lost.running = self.random.random() < 0.5
        mine = [script for place, script in enumerate(self.scripts) if self._holder(place) is lost]
        for script in mine:
            if script.stream < 1 << 63:
                self.after(self.random.uniform(0.05, 0.8), partial(self._take_over, heir, script))

    def _holder(self, place: int) -> Trainer:
        return self.trainers[place % len(self.trainers)]

    def _take_over(self, heir: Trainer, script: Script) -> None:
        was_idle = heir.idle
        heir.start(script, self.reported.get(script.stream, 0), epoch=1)
        if was_idle:
            heir.turn()


if __name__ == "__main__":
    World(int(sys.argv[1]), trace=print).run()
    print(f"seed {sys.argv[1]}: all is as it must be")
