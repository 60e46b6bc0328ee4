"""A server's process: a real `ServerSession` and real shards, which serve in slices of one to three rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from pslib.client.membership import FREE_RANK, Joined, RankRequest
from pslib.config import ClusterConfig
from pslib.server.rejoin import Rejoin
from pslib.server.requests import ShardRequest, ShardTurns, Work
from pslib.server.session import ServerSession
from pslib.shard.shard import Shard
from pslib.table.partition_map import PartitionMap
from pslib.wire.fields import Message
from pslib.wire.flow_control import CreditPool
from pslib.wire.messages import Failure, Keep, Load, Release, TrimLog
from tests.simulation.cluster.checkpoints import Loads
from tests.simulation.cluster.history import SimulationError
from tests.simulation.cluster.logs import Forgotten, ServerLogs
from tests.simulation.cluster.members import Member
from tests.simulation.cluster.moves import Hands
from tests.simulation.cluster.network import CODEC
from tests.simulation.cluster.workload import SETUP

if TYPE_CHECKING:
    from tests.simulation.cluster.world import World

__all__ = ["Server"]

HOLD_S = 3.0
"""A grant that is never given back holds others up for so long, and all must be over in time."""


class Server(Member):
    """Serves from when it has joined until it is told to leave."""

    role = "server"

    def __init__(self, world: World, name: str, generation: int = 1) -> None:
        super().__init__(world, name, generation)
        self.shards: list[Shard] = []
        self.rank = -1
        self._asked = self.early = False
        self.rejoin: Rejoin | None = None
        self.regained: set[int] = set()
        """Units that its predecessor was given and has lost, and that it is given once more."""
        self.member.empty = self.logs is None or self.logs.log.is_empty
        self.forgotten = Forgotten(self)
        self.listen(self.address, self._receive)

    def drain(self) -> None:
        """SIGTERM: its units move to others; with a log it leaves with what is left when its time is over."""
        self.network.tell(f"{self} is asked to go")
        self._asked = True
        if self.logs is not None:
            self.after(self.world.random.uniform(0.5, 6.0), self.time_is_over)

    def time_is_over(self) -> None:
        """End the wait of a server asked to leave: it leaves with the units that no other has taken."""
        if not self.leaving:
            self.early = True
            self.leave(preempted=True)

    def _rank_request(self) -> RankRequest:
        """With a log, which is replayed first: the rank that belongs to the log."""
        self.logs: ServerLogs | None = None
        rank = self.world.place_of(self.name)
        if self.world.config.durability == "memory":
            return RankRequest(rank, self.generation) if self.world.config.servers_come_back else FREE_RANK
        self.logs = ServerLogs(self, rank)
        return RankRequest(rank, self.logs.log.generation)

    def _where(self) -> str:
        return self.address

    def joined(self, joined: Joined) -> None:
        choice = self.world.random
        self.rank = joined.rank
        self.shards = self._make_shards(joined.config)
        units = joined.map.units_of(joined.rank)
        if self.name in self.world.torn:
            self.world.torn.remove(self.name)
            self.world.checks.lost_its_end(self)
        for index, shard in enumerate(self.shards):
            shard.slice_rows = choice.randint(1, 3)
            if self.logs is None or self.logs.is_new(index):
                if joined.begins:
                    Rejoin.strip(shard)
                shard.own(units)
            if shard.bare:
                continue
            if units.size and not shard.tables:  # one that comes later gets tables with its first unit
                shard.setup(SETUP)
                self.world.lives.begin(shard)
            self.world.checks.check_shard(shard)
        credit = CreditPool(self.world.credit_bytes // 2, hold_s=HOLD_S)
        gate = self.logs.gate(joined.config, self._look) if self.logs else None
        self._session = ServerSession(CODEC, self.shards, credit, gate)
        journals = self.logs.journals if self.logs else [None] * len(self.shards)
        loads = [Loads(self.world.checkpoints, journal) for journal in journals]
        self._turns = [ShardTurns(shard, one) for shard, one in zip(self.shards, loads, strict=True)]
        self.rejoin = self._session.rejoin = self.world.planted.make_comeback(
            joined.begins, self.generation, self.shards, self._load, self._put
        )
        if self.rejoin.waits:
            self.regained = set(self.world.given_to(self.rank))
            self.network.tell(f"{self} has lost what it knew; its shards begin at {joined.begins['loads']}")
        self.done_below = 0
        self._hands = Hands(self)
        self.member.on_hand = self._begin_hands
        self.world.server_joined()

    def _load(self, shard: Shard, message: Load) -> None:
        self.world.checkpoints.load(shard, message)
        if self.logs is not None:
            self.logs.journals[shard.index].loaded(message)

    @property
    def waits(self) -> bool:
        """True if it has lost what it knew, and is not back yet."""
        return self.rejoin is not None and self.rejoin.waits

    def _begin_hands(self) -> None:
        if not self.waits:
            self._hands.begin()

    def _make_shards(self, config: ClusterConfig) -> list[Shard]:
        if self.logs is not None:
            return self.logs.begin(config)
        planted, count = self.world.planted, config.shard_threads
        return [
            planted.make_shard(config.partition_bits, config.dense_blocks, index, count, planted.marks())
            for index in range(count)
        ]

    def _look(self) -> None:
        assert self._session.gate is not None
        self._session.gate.look()
        self.send_replies()

    # --- serving ------------------------------------------------------------------------------------------

    def _receive(self, source: str, frames: list[bytes]) -> None:
        if not self.shards:
            return
        self._session.tick(self.now_s())
        request = self._session.receive(source.encode(), frames)
        for index in request.shards if request else ():
            self._put(index, request)
        self.send_replies()

    def _put(self, index: int, work: Any) -> None:
        if not self._turns[index]:
            self._later(index)
        self._turns[index].put(work)

    def _later(self, index: int) -> None:
        self.after(self.world.random.uniform(0, 0.004), partial(self._work, index))

    def _work(self, index: int) -> None:
        waited = self.waits
        over = self._turns[index].turn()
        if waited and not self.waits:
            self.world.checks.came_back(self)
            self.world.server_joined()
        if self.logs is not None and self.logs.dead:
            self.end("kill -9 while it wrote")
            return
        if self._turns[index]:
            self._later(index)
        for request, result in over:
            if isinstance(result, Failure) and result.code == "internal":
                raise SimulationError(f"{self}: {result.text}")
            self.world.checks.shard_did(self, self.shards[index], request.message, result)
            if isinstance(request.message, TrimLog) and self.logs is not None:
                self.forgotten.asked(index)
            self._session.complete(request, index, result)
        self.send_replies()
        if self.logs is not None and not self._turns[index].in_request:
            self.logs.journals[index].pace()
            self.forgotten.look(index)

    def send_replies(self) -> None:
        """Send what is ready, unless another one may have our place by now."""
        if self.world.config.servers_come_back and self.member.may_be_replaced:
            return
        replies, self._session.outbox = self._session.outbox, []
        for reply in replies:
            self.network.send(self.address, reply.peer.decode(), reply.frames)

    # --- membership ---------------------------------------------------------------------------------------

    def progress(self) -> dict[str, Any]:
        below = self.member.streams_done_below
        if below > self.done_below:
            self.done_below = below  # as from here on any of its shards may know
            self._all_shards(lambda shard: shard.finish_streams(below))
        return {"leaving": True} if self._asked else {}

    def new_map(self, new_map: PartitionMap) -> None:
        self.moves_over(new_map.version)

    def moves_over(self, version: int) -> None:
        """All moves up to a map are complete."""
        self._all_shards(lambda shard: shard.moves.forget_images(version))

    def ask_shards(self, message: Message, taker: Callable[[Message], None]) -> None:
        """A request of our own about one unit, in its turn among those of others."""
        assert isinstance(message, Release | Keep)
        index = message.unit % len(self.shards)
        self._put(index, ShardRequest(b"", 0, message, (index,), taker=taker))

    def _all_shards(self, work: Work) -> None:
        for index in range(len(self.shards)):
            self._put(index, work)

    def told_to_leave(self) -> None:
        self.early = bool(self.member.reason)  # no server can take its units
        self.leave(preempted=self.early)

    def end(self, why: str) -> None:
        super().end(why)
        if self.logs is not None:
            self.world.disk(self.name).kill(*self.logs.files)
        self.world.server_ended(self)
