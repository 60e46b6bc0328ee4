"""Checkpoint loader: reads rows and dense blocks into one shard, for any number of servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa

from pslib.checkpoint.admission_counts import CountReader, count_schema, kind_of_counts
from pslib.checkpoint.arrow_files import batches_of, check_size, verify
from pslib.checkpoint.compatibility import LoadOptions, check_fits
from pslib.checkpoint.dense import DenseContent, put_dense, read_dense
from pslib.checkpoint.folders import Link, chain_of
from pslib.checkpoint.manifest import GONE, GONE_SCHEMA, ROWS, ManifestFile
from pslib.checkpoint.rows import RowReader, table_schema
from pslib.checkpoint.verification import schema_of
from pslib.errors import MemoryLimitError, PslibError, UnknownTableError
from pslib.shard.shard import Shard
from pslib.storage import shown
from pslib.table.partition_map import units_of_mask
from pslib.table.tables import TableSpec


def load_shard(shard: Shard, path: str, options: LoadOptions | None = None) -> dict[str, int]:
    """Replace a shard's rows and blocks by those of the checkpoint at ``path``.

    Before the first row changes, every needed file is verified against the manifest, and decoded where rows
    would be lost by a forged one, and the memory for all rows is checked. After a later failure, tables that
    were empty are empty again. Otherwise the shard is ``broken``: it must not reply to requests, and its log
    must keep the previous state.

    Returns
    -------
    dict
        ``rows`` loaded into this shard.

    Raises
    ------
    CheckpointCorruptError
        If a file is missing, truncated or changed.
    CheckpointIncompatibleError
        If the checkpoint holds other tables than this cluster.
    MemoryLimitError
        If there is no memory for all rows; the message states the fate of the previous rows.
    UnknownTableError
        If a table of it is not set up, and the options create none.
    """
    options = options or LoadOptions()
    links, saved, tables = _fitting(shard, path, options)
    more = [] if options.tables is not None else [name for name in saved if name not in shard.tables]
    _each_file(verify, links, tables, options)
    if any(shard.stores[table].partitions().size for table in tables):
        _decode(links, tables, options, also_rows=True)
    elif options.tables is None:
        _decode(links, tables, options, also_rows=False)
    dense = read_dense(shard, links[-1].manifest, path, options.state) if options.tables is None else None
    _check_room(shard, saved, tables, links)
    shard.make_tables(saved[name] for name in more)  # they are not set up yet, and their rows are saved
    tables += more
    _replace(shard, tables, saved, links, options, dense)
    return {"rows": sum(shard.stores[table].rows for table in tables)}


def check_shard(shard: Shard, path: str, options: LoadOptions) -> None:
    """Refuse what `load_shard` would refuse before it changes a row, without reading files whole.

    Changed bytes in a file are detected only during the load, by every shard alike.

    Raises
    ------
    CheckpointCorruptError
        If a file is missing or truncated.
    CheckpointIncompatibleError
        If the checkpoint holds other tables than this cluster.
    MemoryLimitError
        If there is no memory for all rows.
    UnknownTableError
        As `load_shard`.
    """
    links, saved, tables = _fitting(shard, path, options)
    _each_file(check_size, links, tables, options)
    _check_room(shard, saved, tables, links)


def mapped_rows(links: list[Link], table: str) -> Iterator[tuple[Link, str, pa.RecordBatch]]:
    """Yield the rows of a table as they stand in a checkpoint's files, mapped where those are local.

    As in `load_shard`, every file is verified before the first row.

    Parameters
    ----------
    links : list of Link
        The checkpoint's, from `chain_of`.
    table : str

    Yields
    ------
    link : Link
        The full checkpoint first.
    kind : str
        ``GONE``, the keys of rows that have left since the link before, then ``ROWS``.
    batch : RecordBatch

    Raises
    ------
    CheckpointCorruptError
        If a file is missing, truncated or changed.
    """
    options = LoadOptions()
    _each_file(verify, links, [table], options)
    _decode(links, [table], options, also_rows=False)
    for link in links:
        for batch in _batches(link, table, GONE, GONE_SCHEMA):
            yield link, GONE, batch
        for batch in _batches(link, table, ROWS, table_schema(link.manifest.specs[table]), mapped=True):
            yield link, ROWS, batch


def _fitting(
    shard: Shard, path: str, options: LoadOptions
) -> tuple[list[Link], dict[str, TableSpec], list[str]]:
    """Chain of a checkpoint, its tables by name, and names of the shard's tables to load."""
    links = chain_of(path)
    manifest, dense = links[-1].manifest, shard.dense.spec if shard.dense else None
    saved = manifest.specs
    mine: Mapping[str, TableSpec] = shard.tables
    if shard.bare:  # a table made since then is empty: nothing of it remains
        mine = {name: spec for name, spec in mine.items() if name in saved}
    fitting = check_fits(manifest, path, mine, dense, options)
    new = sorted(saved.keys() - shard.tables.keys())
    if new and options.tables is None and not options.new_tables:
        raise UnknownTableError(
            f"{shown(path)}: expected its table {new[0]!r} to be set up on this server, as on all others; "
            "load again, or set it up before"
        )
    return links, saved, fitting


def _each_file(
    look: Callable[[str, ManifestFile], None], links: list[Link], tables: list[str], options: LoadOptions
) -> None:
    """Apply a check to all needed files."""
    for link in links:
        for entry in link.manifest.files:
            if entry.table in tables or options.tables is None:
                look(link.path, entry)


