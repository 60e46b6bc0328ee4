"""Checks of a request by a server, before any shard has changed.

Each finding is a `Failure`, or None where there is no fault. Only table descriptions of shards are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from pslib.client.calls import SHOWS_MIN
from pslib.config import Limits
from pslib.errors import ConfigurationError, UnknownTableError
from pslib.server.requests import failure_in
from pslib.shard.shard import Shard
from pslib.table.optimizers import Optimizer, rate_problem
from pslib.table.tables import DenseSpec, TableSpec
from pslib.table.wire_format import DENSE_TYPES, ROW_TYPES
from pslib.wire.error_codes import failure_of
from pslib.wire.fields import Message
from pslib.wire.messages import (
    Adopt,
    Changes,
    Erase,
    Failure,
    Keep,
    Maintain,
    Pull,
    Push,
    Release,
    Reserve,
    Setup,
)
from pslib.wire.quantization import check_request, gradients_of

RATE_MAX = 1e6
"""Maximum factor of a learning rate; no schedule is known to go beyond a few thousand."""
TIME_S_MAX = 1e12
"""Maximum time: 31,000 years; tables keep times in float32, which ends at 3e38."""


class RequestChecks:
    """Checker of received requests.

    Parameters
    ----------
    limits : Limits
        Limits of the codec that would send the reply.
    shards : sequence of Shard
        All shards of the server, with its tables.
    """

    def __init__(self, limits: Limits, shards: Sequence[Shard]) -> None:
        self._limits, self._shards, self._first = limits, shards, shards[0]

    def problem(self, message: Message) -> Failure | None:
        """Return the fault of a request, except those of `setup_problem`."""
        try:
            if isinstance(message, Pull | Push | Erase):
                self._check_split(message)
            elif isinstance(message, Changes):
                self._check_changes(message)
            elif isinstance(message, Release | Adopt | Keep):
                self._check_unit("unit", message.unit)
            elif isinstance(message, Maintain):
                self._check_maintain(message)
            elif isinstance(message, Reserve) and message.bytes > 2 * self._limits.message_bytes_max:
                raise ConfigurationError(f"credit: a request and its answer never have {message.bytes} bytes")
        except ConfigurationError as error:
            return failure_of(error)
        return None

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

    def _check_split(self, message: Pull | Push | Erase) -> None:
        self._check_tables(message.keys)
        if not isinstance(message, Erase):
            self._check_dense(message)
            _check_time(message.time_s)
            check_request(message)
        if isinstance(message, Pull):
            self._check_answer(message)
            return
        self._check_unit("home unit", message.home)
        if isinstance(message, Push):
            self._check_gradients(message)

    def _check_tables(self, names: Iterable[str]) -> None:
        tables = self._first.tables
        if unknown := [name for name in names if name not in tables]:
            raise UnknownTableError(f"table {unknown[0]!r} is unknown; tables: {sorted(tables)}")

    def _check_maintain(self, message: Maintain) -> None:
        self._check_tables([message.table])
        self._check_unit("home unit", message.home)
        partitions = self._first.partitions
        if message.units.size and int(message.units.max()) >= partitions:
            raise ConfigurationError(f"units: expected partitions in 0..{partitions - 1}")
        _check_time(message.time_s)

    def _check_changes(self, message: Changes) -> None:
        self._check_tables([message.table])
        self._check_dense(message)
        check_request(message)
        if message.units.size > self._first.partitions:
            raise ConfigurationError(f"units: expected at most {self._first.partitions}")

    def _check_unit(self, what: str, unit: int) -> None:
        units = self._first.partitions + self._first.dense_blocks
        if unit >= units:
            raise ConfigurationError(f"{what}: expected 0..{units - 1}, got {unit}")

    def _check_answer(self, message: Pull) -> None:
        """Refuse a pull whose reply would exceed a limit, before memory is taken."""
        tables, limits, dense = self._first.tables, self._limits, self._first.dense
        width = ROW_TYPES[message.rows_as].itemsize
        sizes = [keys.size * tables[name].dim * width for name, keys in message.keys.items()]
        half, dense_bytes = limits.message_bytes_max // 2, 0  # half of a reply: refusals need room too
        if dense and message.blocks.size:
            dense_bytes = dense.bounds.floats(message.blocks) * DENSE_TYPES[message.dense_as].itemsize
        if max([*sizes, dense_bytes]) > limits.frame_bytes_max or max(sum(sizes), dense_bytes) > half:
            raise ConfigurationError(
                f"a pull of {sum(sizes)} bytes of rows and {dense_bytes} of dense blocks does not fit an "
                "answer; pull fewer keys and blocks at a time"
            )

    def _check_dense(self, message: Pull | Changes | Push) -> None:
        if not message.blocks.size:
            return
        dense, blocks = self._first.dense, message.blocks
        if dense is None:
            raise ConfigurationError("dense parameters have not been set up")
        rising = (blocks[1:] > blocks[:-1]).all()  # the order of a client's request
        repeated = not rising and np.unique(blocks).size != blocks.size
        if int(blocks.max()) >= self._first.dense_blocks or repeated:
            raise ConfigurationError("dense blocks: out of range or repeated")
        if isinstance(message, Push) and message.dense.size != (floats := dense.bounds.floats(blocks)):
            raise ConfigurationError(f"dense gradient: expected {floats} floats, got {message.dense.size}")

    def _check_gradients(self, message: Push) -> None:
        first = self._first
        if message.gradients.keys() != message.keys.keys():
            raise ConfigurationError("gradients and keys name different tables")
        for name, keys in message.keys.items():
            rows = gradients_of(message, name)
            if problem := rows.problem(keys.size, first.tables[name].dim):
                raise ConfigurationError(f"gradients of {name}: {problem}")
        _check_counts(message)
        dense, units = first.dense.spec if first.dense else None, first.partitions + first.dense_blocks
        check_push_options(message, first.tables, dense, units)


def check_push_options(
    message: Push, tables: Mapping[str, TableSpec], dense: DenseSpec | None, units: int
) -> None:
    """Check the rate of a push, and the contributors of a synchronous one.

    Raises
    ------
    ConfigurationError
        If the rate is out of range or an optimizer has one rate alone, or the contributors are no ranks.
    """
    _check_rate(message, tables, dense)
    _check_sync(message, units)


def _check_time(time_s: float) -> None:
    if not 0 <= time_s <= TIME_S_MAX:
        raise ConfigurationError(f"time_s: expected 0..{TIME_S_MAX:g}, got {time_s:g}")


def _check_counts(message: Push) -> None:
    """Refuse shows and clicks unless they are of keys of this push, shows above 0, clicks not below."""
    if not message.shows and not message.clicks:
        return
    for what, given, least in (("shows", message.shows, SHOWS_MIN), ("clicks", message.clicks, 0.0)):
        for name, counts in given.items():
            if name not in message.keys or counts.shape != message.keys[name].shape:
                raise ConfigurationError(f"{what} of {name}: expected one for each of its keys")
            if not (np.isfinite(counts) & (counts >= least)).all():
                raise ConfigurationError(f"{what} of {name}: expected finite numbers >= {least:g}")


def _check_rate(message: Push, tables: Mapping[str, TableSpec], dense: DenseSpec | None) -> None:
    if not 0 <= message.rate <= RATE_MAX:
        raise ConfigurationError(f"rate: expected 0..{RATE_MAX:g}, got {message.rate:g}")
    if message.rate == 1 or message.delta:
        return
    used: list[Optimizer] = [part.optimizer for name in message.keys for part in tables[name].parts]
    if message.blocks.size and dense:
        used.append(dense.optimizer)
    if problem := rate_problem(used):
        raise ConfigurationError(problem)


def _check_sync(message: Push, units: int) -> None:
    if not message.sync:
        return
    if set(message.sync) != {"contributors", "units"}:
        raise ConfigurationError(f"sync: expected contributors and units, got {sorted(message.sync)}")
    contributors, spoken_for = message.sync["contributors"], message.sync["units"]
    if not contributors.size or (np.diff(contributors.astype(np.int64)) <= 0).any():
        raise ConfigurationError("sync: contributors: expected ascending ranks")
    if message.rank not in contributors.tolist():
        raise ConfigurationError(
            f"sync: rank {message.rank} is not among the contributors of step {message.step}"
        )
    if spoken_for.size and int(spoken_for.max()) >= units:
        raise ConfigurationError(f"sync: units: expected 0..{units - 1}, got {spoken_for.max()}")
