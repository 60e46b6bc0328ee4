"""Checks of a request by a server, before any shard has changed.

Each finding is a `Failure`, or None where there is no fault. Only table descriptions of shards are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from pslib.client.calls import SHOWS_MIN
from pslib.config import Limits
from pslib.server.requests import failure_in
from pslib.shard.shard import Shard
from pslib.table.optimizers import Optimizer, rate_problem
from pslib.table.tables import DenseSpec, TableSpec
from pslib.table.wire_format import DENSE_TYPES, ROW_TYPES
from pslib.wire.messages import (
    Adopt,
    Erase,
    Failure,
    Keep,
    Maintain,
    Message,
    Pull,
    Push,
    Release,
    Reserve,
    Setup,
)
from pslib.wire.quantization import gradients_of, request_problem

__all__ = ["RATE_MAX", "RequestChecks", "push_options_problem"]

RATE_MAX = 1e6
"""Maximum factor of a learning rate; no schedule is known to go beyond a few thousand."""
TIME_S_MAX = 1e12
"""Maximum time: 31,000 years; tables keep times in float32, which ends at 3e38."""


class RequestChecks:
    """Checker of received requests.

    Parameters
    ----------
    limits : Limits
        Of the codec that would send the reply.
    shards : sequence of Shard
        All shards of the server, with its tables.
    """

    def __init__(self, limits: Limits, shards: Sequence[Shard]) -> None:
        self._limits, self._shards = limits, shards

    def problem(self, message: Message) -> Failure | None:
        """Return the fault of a request, except those of `setup_problem`."""
        if isinstance(message, Pull):
            return self._split_problem(message) or self._answer_problem(message)
        if isinstance(message, Push | Erase):
            problem = self._split_problem(message) or self._unit_problem("home unit", message.home)
            return problem or (None if isinstance(message, Erase) else self._gradient_problem(message))
        return self._rare_problem(message)

    def setup_problem(self, message: Message) -> Failure | None:
        """Return the fault of a set-up, for any shard: one may have tables for which another had no space."""
        if not isinstance(message, Setup):
            return None
        for shard in self._shards:
            try:
                shard.check_setup(message)
            except Exception as error:
                return failure_in(shard, message, error)
        return None

    def _split_problem(self, message: Pull | Push | Erase) -> Failure | None:
        problem = self._table_problem(message.keys)
        if problem or isinstance(message, Erase):
            return problem
        return self._dense_problem(message) or _time_problem(message.time_s) or _packing_problem(message)

    def _rare_problem(self, message: Message) -> Failure | None:
        if isinstance(message, Release | Adopt | Keep):
            return self._unit_problem("unit", message.unit)
        if isinstance(message, Maintain):
            return self._maintain_problem(message)
        if isinstance(message, Reserve) and message.bytes > 2 * self._limits.message_bytes_max:
            return Failure(
                "configuration", f"credit: a request and its answer never have {message.bytes} bytes"
            )
        return None

    def _table_problem(self, names: Iterable[str]) -> Failure | None:
        tables = self._shards[0].tables
        unknown = [name for name in names if name not in tables]
        if not unknown:
            return None
        return Failure("unknown-table", f"table {unknown[0]!r} is unknown; tables: {sorted(tables)}")

    def _maintain_problem(self, message: Maintain) -> Failure | None:
        problem = self._table_problem([message.table]) or self._unit_problem("home unit", message.home)
        partitions = self._shards[0].partitions
        if message.units.size and int(message.units.max()) >= partitions:
            return Failure("configuration", f"units: expected partitions in 0..{partitions - 1}")
        return problem or _time_problem(message.time_s)

    def _unit_problem(self, what: str, unit: int) -> Failure | None:
        units = self._shards[0].partitions + self._shards[0].dense_blocks
        if unit < units:
            return None
        return Failure("configuration", f"{what}: expected 0..{units - 1}, got {unit}")

    def _answer_problem(self, message: Pull) -> Failure | None:
        """Return a failure when the reply to a pull would exceed a limit; checked before memory is taken."""
        tables, limits = self._shards[0].tables, self._limits
        width = ROW_TYPES[message.rows_as].itemsize
        sizes = [keys.size * tables[name].dim * width for name, keys in message.keys.items()]
        half = limits.message_bytes_max // 2  # of a reply; refusals need room too
        dense, dense_bytes = self._shards[0].dense, 0
        if dense and message.blocks.size:
            dense_bytes = dense.bounds.floats(message.blocks) * DENSE_TYPES[message.dense_as].itemsize
        if max([*sizes, dense_bytes]) <= limits.frame_bytes_max and max(sum(sizes), dense_bytes) <= half:
            return None
        return Failure(
            "configuration",
            f"a pull of {sum(sizes)} bytes of rows and {dense_bytes} of dense blocks does not fit an answer; "
            "pull fewer keys and blocks at a time",
        )

    def _dense_problem(self, message: Pull | Push) -> Failure | None:
        if not message.blocks.size:
            return None
        dense, blocks = self._shards[0].dense, message.blocks
        if dense is None:
            return Failure("configuration", "dense parameters have not been set up")
        rising = (blocks[1:] > blocks[:-1]).all()  # the order of a client's request
        repeated = not rising and np.unique(blocks).size != blocks.size
        if int(blocks.max()) >= self._shards[0].dense_blocks or repeated:
            return Failure("configuration", "dense blocks: out of range or repeated")
        if isinstance(message, Push) and message.dense.size != (floats := dense.bounds.floats(blocks)):
            return Failure(
                "configuration", f"dense gradient: expected {floats} floats, got {message.dense.size}"
            )
        return None

    def _gradient_problem(self, message: Push) -> Failure | None:
        if message.gradients.keys() != message.keys.keys():
            return Failure("configuration", "gradients and keys name different tables")
        for name, keys in message.keys.items():
            problem = gradients_of(message, name).problem(keys.size, self._shards[0].tables[name].dim)
            if problem:
                return Failure("configuration", f"gradients of {name}: {problem}")
        return _count_problem(message) or self._options_problem(message)

    def _options_problem(self, message: Push) -> Failure | None:
        first = self._shards[0]
        dense, units = first.dense.spec if first.dense else None, first.partitions + first.dense_blocks
        problem = push_options_problem(message, first.tables, dense, units)
        return Failure("configuration", problem) if problem else None


def _time_problem(time_s: float) -> Failure | None:
    if 0 <= time_s <= TIME_S_MAX:
        return None
    return Failure("configuration", f"time_s: expected 0..{TIME_S_MAX:g}, got {time_s:g}")


def _packing_problem(message: Pull | Push) -> Failure | None:
    problem = request_problem(message)
    return Failure("configuration", problem) if problem else None


def _count_problem(message: Push) -> Failure | None:
    """Return a failure unless shows and clicks are of keys of this push, shows above 0, clicks not below."""
    if not message.shows and not message.clicks:
        return None
    for what, given, least in (("shows", message.shows, SHOWS_MIN), ("clicks", message.clicks, 0.0)):
        for name, counts in given.items():
            if name not in message.keys or counts.shape != message.keys[name].shape:
                return Failure("configuration", f"{what} of {name}: expected one for each of its keys")
            if not (np.isfinite(counts) & (counts >= least)).all():
                return Failure("configuration", f"{what} of {name}: expected finite numbers >= {least:g}")
    return None


def push_options_problem(
    message: Push, tables: Mapping[str, TableSpec], dense: DenseSpec | None, units: int
) -> str | None:
    """Return the fault of a push's rate and sync step, one line; None where there is none.

    Parameters
    ----------
    message
    tables : mapping of name to TableSpec
    dense : DenseSpec or None
    units : int
        Number of units of the cluster.
    """
    if not 0 <= message.rate <= RATE_MAX:
        return f"rate: expected 0..{RATE_MAX:g}, got {message.rate:g}"
    if message.rate != 1 and not message.delta:
        used: list[Optimizer] = [part.optimizer for name in message.keys for part in tables[name].parts]
        if message.blocks.size and dense:
            used.append(dense.optimizer)
        if problem := rate_problem(used):
            return problem
    return _sync_problem(message, units) if message.sync else None


def _sync_problem(message: Push, units: int) -> str | None:
    if set(message.sync) != {"contributors", "units"}:
        return f"sync: expected contributors and units, got {sorted(message.sync)}"
    contributors, spoken_for = message.sync["contributors"], message.sync["units"]
    if not contributors.size or (np.diff(contributors.astype(np.int64)) <= 0).any():
        return "sync: contributors: expected ascending ranks"
    if message.rank not in contributors.tolist():
        return f"sync: rank {message.rank} is not among the contributors of step {message.step}"
    if spoken_for.size and int(spoken_for.max()) >= units:
        return f"sync: units: expected 0..{units - 1}, got {spoken_for.max()}"
    return None
