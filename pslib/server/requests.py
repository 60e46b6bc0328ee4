"""Requests in the shards of a server, and the order in which one shard serves them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pslib.errors import ConfigurationError, LogError, PreemptedError, PslibError
from pslib.shard.changes import changes_steps
from pslib.shard.key_slices import KeySlice
from pslib.shard.serving import ROW_FLOATS, ShardPart, Steps, finish
from pslib.shard.shard import Shard
from pslib.shard.snapshot import HELD
from pslib.wire.applied_pushes import FencedError
from pslib.wire.counters import STORE_COUNTERS
from pslib.wire.dense_delta import DenseDelta
from pslib.wire.error_codes import failure_of
from pslib.wire.fields import Message
from pslib.wire.messages import (
    CLIENT_STREAMS,
    Adopt,
    BeginSave,
    Changes,
    CheckLoad,
    DescribeTables,
    EndSave,
    Erase,
    Failure,
    Keep,
    Load,
    Maintain,
    Pull,
    Push,
    Release,
    Save,
    SaveFiles,
    Setup,
    TrimLog,
    Witness,
)
from pslib.wire.quantization import QuantizedRows

Loads = Callable[[Shard, Load | CheckLoad | DescribeTables], dict[str, Any]]
"""Loads a checkpoint into a shard, checks whether it could, or lists the tables that it needs."""
Work = Callable[[Shard], None]


NO_DENSE = DenseDelta()
"""Empty buffer, never written."""


@dataclass(slots=True, eq=False)
class ShardRequest:
    """Request in progress on the shards.

    Attributes
    ----------
    peer, request_id, message
        Sender and content.
    shards : tuple of int
        Shards that have a part in it.
    shares : mapping of shard to table to KeySlice
        Keys by shard, split once; a shard that is not in it looks at all keys.
    rows, dense
        Shared outputs of a pull.
    results : dict of int to outcome
        Outcomes of shards.
    answered : bool
        True if its reply has been built; a push of a sync step may be refused before all shards are done.
    taker : callable or None
        Takes the reply, for a request of the server itself.
    arrived_s : float
        Time of its arrival; 0: a request of the server itself.
    """

    peer: bytes
    request_id: int
    message: Message
    shards: tuple[int, ...] = (0,)
    shares: Mapping[int, Mapping[str, KeySlice]] = field(default_factory=dict)
    rows: dict[str, QuantizedRows] = field(default_factory=dict)
    dense: DenseDelta = field(default_factory=lambda: NO_DENSE)
    results: dict[int, Any] = field(default_factory=dict)
    answered: bool = False
    taker: Callable[[Message], None] | None = None
    arrived_s: float = 0.0

    @property
    def key_count(self) -> int:
        """Return the number of keys of all its tables."""
        keys = getattr(self.message, "keys", None) or {}
        return sum(array.size for array in keys.values())

    def is_short(self, rows: int) -> bool:
        """Return True if it is a pull or push of at most ``rows`` rows that waits for no other request.

        16 dense parameters count as one row.
        """
        message = self.message
        if isinstance(message, Push):
            if message.sync:
                return False
            dense = message.dense
        elif isinstance(message, Pull):
            dense = self.dense.vector
        else:
            return False
        return self.key_count + dense.size // ROW_FLOATS <= rows

    def is_long(self, rows: int) -> bool:
        """Return True if it has more than ``rows`` keys, or reads changes, as many as there are."""
        return isinstance(self.message, Changes) or self.key_count > rows


def run_on_shard(shard: Shard, request: ShardRequest, loads: Loads) -> Any:
    """Run one shard's share of a request, all at once."""
    return finish(steps_on_shard(shard, request, loads))


def steps_on_shard(shard: Shard, request: ShardRequest, loads: Loads) -> Steps[Any]:
    """Run one shard's share of a request in steps; errors are returned, so they harm no other request."""
    if shard.broken:
        return Failure("internal", f"shard {shard.index} stopped: {shard.broken}")
    try:
        return (yield from _steps(shard, request, loads))
    except LogError:  # no acknowledgement can be given any more: the server ends
        raise
    except Exception as error:
        return failure_in(shard, request.message, error)


def failure_in(shard: Shard, message: Message, error: Exception) -> Failure:
    """Return the refusal for an error; after an internal one the server goes on, perhaps not the shard."""
    if isinstance(error, PreemptedError):  # raised by a signal: the request has no fault
        raise error
    failure = failure_of(error)
    if isinstance(error, PslibError | FencedError):
        return failure
    if isinstance(message, Push | Erase | Maintain):  # perhaps half applied: no mark can make a retry exact
        name = f"{message.kind} ({message.stream}, {message.number})"
        shard.broken = f"{name} ended half-way: {failure.text}"
    return failure


