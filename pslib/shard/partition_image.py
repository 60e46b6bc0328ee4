"""Image of a unit that moves to another server: the whole content of one partition, or of one dense block.

Names of an image's arrays: ``<table>`` and ``<table>.narrow`` are keys of rows, with ``.weights`` and
``.state`` in its content; ``<table>.counted`` are keys without a row, with ``.counts`` (1, n) uint32;
``<table>.filter`` is (1, counters) uint8. Absent parts are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cython_ext.common.hashing import partition_of
from pslib.errors import ConfigurationError
from pslib.shard.state import ShardState
from pslib.table.policies import COUNT_MAX, ByBloom, ByCount
from pslib.table.tables import RowLayout, TableSpec
from pslib.text import counted
from pslib.wire.messages import Adopt, Image


def image_of(shard: ShardState, unit: int, map_version: int, tables: Iterable[str] | None = None) -> Image:
    """Build the image of a unit: rows, counts, filters, state, marks; of a partition all tables or these."""
    keys: dict[str, NDArray[np.uint64]] = {}
    content: dict[str, NDArray[Any]] = {}
    if unit < shard.partitions:
        for name in shard.stores if tables is None else tables:
            _add_table(shard, name, unit, keys, content)
    elif shard.dense and (block := unit - shard.partitions) in shard.dense.weights:
        content["weights"] = shard.dense.weights[block][None]
        content["state"] = shard.dense.state[block][None]
        content["version"] = np.array([[shard.dense.versions[block]]], np.uint64)
    return Image(unit, map_version, shard.marks.export(unit), content, keys)


def _add_table(
    shard: ShardState,
    name: str,
    unit: int,
    keys: dict[str, NDArray[np.uint64]],
    content: dict[str, NDArray[Any]],
) -> None:
    spec, store = shard.tables[name], shard.stores[name]
    for narrow in (False, True) if spec.compact else (False,):
        of = f"{name}.narrow" if narrow else name
        keys[of], content[f"{of}.weights"], content[f"{of}.state"] = store.export_partition(unit, narrow)
    if isinstance(spec.admission, ByCount):
        keys[f"{name}.counted"], counts = store.export_counts(unit)
        content[f"{name}.counts"] = counts[None]
    if isinstance(spec.admission, ByBloom) and (counters := store.export_filter(unit)).size:
        content[f"{name}.filter"] = counters[None]


def adopt_rows(shard: ShardState, message: Adopt, bounded: bool = True) -> None:
    """Import all of a partition; tables that the image lacks are empty in it. Limits count if ``bounded``.

    Raises
    ------
    ConfigurationError
        When the image does not fit the tables here; nothing has changed.
    MemoryLimitError
        When there is no room for the rows; nothing has changed.
    """
    known = {of for name in shard.stores for of in _key_arrays(shard.tables[name])}
    if unknown := sorted(set(message.keys) - known):
        raise ConfigurationError(
            f"unit {message.unit}: its image has table {unknown[0]!r}, this server has "
            f"{counted(len(shard.tables), 'table')} without it: set it up here, then scale again"
        )
    if alone := sorted(of for of in message.keys if of.partition(".")[0] not in message.keys):
        raise ConfigurationError(
            f"unit {message.unit}: its image has {alone[0]!r} and no {alone[0].partition('.')[0]!r}"
        )
    for name, keys in message.keys.items():
        _check(shard, message, name, keys)
    rows = {name: message.keys[name] for name in shard.stores if name in message.keys}
    if bounded:
        narrow = {name: message.keys[f"{name}.narrow"] for name in rows if f"{name}.narrow" in message.keys}
        shard.room.make_for_rows(rows, narrow, shard.stores, shard.tables)
    shard.say(message)
    for name in rows:
        _import_table(shard, message, name)


def _key_arrays(spec: TableSpec) -> list[str]:
    """Return the names of the key arrays that an image of a table may have."""
    narrow = [f"{spec.name}.narrow"] if spec.compact else []
    return [spec.name, *narrow, *([f"{spec.name}.counted"] if isinstance(spec.admission, ByCount) else [])]


def _check(shard: ShardState, message: Adopt, name: str, keys: NDArray[np.uint64]) -> None:
    table, _dot, kind = name.partition(".")
    if kind == "counted":
        counts = content_of(message, f"{table}.counts", (1, keys.size), np.uint32)
        if counts.size and not 1 <= counts.min() <= counts.max() <= COUNT_MAX:
            raise ConfigurationError(
                f"unit {message.unit}: expected {table}.counts in 1..{COUNT_MAX}, got "
                f"{counts.min()}..{counts.max()}"
            )
    else:
        layout = RowLayout.of(shard.tables[table], kind == "narrow")
        content_of(message, f"{name}.weights", (keys.size, layout.dim))
        content_of(message, f"{name}.state", (keys.size, layout.state_floats))
    admission = shard.tables[table].admission
    if f"{table}.filter" in message.content:
        counters = admission.counters if isinstance(admission, ByBloom) else 0
        content_of(message, f"{table}.filter", (1, counters), np.uint8)
    if (partition_of(keys, shard.partition_bits) != message.unit).any():
        raise ConfigurationError(f"unit {message.unit}: its image has keys of other partitions")


def _import_table(shard: ShardState, message: Adopt, name: str) -> None:
    store, unit, content = shard.stores[name], message.unit, message.content
    for narrow in (False, True) if shard.tables[name].compact else (False,):
        of = f"{name}.narrow" if narrow else name
        if of in message.keys:
            weights, state = content[f"{of}.weights"], content[f"{of}.state"]
            store.import_partition(unit, message.keys[of], weights, state, narrow)
    if f"{name}.counted" in message.keys:
        store.import_counts(unit, message.keys[f"{name}.counted"], content[f"{name}.counts"][0])
    if f"{name}.filter" in content:
        store.import_filter(unit, content[f"{name}.filter"][0])


def adopt_block(shard: ShardState, message: Adopt) -> None:
    """Import a dense block; without dense parameters here, only an image that has none either.

    Raises
    ------
    ConfigurationError
        When there are none here, or the image is not one of this block.
    """
    if shard.dense is None:
        if message.content:
            raise ConfigurationError(f"unit {message.unit}: dense parameters have not been set up here")
        shard.say(message)
        return
    block = message.unit - shard.partitions
    start, stop = shard.dense.bounds(block)
    floats = shard.dense.spec.optimizer.initial_state(stop - start).size
    weights = content_of(message, "weights", (1, stop - start))
    version = int(content_of(message, "version", (1, 1), np.uint64)[0, 0])
    state = content_of(message, "state", (1, floats))
    shard.say(message)
    shard.dense.put(block, weights[0], state[0], version)


def content_of(message: Adopt, name: str, shape: tuple[int, int], dtype: Any = np.float32) -> NDArray[Any]:
    """Return one array of an image; ConfigurationError unless it has the expected shape."""
    found = message.content.get(name)
    if found is None or found.dtype != dtype or found.shape != shape:
        came = "nothing" if found is None else f"{found.dtype} {found.shape}"
        expected = f"{np.dtype(dtype).name} {shape}"
        raise ConfigurationError(f"unit {message.unit}: expected {name} as {expected}, got {came}")
    return found
