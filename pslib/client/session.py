"""Client session of pull and push, a pure state machine: calls, messages and time in; instructions out.

A call is split by owner into parts, one message a server. A refused part goes on to the owner that the
refusal names, under the same name (stream, number), until every unit has taken it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cython_ext.common.hashing import partition_of
from cython_ext.data.distinct import partitions_touched
from pslib.client.acknowledged import Acknowledged
from pslib.client.calls import (
    BEGINNING,
    NO_FLOATS,
    NO_UNITS,
    PLAINLY,
    Acked,
    Call,
    Completed,
    Counts,
    MaintainCall,
    Manner,
    Moment,
    Part,
    PullCall,
    PushCall,
    PushName,
    answer_bytes_of,
    check_dense,
    check_gradients,
    check_keys,
    check_known,
    gradient_of,
    home_of,
    keys_of,
    message_of,
)
from pslib.client.requests import RequestTable
from pslib.client.routing import first_unit, parts_of, pulled_fits, store_pulled
from pslib.errors import LocalProtocolError, PslibError, UnavailableError, WaitTimeoutError
from pslib.table.partition_map import BlockBounds, PartitionMap
from pslib.table.wire_format import DENSE_TYPES, ROW_TYPES, check_type
from pslib.wire.counters import Durations
from pslib.wire.dense_delta import KnownDense
from pslib.wire.error_codes import error_of
from pslib.wire.fields import Message
from pslib.wire.messages import NOBODY, Failure, Pulled, Pushed
from pslib.wire.quantization import QuantizedRows
from pslib.wire.staleness import NOTHING_SEEN, Seen, StalenessCounter

BOUNCE_PAUSE_S = 0.005
"""First pause of a part that was refused twice; a partition in flight arrives in some 10 ms. With 20 ms
pushes got 0.6 of the rate beside a move, and pulls waited twice as long (`benchmarks/moves.py`).
"""
BOUNCE_PAUSE_MAX_S = 0.25

Keys = NDArray[np.uint64]
Rows = NDArray[np.float32]
SYNC_PATIENCE_S = 3600.0
"""Patience of a sync push, which waits for the slowest trainer; a dead trainer ends the job long before."""


class ClientSession:
    """Session of the pulls and pushes of one client.

    Arrays given to it are sent, and sent again, without copying: they must not change until the call is
    complete. Every call completes: with all its parts answered, or with an error after ``request_s``, also
    when servers keep naming each other as owners.

    Parameters
    ----------
    requests : RequestTable
        Shared by all requests of this process.
    partition_map : PartitionMap
        Known owners of units.
    dims : mapping of str to int
        Floats a row of each table.
    dense_length : int
        Floats of all dense parameters.
    """

    def __init__(
        self, requests: RequestTable, partition_map: PartitionMap, dims: Mapping[str, int], dense_length: int
    ) -> None:
        self.requests = requests
        self.dims, self.dense_length = dict(dims), dense_length
        self.completed: list[Completed] = []
        self.pushes_sent = 0
        self.updates_sent = 0
        self.between = StalenessCounter()
        self.acks = Durations()
        """From the begin of each push to its last acknowledgement."""
        self.map = partition_map
        self._owners = partition_map.owners.copy()
        self._bounds = BlockBounds(dense_length, partition_map.dense_blocks)
        self.acknowledged = Acknowledged(partition_map.partition_bits)
        self._calls: dict[int, Call] = {}
        self._parts: dict[int, Part] = {}
        self._streams: dict[int, Acked] = {}
        self.own_stream = -1
        """Stream of pushes without a name. A failed one counts as acknowledged: it cannot be sent again, and
        a number that never completes would keep all later ones in memory, here and at servers.
        """
        self._next_call = 1

    def set_map(self, now_s: float, partition_map: PartitionMap) -> None:
        """Take the owners from a newer map, and drop hints from refusals.

        Requests to a server that has left go to the new owners of its units, under the same names.
        """
        if partition_map.version <= self.map.version:
            return
        before, self.map = self.map.addresses, partition_map
        self._owners = partition_map.owners.copy()
        gone = {server for server, old in enumerate(before) if old and not partition_map.addresses[server]}
        for ticket, part in [one for one in self._parts.items() if one[1].server in gone]:
            self.requests.cancel(ticket)
            del self._parts[ticket]
            self._calls[part.call].open_parts -= 1
            self._split(now_s, part.call, part.places, part.blocks, part.units, part.bounces)

    # --- calls --------------------------------------------------------------------------------------------

    def pull(
        self,
        now_s: float,
        keys: Mapping[str, Keys],
        dense: bool = False,
        moment: Moment = BEGINNING,
        rows_as: str = "float32",
        dense_as: str = "float32",
        known: KnownDense | None = None,
    ) -> int:
        """Pull rows (and all dense parameters); return the call's number. Keys may repeat.

        Of dense parameters that are ``known`` only changed blocks are sent.
        """
        check_keys(keys, self.dims)
        check_type("rows_as", rows_as, ROW_TYPES)
        check_type("dense_as", dense_as, DENSE_TYPES)
        rows = {name: np.empty((array.size, self.dims[name]), np.float32) for name, array in keys.items()}
        vector = np.empty(self.dense_length if dense else 0, np.float32)
        call = PullCall(keys, rows, vector, moment, now_s, rows_as, dense_as, known if dense else None)
        if call.known:
            check_known(call.known, self.map.dense_blocks, self.dense_length)
            call.versions = np.zeros(self.map.dense_blocks, np.uint64)
        return self._begin(now_s, call, self._all_blocks() if dense else NO_UNITS)

    def push(
        self,
        now_s: float,
        name: PushName,
        gradients: Mapping[str, tuple[Keys, Rows | QuantizedRows]],
        dense: NDArray[Any] | None = None,
        moment: Moment = BEGINNING,
        counts: Mapping[str, Counts] | None = None,
        manner: Manner = PLAINLY,
        since: Seen = NOTHING_SEEN,
    ) -> int:
        """Push gradients of distinct keys (and of all dense parameters) under ``name``; return the call.

        ``since`` is what their pull has seen (`PullCall.seen`).
        """
        keys = {table: pair[0] for table, pair in gradients.items()}
        check_keys(keys, self.dims)
        vector = NO_FLOATS if dense is None else dense
        packed = {
            table: rows if isinstance(rows, QuantizedRows) else QuantizedRows(rows)
            for table, (_keys, rows) in gradients.items()
        }
        check_gradients(keys, packed, self.dims, counts or {})
        check_dense(vector, self.dense_length)
        touched = self._touched(keys, vector.size > 0)
        call = PushCall(
            name, home_of(touched), packed, keys, vector, moment, counts or {}, manner, now_s, since
        )
        return self._begin_push(now_s, call, touched.size)

    def erase(self, now_s: float, name: PushName, keys: Mapping[str, Keys]) -> int:
        """Erase rows under ``name``; return the call."""
        check_keys(keys, self.dims)
        touched = self._touched(keys, dense=False)
        call = PushCall(name, home_of(touched), None, keys, NO_FLOATS, started_s=now_s)
        return self._begin_push(now_s, call, touched.size)

    def maintain(self, now_s: float, name: PushName, table: str, decay: bool, moment: Moment) -> int:
        """Decay counts and evict rows in all partitions of a table, under ``name``; return the call."""
        check_keys({table: np.empty(0, np.uint64)}, self.dims)
        call = MaintainCall(name, 0, table, decay, moment, started_s=now_s)
        return self._begin(now_s, call, np.arange(self.map.partitions, dtype=np.uint32))

    def _touched(self, keys: Mapping[str, Keys], dense: bool) -> NDArray[np.uint32]:
        """Return all units of these keys and, with ``dense``, of the dense parameters; ascending."""
        units = [partitions_touched(array, self.map.partition_bits) for array in keys.values()]
        if len(units) == 1 and not dense:
            return units[0]
        if len(units) > 1:  # units of one table are already ascending and distinct
            units = [np.unique(np.concatenate(units))]
        if dense:
            units.append(np.uint32(self.map.partitions) + self._all_blocks())
        return np.concatenate(units) if units else NO_UNITS

    def _begin_push(self, now_s: float, push: PushCall, units: int) -> int:
        call = self._begin(now_s, push, self._all_blocks() if push.dense.size else NO_UNITS)
        self.pushes_sent += bool(units)
        self.updates_sent += units
        return call

    def open_stream(self, stream: int, first_number: int) -> None:
        """Open a stream: all of its numbers below ``first_number`` are applied everywhere."""
        self._streams.setdefault(stream, Acked(first_number))

    def acknowledge(self, stream: int, numbers: Iterable[int]) -> None:
        """Count these numbers of ``stream`` as applied everywhere: another trainer pushed their records."""
        for number in numbers:
            self._streams.setdefault(stream, Acked(0)).add(number)

    def acked_below(self, stream: int) -> int:
        """Return the number of ``stream`` below which all are applied everywhere."""
        return self._streams[stream].floor if stream in self._streams else 0

    def close_stream(self, stream: int) -> None:
        """Drop a stream that is over."""
        self._streams.pop(stream, None)

    def pulled(self, call: int) -> PullCall:
        """Take the outputs of a completed pull; they are given once."""
        result = self._calls.pop(call)
        assert isinstance(result, PullCall)
        return result

    def _all_blocks(self) -> NDArray[np.uint32]:
        """Return the dense blocks that are not empty."""
        return np.arange(self._bounds.used, dtype=np.uint32)

    def _begin(self, now_s: float, call: Call, blocks: NDArray[np.uint32]) -> int:
        number = self._next_call
        self._next_call += 1
        self._calls[number] = call
        queued = len(self.requests.outbox)
        try:
            self._split(now_s, number, {name: None for name in call.keys}, blocks, self._spoken_for(call))
        except LocalProtocolError:  # a part is too large: then no other part may be sent either
            del self.requests.outbox[queued:], self._calls[number]
            self._cancel_parts(number)
            raise
        if call.open_parts == 0:
            self._finish(number, None)
        return number

    # --- parts --------------------------------------------------------------------------------------------

    def _split(
        self,
        now_s: float,
        number: int,
        places: Mapping[str, NDArray[np.int32] | None],
        blocks: NDArray[np.uint32],
        units: NDArray[np.uint32],
        bounces: int = 0,
    ) -> None:
        """Send one message to each server that owns some of these places, blocks and units."""
        call = self._calls[number]
        parts = parts_of(call, self.map, self._owners, places, blocks, units)
        delay_s = 0.0 if bounces < 2 else min(BOUNCE_PAUSE_S * 2 ** min(bounces - 2, 6), BOUNCE_PAUSE_MAX_S)
        patience_s = call.started_s + self._patience_s(call) - now_s
        floor = 0 if isinstance(call, PullCall) else self.acked_below(call.name.stream)
        is_pull, addresses = isinstance(call, PullCall), self.map.addresses
        for server, part in sorted(parts.items()):
            part.call, part.bounces = number, bounces
            dense, floats = NO_FLOATS, 0
            if part.blocks.size:
                dense, floats = gradient_of(call, part.blocks, self._bounds), self._bounds.floats(part.blocks)
            message = message_of(call, part, floor, dense)
            back = answer_bytes_of(message, self.dims, floats) if is_pull else 0
            ticket = self.requests.start(now_s, addresses[server], message, delay_s, patience_s, back)
            self._parts[ticket] = part
            call.open_parts += 1

    def _patience_s(self, call: Call) -> float:
        is_sync = isinstance(call, PushCall) and call.manner.contributors
        return SYNC_PATIENCE_S if is_sync else self.requests.timing.request_s

    def _spoken_for(self, call: Call) -> NDArray[np.uint32]:
        """Return the units that a push of a sync step covers: all that it could touch."""
        if not isinstance(call, PushCall) or not call.manner.contributors:
            return NO_UNITS
        partitions = np.arange(self.map.partitions, dtype=np.uint32)
        blocks = self._all_blocks() if call.dense.size else NO_UNITS
        return np.concatenate([partitions, np.uint32(self.map.partitions) + blocks])

    # --- answers ------------------------------------------------------------------------------------------

    def receive(self, now_s: float, ticket: int, message: Message) -> bool:
        """Take the reply to one part; False when the ticket belongs to another session."""
        part = self._parts.pop(ticket, None)
        if part is None:
            return False
        call = self._calls.get(part.call)
        if call is None:
            return True
        call.open_parts -= 1
        self._take(now_s, call, part, message)
        if call.open_parts == 0 and part.call in self._calls:
            if isinstance(call, PushCall):
                self.acks.add(now_s - call.started_s)
            self._finish(part.call, None)
        return True

    def _take(self, now_s: float, call: Call, part: Part, message: Message) -> None:
        """Take a reply of any kind."""
        if isinstance(message, Failure):
            self._finish(part.call, error_of(message, self.map.addresses[part.server]))
            return
        if not isinstance(message, (Pulled, Pushed)) or not self._fits(call, part, message):
            text = f"server {part.server} at {self.map.addresses[part.server]}: {message.kind} does not fit"
            self._finish(part.call, UnavailableError(f"{text} what it was asked; is it of another version?"))
            return
        if isinstance(message, Pulled) and isinstance(call, PullCall):
            store_pulled(call, part, message, self._bounds)
        elif isinstance(message, Pushed) and isinstance(call, PushCall):
            self.between.note(call.since.get(part.server, 0), message.pushes_before)
        if not message.refused_units.size:
            self.acknowledged.note(call, part)
        else:
            self._go_on(now_s, call, part, message)

    def _fits(self, call: Call, part: Part, message: Pulled | Pushed) -> bool:
        """Return True if a reply has the shapes of its request: bytes from outside index our arrays below."""
        units = message.refused_units
        if units.size != message.refused_owners.size:
            return False
        if units.size and (units >= self.map.owners.size).any():
            return False
        if not isinstance(call, PullCall) or isinstance(message, Pushed):
            return not isinstance(call, PullCall) and isinstance(message, Pushed)
        return pulled_fits(call, part, message, self.dims, self._bounds)

    def expire(self, ticket: int, waited_s: float) -> bool:
        """Fail the call of an expired part. False for tickets of other sessions."""
        part = self._parts.pop(ticket, None)
        if part is None:
            return False
        address = self.map.addresses[part.server]
        text = f"waited {waited_s:.0f} s for server {part.server} at {address}: no answer; is it alive?"
        self._finish(part.call, WaitTimeoutError(text))
        return True

    def _go_on(self, now_s: float, call: Call, part: Part, message: Pulled | Pushed) -> None:
        """Send refused parts to the owners that the refusal names."""
        units, owners = message.refused_units, message.refused_owners
        there = np.fromiter(map(bool, self.map.addresses), bool, self.map.servers)
        named = (owners != NOBODY) & (owners < self.map.servers)
        named[named] = there[owners[named]]
        self._owners[units[named]] = owners[named]
        refused = np.zeros(self.map.owners.size, bool)
        refused[units] = True
        places: dict[str, NDArray[Any] | None] = {}
        for name, some in part.places.items():
            keys = keys_of(call, name, some)
            hit = np.flatnonzero(refused[partition_of(keys, self.map.partition_bits)]).astype(np.int32)
            if hit.size:
                places[name] = hit if some is None else some[hit]
        blocks = part.blocks[refused[first_unit(call, self.map) + part.blocks]]
        if now_s - call.started_s >= self._patience_s(call):
            text = f"waited {now_s - call.started_s:.0f} s for an owner of unit {units[0]}"
            last = f"server {part.server} at {self.map.addresses[part.server]} refused it last"
            self._finish(part.call, WaitTimeoutError(f"{text}: {last}; is a move stuck?"))
            return
        if any(some is None for some in part.places.values()) and isinstance(call, PullCall):
            call.rows = {
                name: np.array(rows) for name, rows in call.rows.items()
            }  # received views are read-only
        self._split(now_s, part.call, places, blocks, part.units[refused[part.units]], part.bounces + 1)

    def _finish(self, number: int, error: PslibError | None = None) -> None:
        call = self._calls[number]
        if not isinstance(call, PullCall):
            del self._calls[number]
            if error is None or call.name.stream == self.own_stream:
                self._streams.setdefault(call.name.stream, Acked(0)).add(call.name.number)
        elif error is not None:
            del self._calls[number]
        if error is not None:
            self._cancel_parts(number)
        self.completed.append(Completed(number, error))

    def _cancel_parts(self, number: int) -> None:
        for ticket in [ticket for ticket, part in self._parts.items() if part.call == number]:
            del self._parts[ticket]
            self.requests.cancel(ticket)
