"""Small hand-driven worlds for the scenario tests: real sessions, messages handed over one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslib.client.requests import RequestTable
from pslib.client.session import ClientSession
from pslib.config import Timing
from pslib.server.requests import run_on_shard
from pslib.server.session import ServerSession
from pslib.shard.shard import Shard
from pslib.table.initializers import Constant
from pslib.table.optimizers import SGD
from pslib.table.partition_map import PartitionMap
from pslib.table.tables import PartSpec, TableSpec
from pslib.wire.codec import Buffer, Codec
from pslib.wire.fields import Message
from pslib.wire.messages import Adopt, Done, Image, Pull, Pulled, Push, Pushed, Release, Setup, Stats
from tests.support.definitions.table import unmix64

BITS = 4
CODEC = Codec("demo")
TIMING = Timing(retry_s=1.0, retry_max_s=4.0, request_s=30.0)
SGD_1 = SGD(learning_rate=1.0)
PEER = b"me"
NO_BLOCKS, NO_FLOATS = np.empty(0, np.uint32), np.empty(0, np.float32)
NO_UNITS, NO_OWNERS = NO_BLOCKS, np.empty(0, np.uint16)

Keys = NDArray[np.uint64]
Rows = NDArray[np.float32]


def key_in(partition: int, number: int = 0) -> int:
    """A key of one of the 16 partitions."""
    return unmix64(partition << 60 | number)


def keys_in(*partitions: int) -> Keys:
    """A key in each of these partitions."""
    return np.array([key_in(partition) for partition in partitions], np.uint64)


def setup_of(dense_length: int = 0, **dims: int) -> Setup:
    """Tables of these dims (first values 0) and dense parameters 0, 1, 2, ...; all SGD with rate 1."""
    specs = [TableSpec(name, (PartSpec("v", dim, SGD_1, Constant(0.0)),)) for name, dim in dims.items()]
    return Setup(
        tables={"tables": [spec.to_dict() for spec in specs]},
        dense_length=dense_length,
        dense_optimizer=SGD_1.to_dict() if dense_length else {},
        dense=np.arange(dense_length, dtype=np.float32),
    )


def make_client(
    servers: int, dims: Mapping[str, int], dense_length: int = 0, dense_blocks: int = 4
) -> ClientSession:
    """A client session over servers named "0", "1", ..., each with a contiguous stretch of partitions."""
    addresses = tuple(map(str, range(servers)))
    current = PartitionMap.even(BITS, dense_blocks, addresses)
    return ClientSession(RequestTable(CODEC, TIMING), current, dims, dense_length)


def asked(client: ClientSession) -> dict[str, tuple[int, Any]]:
    """Return (request_id, message) for each server asked since the last call: one message each."""
    outbox, client.requests.outbox = client.requests.outbox, []
    decoded = [(one.peer, CODEC.decode([bytes(frame) for frame in one.frames])) for one in outbox]
    assert len({peer for peer, _envelope in decoded}) == len(decoded), "one message a server"
    return {peer: (envelope.request_id, envelope.message) for peer, envelope in decoded}


def answer(client: ClientSession, now_s: float, request_id: int, message: Message) -> bool:
    """Give the client an answer, through the codec; whether it still waited for it."""
    frames: list[Buffer] = [bytes(frame) for frame in CODEC.encode(request_id, message)]
    received = CODEC.decode(frames).message
    ticket = client.requests.receive(request_id)
    return ticket is not None and client.receive(now_s, ticket, received)


def completed(client: ClientSession) -> list[tuple[int, str | None]]:
    """(call, error text) of calls that are over."""
    done, client.completed = client.completed, []
    return [(one.call, None if one.error is None else str(one.error)) for one in done]


class OneServer:
    """A `ServerSession` whose shards serve each request at once, in order."""

    def __init__(
        self,
        shards: int = 1,
        units: list[int] | None = None,
        dense_blocks: int = 4,
        codec: Codec = CODEC,
        setup: Setup | None = None,
    ) -> None:
        self.codec = codec
        self.shards = [Shard(BITS, dense_blocks, index, shards) for index in range(shards)]
        owned = np.arange((1 << BITS) + dense_blocks) if units is None else np.array(units, np.int64)
        for shard in self.shards:
            shard.own(owned)
        self.session = ServerSession(codec, self.shards)
        if setup is not None:
            self.ask(setup)

    def ask(self, message: Message, request_id: int = 1) -> Any:
        """The answer to one request; both ways through the codec."""
        envelope = self.codec.decode(self.answer_to(self.codec.encode(request_id, message)))
        assert envelope.request_id == request_id
        return envelope.message

    def answer_to(self, frames: Sequence[Buffer], peer: bytes = PEER) -> list[bytes]:
        """The bytes that answer these bytes."""
        came: list[Buffer] = [bytes(frame) for frame in frames]
        request = self.session.receive(peer, came)
        if request:
            for index in request.shards:
                self.session.complete(request, index, run_on_shard(self.shards[index], request, _no_files))
        (reply,) = self.session.outbox
        self.session.outbox.clear()
        assert reply.peer == peer
        return [bytes(frame) for frame in reply.frames]


def _no_files(_shard: Shard, _message: Message) -> dict[str, Any]:
    raise AssertionError("no test here touches files")


def push_ones(number: int, keys: Any, epoch: int = 0, floor: int = 0, stream: int = 7, **dense: Any) -> Push:
    """A push that adds 1 to every key of table t."""
    gradients = -np.ones((keys.size, 1), np.float32)
    blocks, vector = dense.get("blocks", NO_BLOCKS), dense.get("dense", NO_FLOATS)
    return Push(stream, number, epoch, floor, 0, {"t": keys}, {"t": gradients}, blocks, vector)


def values_of(server: OneServer, keys: Any) -> list[float]:
    """Rows of table t, one float each."""
    answer = server.ask(Pull({"t": keys}, NO_BLOCKS))
    assert isinstance(answer, Pulled)
    return answer.rows["t"].ravel().tolist()


def refusals(answer: Pushed | Pulled) -> dict[int, int]:
    """Owner of each unit that was refused."""
    return dict(zip(answer.refused_units.tolist(), answer.refused_owners.tolist(), strict=True))


def move_unit(unit: int, source: OneServer, target: OneServer, owner: int, version: int) -> Adopt:
    """Move a unit; give back the message that did it, to be sent once more."""
    image = source.ask(Release(unit, owner, version))
    assert isinstance(image, Image), image
    adopt = Adopt(image.unit, image.map_version, image.marks, image.content, image.keys)
    assert target.ask(adopt) == Done()
    return adopt


def counts_of(server: OneServer) -> tuple[int, int]:
    """Pushes and updates that the server has applied."""
    values = server.ask(Stats()).values
    return values["pushes_applied"], values["updates_applied"]