def requests_over(shard: Shard, request: ShardRequest, result: Any) -> list[tuple[ShardRequest, Any]]:
    """Return the requests that one shard has finished when one has come to ``result``, with outcomes.

    Nearly always that is this one alone. A push of a sync step waits, and the last of its step ends them all.
    """
    over: list[tuple[ShardRequest, Any]] = [] if result is HELD else [(request, result)]
    for waiter, outcome in shard.sync.take_over():
        over.append((waiter, failure_of(outcome) if isinstance(outcome, Exception) else ShardPart(outcome)))
    return over + saves_over(shard)


def saves_over(shard: Shard) -> list[tuple[ShardRequest, Any]]:
    """Return the finished requests that waited for the files of an image."""
    return [
        (request, failure_of(outcome) if isinstance(outcome, Exception) else outcome)
        for request, outcome in shard.cuts.take_over()
    ]


def _steps(shard: Shard, request: ShardRequest, loads: Loads) -> Steps[Any]:
    message, shares = request.message, request.shares.get(shard.index)
    if isinstance(message, Pull):
        return (yield from shard.pull_steps(message, request.rows, request.dense, shares))
    if isinstance(message, Push) and message.sync:
        yield from shard.sync.push_steps(message, request)
        return HELD
    if isinstance(message, Push):
        return (yield from shard.push_steps(message, shares))
    if isinstance(message, Erase):
        return (yield from shard.erase_steps(message, shares))
    if isinstance(message, Changes):
        return (yield from changes_steps(shard, message, request.dense))
    if isinstance(message, Maintain) and message.decay:
        yield from _finish_copying(shard)  # a decay changes every row: all of them would be copied aside
    return _run_rare(shard, request, loads)


def _finish_copying(shard: Shard) -> Steps[None]:
    while shard.cuts.copying:
        if not shard.cuts.step():
            shard.cuts.rest()
        yield


def _run_save(shard: Shard, request: ShardRequest) -> Any:
    message, cuts = request.message, shard.cuts
    if isinstance(message, BeginSave | Save):
        cuts.begin(message)
    if isinstance(message, EndSave):
        cuts.settle(message)
    return cuts.wait(request, message) if isinstance(message, Save | SaveFiles) else None


def _run_load(shard: Shard, message: CheckLoad | DescribeTables | Load, loads: Loads) -> Any:
    """Check or run a load, unless another trainer has the lease by now.

    The fence comes before anything else may fail: a trainer may go on after a refused load as well as after a
    load. Its note is in the log before the first push of any client that knows the outcome.
    """
    if isinstance(message, DescribeTables):
        if not message.path:
            return {"tables": [spec.to_dict() for spec in shard.tables.values()]}
        return loads(shard, message)
    if message.stream < CLIENT_STREAMS:
        shard.marks.take_over(message.stream, message.epoch)
        shard.say_later({"note": "seen", "stream": message.stream, "epoch": message.epoch, "below": 0})
    if isinstance(message, Load):
        shard.cuts.forget("rows are being loaded")
        shard.changes.clear()
    if not shard.owned:  # a server that has just joined has neither tables nor dense parameters
        return {"rows": 0}
    return loads(shard, message)


def _run_rare(shard: Shard, request: ShardRequest, loads: Loads) -> Any:
    message = request.message
    if isinstance(message, Save | BeginSave | SaveFiles | EndSave):
        return _run_save(shard, request)
    if isinstance(message, CheckLoad | DescribeTables | Load):
        return _run_load(shard, message, loads)
    if isinstance(message, Maintain):
        return shard.maintain(message)
    if isinstance(message, Setup):
        return shard.setup(message)
    if isinstance(message, TrimLog):
        return shard.trim_log()
    if isinstance(message, Witness):
        began_with = {"began_with": [shard.began_with]} if shard.began_with else {}
        return {"unknown": _unknown(shard, message)} | began_with
    if isinstance(message, Release | Adopt | Keep):
        return _run_move(shard, message)
    return shard_stats(shard) | {"tables": {name: store.stats() for name, store in shard.stores.items()}}


def _unknown(shard: Shard, message: Witness) -> int:
    """Return the number of its predecessor's pushes that this shard lacks, to units it has or had then."""
    if not message.streams.size == message.numbers.size == message.units.size:
        raise ConfigurationError("witness: expected as many numbers and units as streams")
    asked = zip(message.streams.tolist(), message.numbers.tolist(), message.units.tolist(), strict=True)
    units = shard.owned | shard.marks.began_units
    return sum(
        units >> unit & 1 and not shard.marks.knew(stream, number, unit) for stream, number, unit in asked
    )