def _decode(links: list[Link], tables: list[str], options: LoadOptions, also_rows: bool) -> None:
    """Decode the needed files that the load does not read, small ones; with ``also_rows`` all, as rows go."""
    for link in links:
        specs = link.manifest.specs
        for entry in link.manifest.files:
            needed = options.tables is None or entry.table in tables
            as_dense = link is links[-1] and not entry.table
            as_rows = entry.table in tables and entry.kind in (ROWS, GONE)
            if needed and not as_dense and (also_rows or not as_rows):
                for _ in batches_of(link.path, entry, schema_of(entry, specs)):
                    pass


def _check_room(shard: Shard, saved: Mapping[str, TableSpec], tables: list[str], links: list[Link]) -> None:
    """Refuse rows beyond a memory limit; tables with eviction when full make room themselves."""
    if not shard.room.limit_bytes:
        return  # else keys would be read for nothing
    specs, others = shard.tables, {name: one for name, one in shard.stores.items() if name not in tables}
    fixed = [table for table in tables if specs[table].when_full == "refuse"]
    try:  # upper bound: all rows for this shard, without reading keys
        most = {
            table: max(sum(one.rows for one in link.manifest.files_of(table)) for link in links)
            for table in fixed
        }
        shard.room.check(most, others, specs)
    except MemoryLimitError:
        shard.room.check({table: _least_rows(shard, saved[table], links) for table in fixed}, others, specs)


def _least_rows(shard: Shard, saved: TableSpec, links: list[Link]) -> int:
    """Lower bound of a table's largest number of rows during a load into this shard.

    An increment's load begins with all rows of its predecessor, including rows removed since.
    """
    counts = []
    for link in links:
        batches = _batches(link, saved.name, ROWS, table_schema(saved), ["key"])
        # a table with other columns is refused during the load
        keys = (batch.column(0) for batch in batches if batch.schema.types[:1] == [pa.uint64()])
        counts.append(sum(shard.own_keys(one.to_numpy(zero_copy_only=False)).size for one in keys))
    return max(counts)


def _left_of(shard: Shard) -> str:
    """State in which a new process finds the shard after a failed load."""
    if shard.journal is not None:
        return "its log has them as they were before the load"
    return "without a log those from before are in checkpoints only"


def _replace(
    shard: Shard,
    tables: list[str],
    saved: Mapping[str, TableSpec],
    links: list[Link],
    options: LoadOptions,
    dense: DenseContent | None,
) -> None:
    """Replace the shard's content; on failure leave it empty if it was empty, else broken."""
    can_undo = not any(shard.stores[table].partitions().size for table in tables)
    _empty(shard, tables)
    try:
        for table in tables:
            _load_table(shard, saved[table], links, options)
        if dense:
            can_undo = False
            put_dense(shard, dense, options.state)
    except Exception as error:
        if can_undo:
            _empty(shard, tables)
            outcome = "its tables are empty, as before the load"
        else:  # as after a partial push: unowned rows must not be trained on, nor kept
            shard.broken = f"the load of {shown(links[-1].path)} ended half-way: {error}"
            outcome = f"its rows were being replaced and it answers no more: start again; {_left_of(shard)}"
        if isinstance(error, PslibError):
            raise type(error)(f"{error}; {outcome}") from error
        raise


def _empty(shard: Shard, tables: list[str]) -> None:
    partitions = units_of_mask(shard.owned)
    for table in tables:
        for partition in partitions[partitions < shard.partitions].tolist():
            shard.stores[table].drop_partition(partition)
    shard.room.forget()


def _load_table(shard: Shard, saved: TableSpec, links: list[Link], options: LoadOptions) -> None:
    """Load rows of a full checkpoint, then of each increment: removed rows, then changed rows."""
    table, about = saved.name, links[-1].manifest.about
    spec = shard.tables[table]
    if options.all:
        now = spec.now(int(about.get("steps", 0)), float(about.get("seconds", 0.0)))
    else:
        now = spec.now(options.step, options.time_s)
    same_clock = options.all and saved.clock == spec.clock
    reader = RowReader(shard, table, now, same_clock, options.state)
    for link in links:
        for batch in _batches(link, table, GONE, GONE_SCHEMA):
            keys = batch.column(0).to_numpy(zero_copy_only=False)
            shard.stores[table].erase(keys[shard.own_keys(keys)])
        for batch in _batches(link, table, ROWS, table_schema(saved)):
            reader.take(batch)
    _load_counts(shard, saved, links[-1])


def _load_counts(shard: Shard, saved: TableSpec, link: Link) -> None:
    """Load counts after rows, so that counted keys have no row; each link of a chain has all counts."""
    counts, kind = CountReader(shard, saved.name, saved), kind_of_counts(saved)
    if counts.fits and kind:
        for batch in _batches(link, saved.name, kind, count_schema(saved, 0)):
            counts.take(batch)
    counts.finish()


def _batches(
    link: Link,
    table: str,
    kind: str,
    schema: pa.Schema,
    columns: list[str] | None = None,
    mapped: bool = False,
) -> Iterator[pa.RecordBatch]:
    for entry in link.manifest.files_of(table, kind):
        yield from batches_of(link.path, entry, schema, columns, mapped=mapped)
