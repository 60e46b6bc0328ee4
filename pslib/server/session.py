"""Server session, a pure state machine: frames in, requests for shards and replies out.

The receive thread decodes a request and makes a `ShardRequest` of it, with the keys split by shard; the
shards that have a part in it run it (`pslib.server.requests`); when the last of them is done the reply is
built.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from cython_ext.wire.selection import group_by_owner
from pslib.errors import LocalProtocolError, RemoteProtocolError
from pslib.server.checks import RequestChecks
from pslib.server.durable_ack import DurableAck
from pslib.server.hot_keys import EVERY, HotKeys
from pslib.server.rejoin import Rejoin
from pslib.server.requests import ShardRequest
from pslib.shard.changes import ShardChanges
from pslib.shard.key_slices import KeySlice
from pslib.shard.serving import ShardPart
from pslib.shard.shard import Shard
from pslib.shard.sync_steps import refused_in_step
from pslib.wire.codec import Buffer, Codec, Reply
from pslib.wire.counters import Durations, merge_results
from pslib.wire.dense_delta import DenseDelta
from pslib.wire.error_codes import fitting
from pslib.wire.fields import Message
from pslib.wire.flow_control import CreditPool
from pslib.wire.messages import (
    Adopt,
    BeginSave,
    Changed,
    Changes,
    CheckLoad,
    DescribeTables,
    Done,
    EndSave,
    Erase,
    Failure,
    Image,
    Keep,
    Load,
    Maintain,
    Pull,
    Pulled,
    Push,
    Pushed,
    Release,
    Reserve,
    Result,
    Save,
    SaveFiles,
    Setup,
    Stats,
    TrimLog,
    Witness,
)
from pslib.wire.permissions import refusal
from pslib.wire.quantization import QuantizedRows

REQUESTS = (
    *(Setup, Pull, Push, Erase, Maintain, Reserve, Stats, Load, Release, Adopt, Keep),
    *(Save, BeginSave, SaveFiles, EndSave, CheckLoad, DescribeTables, TrimLog, Witness, Changes),
)
CHANGES = (Setup, Push, Erase, Maintain, Load, Release, Adopt, Keep)
"""Requests whose replies acknowledge a change."""
SPLIT = (Pull, Push, Erase)
"""Requests with keys, of which each shard has its own."""
ANSWERED_BY_UNIT = (*SPLIT, Maintain)
NO_UNITS, NO_OWNERS = np.empty(0, np.uint32), np.empty(0, np.uint16)


class ServerSession:
    """Session that decodes requests, splits them among shards, and builds replies.

    Parameters
    ----------
    codec : Codec
        Codec of this cluster.
    shards : sequence of Shard
        All shards of this server; the session reads their table descriptions only.
    credit : CreditPool or None
        Pool of the grants; None has no limit.
    gate : DurableAck or None
        Queue of replies that acknowledge a change; None: they are sent at once.
    """

    def __init__(
        self,
        codec: Codec,
        shards: Sequence[Shard],
        credit: CreditPool | None = None,
        gate: DurableAck | None = None,
    ) -> None:
        self.codec, self.shards, self.gate = codec, shards, gate
        self.credit = credit or CreditPool()
        self._checks = RequestChecks(codec.limits, shards)
        self._open: set[tuple[bytes, int]] = set()
        self.outbox: list[Reply] = []
        self.rejoin: Rejoin | None = None
        """Rejoin of a server that has lost its state: no request is answered until it is complete."""
        self._everybody = tuple(range(len(shards)))
        self.requests = self.pulls = self.pushes = 0
        self.hot = HotKeys()
        self.durations = Durations()
        """From the arrival of each request to its answer."""
        self._shard_of = (np.arange(shards[0].partitions) % len(shards)).astype(np.uint16)

    def receive(self, peer: bytes, frames: Sequence[Buffer]) -> ShardRequest | None:
        """Return a request for the shards, or None when it was answered at once (refused, or undecodable)."""
        try:
            envelope = self.codec.decode(frames)
        except RemoteProtocolError as error:
            self._reply(peer, 0, Failure("protocol", str(error)))
            return None
        problem = refusal(getattr(peer, "role", None), envelope.message)
        problem = problem or self._checks.setup_problem(envelope.message)
        if problem is None and self.rejoin is not None and self._waits(envelope.message):
            return None
        request = ShardRequest(peer, envelope.request_id, envelope.message, self._everybody)
        if problem is None and not isinstance(envelope.message, REQUESTS):
            problem = Failure("protocol", f"a server does not take {envelope.message.kind}")
        problem = problem or self._checks.problem(envelope.message)
        if problem:
            self._reply(peer, request.request_id, problem)
            return None
        if isinstance(request.message, Reserve):
            self._reserve(peer, request.request_id, request.message)
            return None
        self.requests += 1
        if isinstance(request.message, Pull):
            self.pulls += 1
            if self.pulls % EVERY == 0:
                self.hot.add(request.message.keys.values())
        self.pushes += isinstance(request.message, Push)
        self._prepare(request)
        self._open.add((peer, request.request_id))
        return request

    def _prepare(self, request: ShardRequest) -> None:
        """Split a request among the shards, and allocate its outputs."""
        message = request.message
        if isinstance(message, SPLIT):
            self._split(request, message)
        if isinstance(message, Pull):
            self._make_outputs(request, message)
        elif isinstance(message, Changes):
            self._make_dense(request, message)
        elif isinstance(message, Push) and message.sync:
            # a sync push waits for others, which may need the same credit: held bytes are bounded by its step
            self._granted(self.credit.give_back((request.peer, request.request_id)))

    def _waits(self, message: Message) -> bool:
        """Return True if requests must wait for the rejoin; its end is final."""
        assert self.rejoin is not None
        if self.rejoin.waits:
            self.rejoin.hear(message)
            return True
        self.rejoin = None
        return False

    def complete(self, request: ShardRequest, shard_index: int, result: Any) -> bool:
        """Take one shard's result; the last one builds the reply, as does one that refuses part of a step.

        Return whether this one has built it.
        """
        message = request.message
        request.results[shard_index] = result
        if request.answered:
            return False
        splits = isinstance(message, Push) and message.sync and getattr(result, "refused", None)
        if splits or len(request.results) == len(request.shards):
            request.answered = True
            if self.gate is None or not isinstance(message, CHANGES):
                self._send_answer(request)
            else:
                self.gate.pass_when_durable(request.shards, partial(self._send_answer, request))
            return True
        return False

    def _send_answer(self, request: ShardRequest) -> None:
        self._open.discard((request.peer, request.request_id))
        if request.taker:
            request.taker(self._answer(request))
        else:
            self._reply(request.peer, request.request_id, self._answer(request))

    def tick(self, now_s: float) -> None:
        """Grant expired credit to other clients."""
        self._granted(self.credit.tick(now_s))

    def _reserve(self, peer: bytes, request_id: int, message: Reserve) -> None:
        if not message.bytes:
            self._granted(self.credit.give_back((peer, message.request_id)))
            return
        if (peer, message.last) in self._open:  # its reply is in flight
            return
        lost = self.credit.give_back((peer, message.last))
        self._granted(lost + self.credit.reserve((peer, message.request_id), request_id, message.bytes))

    def _granted(self, answers: list[tuple[tuple[bytes, int], int]]) -> None:
        for (peer, _reserved), request_id in answers:
            self._reply(peer, request_id, Done())

    def _reply(self, peer: bytes, request_id: int, message: Message) -> None:
        try:
            frames = self.codec.encode(request_id, fitting(message))
        except LocalProtocolError as error:  # such as an image with more marks than a header holds
            frames = self.codec.encode(request_id, Failure("internal", f"can't answer: {error}"))
        self.outbox.append(Reply(peer, frames))

    def _split(self, request: ShardRequest, message: Pull | Push | Erase) -> None:
        """Give each of several shards its own keys, so that they need not all look at all of them."""
        if len(self.shards) == 1 or (isinstance(message, Push) and message.sync):
            return  # a sync push covers units of all shards, and waits in each
        first = self.shards[0]
        shares: dict[int, dict[str, KeySlice]] = {}
        for name, keys in message.keys.items():
            grouped = np.empty(keys.size, np.uint64)
            order, starts = group_by_owner(
                keys, first.partition_bits, self._shard_of, len(self.shards), grouped
            )
            for index in np.flatnonzero(np.diff(starts)).tolist():
                cut = slice(starts[index], starts[index + 1])
                share = KeySlice(grouped[cut], None if keys.size == cut.stop - cut.start else order[cut])
                shares.setdefault(index, {})[name] = share
        blocks = [] if isinstance(message, Erase) else message.blocks.tolist()
        for block in blocks:
            shares.setdefault((first.partitions + block) % len(self.shards), {})
        request.shares = shares or {0: {}}
        request.shards = tuple(request.shares)

    def _make_outputs(self, request: ShardRequest, message: Pull) -> None:
        """Allocate the rows, uninitialized: each row is written by the shard that answers for it."""
        first = self.shards[0]
        for name, keys in message.keys.items():
            request.rows[name] = QuantizedRows.empty(keys.size, first.tables[name].dim, message.rows_as)
        self._make_dense(request, message)

    def _make_dense(self, request: ShardRequest, message: Pull | Changes) -> None:
        first = self.shards[0]
        if first.dense and message.blocks.size:
            request.dense = DenseDelta.to(message, first.dense.bounds)

    def _answer(self, request: ShardRequest) -> Message:
        results = [request.results[index] for index in sorted(request.results)]
        for result in results:
            if isinstance(result, Failure):
                return result
        if isinstance(request.message, ANSWERED_BY_UNIT):
            return self._answer_split(request, results)
        if isinstance(request.message, Setup | Adopt | Keep | BeginSave | EndSave | CheckLoad | TrimLog):
            return Done()
        if isinstance(request.message, Release):
            return next(result for result in results if isinstance(result, Image))
        if isinstance(request.message, Changes):
            return changed(results, request.dense)
        if isinstance(request.message, DescribeTables):  # the first shard's, should a set-up be between two
            return Result(results[0])
        return Result(merge_results(results))

    def _answer_split(self, request: ShardRequest, results: list[ShardPart]) -> Message:
        refused = {unit: owner for part in results for unit, owner in part.refused.items()}
        first = request.results.get(0)
        pushes_before = first.pushes_before if first else 0
        if refused and isinstance(request.message, Push) and request.message.sync:
            refused = refused_in_step(request.message, refused)
        units, owners = NO_UNITS, NO_OWNERS
        if refused:
            units = np.fromiter(refused.keys(), np.uint32, len(refused))
            owners = np.fromiter(refused.values(), np.uint16, len(refused))
        if isinstance(request.message, Pull):
            scales = {name: rows.scales for name, rows in request.rows.items() if rows.scales.size}
            values = {name: rows.values for name, rows in request.rows.items()}
            dense, versions = request.dense.frames()
            return Pulled(values, dense, units, owners, scales, versions, pushes_before)
        return Pushed(units, owners, pushes_before)


def changed(parts: list[ShardChanges], dense: DenseDelta) -> Changed:
    """Join what all shards of a server have read of its changes."""
    vector, versions = dense.frames()
    owned, stale, stale_rows, keys = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("owned", "stale", "stale_rows", "keys")
    )
    return Changed(
        since=np.array([number for part in parts for number in (part.origin, part.position)], np.uint64),
        ends=np.array([part.end for part in parts], np.uint64),
        owned=owned,
        stale=stale,
        stale_rows=stale_rows,
        keys=keys,
        rows=np.concatenate([part.rows.values for part in parts]),
        row_scales=np.concatenate([part.rows.scales for part in parts]),
        dense=vector,
        dense_versions=versions,
    )