def _run_move(shard: Shard, message: Release | Adopt | Keep) -> Any:
    if not shard.is_responsible(message.unit):
        return None
    if isinstance(message, Release):
        return shard.release(message)
    return shard.adopt(message) if isinstance(message, Adopt) else shard.keep(message)


def shard_stats(shard: Shard) -> dict[str, Any]:
    """Return the counters of one shard, to be summed over shards and servers.

    ``memory_bytes`` is what its tables have taken of the system; `STORE_COUNTERS` give its parts, and the
    work of policies. ``tables`` has some of them by table.
    """
    totals = {
        "pushes_applied": shard.counters.pushes_applied,
        "updates_applied": shard.counters.updates_applied,
        "rows_pushed": shard.counters.rows_pushed,
        "rows_pulled": shard.counters.rows_pulled,
        "maintained": shard.counters.maintained,
        "memory_limit_bytes": shard.room.limit_bytes,
        "rows": 0,
        "parameters": 0,
        "memory_bytes": 0,
    } | dict.fromkeys(STORE_COUNTERS, 0)
    tables: dict[str, dict[str, int]] = {}
    for name, store in shard.stores.items():
        stats, spec = store.stats(), shard.tables[name]
        totals["rows"] += stats["rows"]
        totals["parameters"] += stats["rows"] * spec.dim - stats["narrow_rows"] * spec.wide_only_dim
        totals["memory_bytes"] += stats["resident_bytes"]
        for counter in STORE_COUNTERS:
            totals[counter] += stats[counter]
        tables[name] = {
            "rows": stats["rows"],
            "memory_bytes": stats["resident_bytes"],
            "admitted": stats["admitted"],
            "turned_away": stats["turned_away"],
            "evicted": sum(stats[counter] for counter in EVICTED_COUNTERS),
        }
    if shard.dense:
        totals["parameters"] += sum(weights.size for weights in shard.dense.weights.values())
        totals["steps_refused"] += shard.dense.steps_refused
    return totals | {"tables": tables}


EVICTED_COUNTERS = ("evicted_age", "evicted_norm", "evicted_score", "evicted_share")


class ShardTurns:
    """Scheduler of one shard's requests, a pure state machine.

    Requests are served in order of arrival, the long ones in slices; between two slices short pulls have
    their turn. So a short pull waits for one slice, never for a whole long request; all other requests, and
    every second copy of a push, wait until the push before is applied and marked.

    Parameters
    ----------
    shard : Shard
        Used by this object only.
    loads : callable
        Loads a checkpoint into it.
    """

    def __init__(self, shard: Shard, loads: Loads) -> None:
        self._shard, self._loads = shard, loads
        self._lane: deque[ShardRequest | Work] = deque()
        self._passing: deque[ShardRequest] = deque()
        self._steps: Steps[Any] | None = None
        self._long = 0
        self._passed_rows = 0

    def __bool__(self) -> bool:
        return bool(self._lane or self._passing)

    def __len__(self) -> int:
        return len(self._lane) + len(self._passing)

    @property
    def has_long(self) -> bool:
        """Return True if a long request waits, or is half done."""
        return self._long > 0

    @property
    def in_request(self) -> bool:
        """Return True if a long request is half done."""
        return self._steps is not None

    def put(self, work: ShardRequest | Work) -> None:
        """Queue a request, or a function of the shard, which is called in its turn."""
        if isinstance(work, ShardRequest):
            is_long = work.is_long(self._shard.slice_rows)
            if self._long and not is_long and isinstance(work.message, Pull):
                self._passing.append(work)
                return
            self._long += is_long
        self._lane.append(work)

    def turn(self) -> list[tuple[ShardRequest, Any]]:
        """Serve one short request or one slice; return the requests that this ended, with their outcomes.

        Short pulls go first, but long requests get every second slice: none starves.
        """
        if self._passing and (self._passed_rows < self._shard.slice_rows or not self._lane):
            request = self._passing.popleft()
            self._passed_rows += request.key_count
            return [(request, run_on_shard(self._shard, request, self._loads))]
        self._passed_rows = 0
        work = self._lane[0]
        if not isinstance(work, ShardRequest):
            self._lane.popleft()
            work(self._shard)
            return []
        if self._steps is None:
            self._steps = steps_on_shard(self._shard, work, self._loads)
        try:
            next(self._steps)
        except StopIteration as over:
            self._lane.popleft()
            self._steps = None
            self._long -= work.is_long(self._shard.slice_rows)
            return requests_over(self._shard, work, over.value)
        return []
