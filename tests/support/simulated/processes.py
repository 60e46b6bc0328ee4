"""Processes of the simulator: servers, trainers and the mover of units, with real sessions and shards."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pslib.client.requests import RequestTable
from pslib.client.session import ClientSession, PushName
from pslib.config import Timing
from pslib.errors import MemoryLimitError
from pslib.server.requests import ShardTurns
from pslib.server.session import ServerSession
from pslib.shard.shard import Shard
from pslib.table.initializers import Constant
from pslib.table.optimizers import SGD
from pslib.table.tables import PartSpec, TableSpec
from pslib.wire.applied_pushes import Marks
from pslib.wire.codec import Codec
from pslib.wire.dense_delta import KnownDense
from pslib.wire.flow_control import CreditPool
from pslib.wire.messages import Adopt, Done, Failure, Image, Message, Release, Setup
from pslib.wire.quantization import QuantizedRows, pack_gradients
from tests.support.simulated.invariants import SimulationError, check_owners
from tests.support.simulated.scripts import DENSE_LENGTH, Op, Script

if TYPE_CHECKING:
    from tests.support.simulated.simulator import World

PARTITION_BITS, DENSE_BLOCKS = 4, 5
CODEC = Codec("simulated")
TIMING = Timing(retry_s=0.2, retry_max_s=0.8, request_s=300.0)
TICK_S = 0.1
HOLD_S = 3.0
"""A grant that is never given back holds others up for so long, and all must be over in time."""
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
    """A `ServerSession` and its shards, which serve in slices of one to three rows, each at its own pace."""

    def __init__(
        self, world: World, index: int, make_shard: Callable[..., Shard], marks: Callable[[], Marks]
    ) -> None:
        self.world, self.index = world, index
        count = world.random.randint(1, 3)
        self.shards = [make_shard(PARTITION_BITS, DENSE_BLOCKS, i, count, marks()) for i in range(count)]
        for shard in self.shards:
            shard.slice_rows = world.random.randint(1, 3)
            shard.own(world.map.units_of(index))
            shard.setup(SETUP)
        credit = CreditPool(world.credit_bytes // 2, hold_s=HOLD_S)
        self.session = ServerSession(CODEC, self.shards, credit)
        self._turns = [ShardTurns(shard, _no_files) for shard in self.shards]

    def receive(self, peer: int, frames: list[bytes]) -> None:
        """Take a message from the network."""
        self.session.tick(self.world.now_s)
        request = self.session.receive(peer.to_bytes(4, "big"), frames)
        for index in request.shards if request else ():
            self._put(index, request)
        self._send()

    def _put(self, index: int, work: Any) -> None:
        turns = self._turns[index]
        if not turns:
            self._later(index)
        turns.put(work)

    def _later(self, index: int) -> None:
        self.world.after(self.world.random.uniform(0, 0.004), partial(self._work, index))

    def _work(self, index: int) -> None:
        over = self._turns[index].turn()
        if self._turns[index]:
            self._later(index)
        for request, result in over:
            if isinstance(result, Failure) and result.code == "internal":
                raise SimulationError(f"server {self.index}: {result.text}")
            if isinstance(request.message, Release | Adopt):
                check_owners(self.world)
            self.session.complete(request, index, result)
            self._send()

    def _send(self) -> None:
        replies, self.session.outbox = self.session.outbox, []
        for reply in replies:
            peer = int.from_bytes(reply.peer, "big")
            self.world.send(reply.frames, self.world.askers[peer].receive)

    def learn(self, map_version: int, done_below: int) -> None:
        """What a heartbeat tells: images of published moves may be forgotten, and streams that are done."""

        def told(shard: Shard) -> None:
            shard.moves.forget_images(map_version)
            shard.marks.finish_below(done_below)

        for index in range(len(self.shards)):
            self._put(index, told)


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


def packed(op: Op, gradients_as: str) -> tuple[dict[str, tuple[Any, QuantizedRows]], Any]:
    """Gradients as a trainer sends them, of rows and dense: small whole numbers are exact in 16 bits."""
    rows = {
        table: (keys, pack_gradients(keys, gradients, gradients_as, salt=op.number))
        for table, (keys, gradients) in op.rows.items()
    }
    if op.dense is None or gradients_as == "float32":
        return rows, op.dense
    return rows, pack_gradients(np.empty(0, np.uint64), op.dense[None], "bfloat16", 0).values[0]


class Trainer(Asker):
    """A client that works on scripts: pushes and erases by name, and pulls that check what they see."""

    IN_FLIGHT_MAX = 3

    def __init__(self, world: World) -> None:
        super().__init__(world)
        if world.credit_bytes:
            shares = self.requests.shares
            shares.share_bytes, shares.small_bytes = world.credit_bytes // 2 // 3, 0
        self.session = ClientSession(self.requests, world.map, DIMS, DENSE_LENGTH)
        self.scripts: list[tuple[Script, int]] = []
        self.pulls_left = world.random.randint(1, 3)
        self.lost = False
        self._rows_as = world.random.choice(["float32", "bfloat16", "float16"])
        self._gradients_as = world.random.choice(["float32", "bfloat16", "float16"])
        self._known: KnownDense | None = None
        if world.random.random() < 0.7:
            self._known = KnownDense(np.empty(0, np.float32), np.zeros(DENSE_BLOCKS, np.uint64))
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
            call = self.session.push(self.world.now_s, name, *packed(op, self._gradients_as))
        self._calls[call] = op

    def _pull(self) -> None:
        keys, check = self.world.history.expectation(self.world.random)
        dense_as = "float32" if self._rows_as == "float32" else "float16"  # exact up to 2048
        call = self.session.pull(
            self.world.now_s,
            keys,
            dense=True,
            rows_as=self._rows_as,
            dense_as=dense_as,
            known=self._known,
        )

        def pulled(result: Any) -> None:
            check(result)
            if self._known:
                self._known = KnownDense(result.dense, result.versions)

        self._calls[call] = pulled

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
