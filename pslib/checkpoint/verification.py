"""Verification of a checkpoint: checksums all bytes, decodes all record batches, counts all rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pslib.checkpoint.admission_counts import count_schema
from pslib.checkpoint.arrow_files import batches_of
from pslib.checkpoint.dense import DENSE_SCHEMA
from pslib.checkpoint.folders import chain_of
from pslib.checkpoint.manifest import BLOCK_BYTES, GONE, GONE_SCHEMA, ROWS, Manifest, ManifestFile, open_place
from pslib.checkpoint.rows import table_schema
from pslib.checkpoint.sums import Sums, sums_of
from pslib.errors import CheckpointError, ConfigurationError
from pslib.storage import shown
from pslib.table.tables import TableSpec
from pslib.text import counted

__all__ = ["VerifyReport", "verify_checkpoint"]

Progress = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """Result of `verify_checkpoint`.

    Attributes
    ----------
    path : str
    files, bytes : int
        Data files read, and their bytes.
    rows : dict of str to int
        Rows of each table, in all files; of a chain more than the table has.
    problems : tuple of str
        One line per damaged file, with its first damage; empty if the checkpoint is intact.
    """

    path: str
    files: int
    bytes: int
    rows: dict[str, int]
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Return True if the checkpoint is intact."""
        return not self.problems


def verify_checkpoint(path: str, progress: Progress = lambda _bytes: None) -> VerifyReport:
    """Verify a checkpoint by reading all of it, and its predecessors if it is an increment.

    Parameters
    ----------
    path : str
        The checkpoint itself.
    progress : callable
        Called with the number of bytes read since the last call.

    Raises
    ------
    CheckpointError
        If there is no manifest, or it can't be read, so that nothing can be verified.
    """
    links = chain_of(path)
    specs = _specs(links[-1].manifest, path)
    problems: list[str] = []
    rows = dict.fromkeys(specs, 0)
    files = total = 0
    for link, entry in ((one, entry) for one in links for entry in one.manifest.files):
        found = _check_bytes(link.path, entry, progress) or _check_content(link.path, entry, specs)
        if found:
            problems.append(f"{shown(link.path)}: {entry.name}: {found}")
            continue
        files, total = files + 1, total + entry.bytes
        if entry.table and entry.kind == ROWS:
            rows[entry.table] += entry.rows
    if not problems:
        problems += [f"{shown(path)}: {problem}" for problem in _dense_problems(links[-1].manifest, path)]
    return VerifyReport(path, files, total, rows, tuple(problems))


def _specs(manifest: Manifest, path: str) -> dict[str, TableSpec]:
    try:
        return manifest.specs
    except ConfigurationError as error:
        raise CheckpointError(f"{shown(path)}: {error}") from error


def schema_of(entry: ManifestFile, specs: dict[str, TableSpec]) -> pa.Schema:
    """Columns that a file of a checkpoint must have."""
    if not entry.table:
        return DENSE_SCHEMA
    if entry.kind == GONE:
        return GONE_SCHEMA
    spec = specs[entry.table]
    return table_schema(spec) if entry.kind == ROWS else count_schema(spec, 0)


# --- bytes


def _check_bytes(path: str, entry: ManifestFile, progress: Progress) -> str:
    """Location and kind of damage in a file's bytes; "" for none."""
    place = open_place(path)
    try:
        if not place.has(entry.name):
            return "is missing"
        sums = sums_of(place.filesystem, f"{place.root}/{entry.name}", progress)
    except OSError as error:
        return f"can't be read: {error}"
    return _difference(entry, sums)


def _difference(entry: ManifestFile, sums: Sums) -> str:
    """Locate the first differing block, or the end of a truncated or extended file.

    The last block of a truncated file is short, so its checksum is not comparable.
    """
    for number, (expected, found) in enumerate(zip(entry.blocks, sums.blocks, strict=False)):
        first, stop = number * BLOCK_BYTES, min((number + 1) * BLOCK_BYTES, entry.bytes)
        if expected != found and sums.bytes >= stop and not (sums.bytes > entry.bytes == stop):
            count = len(entry.blocks)
            return (
                f"bytes {first}..{stop - 1} (block {number + 1} of {count}) are damaged: expected CRC "
                f"{expected:08x}, got {found:08x}"
            )
    if sums.bytes < entry.bytes:
        return f"is cut at byte {sums.bytes}: expected {entry.bytes} bytes"
    if sums.bytes > entry.bytes:
        return f"has {sums.bytes - entry.bytes} bytes too many after byte {entry.bytes}"
    if sums.crc32 != entry.crc32:
        return (
            f"is damaged somewhere in bytes 0..{entry.bytes - 1} (formats below 3 do not say where): "
            f"expected CRC {entry.crc32:08x}, got {sums.crc32:08x}"
        )
    return ""


# --- content


def _check_content(path: str, entry: ManifestFile, specs: dict[str, TableSpec]) -> str:
    """Problem of a file with matching checksums: a pslib bug or a memory fault."""
    if entry.table and entry.table not in specs:
        return f"belongs to table {entry.table!r}, which the manifest does not describe"
    rows = number = 0
    try:
        for number, batch in enumerate(batches_of(path, entry, schema_of(entry, specs))):
            batch.validate(full=True)
            keys = batch.column(0)
            if entry.table and entry.kind == ROWS and len(keys.unique()) != len(keys):
                return f"record batch {number} (from 0) holds a key twice"
            rows += batch.num_rows
    except (CheckpointError, pa.ArrowException) as error:
        return f"record batch {number} (from 0) can't be decoded: {error}"
    return "" if rows == entry.rows else f"holds {counted(rows, 'row')}; expected {entry.rows}"


def _dense_problems(manifest: Manifest, path: str) -> Iterator[str]:
    """Check that every dense parameter appears exactly once."""
    length = manifest.dense_length
    seen = np.zeros(length, np.uint32)
    for entry in manifest.files_of(""):
        for batch in batches_of(path, entry, DENSE_SCHEMA):
            sizes = batch.column("weights").value_lengths().to_pylist()
            for first, size in zip(batch.column("first").to_pylist(), sizes, strict=True):
                if not 0 <= first <= length - size:
                    yield f"{entry.name}: dense parameters {first}..{first + size - 1} of {length}"
                    return
                seen[first : first + size] += 1
    if (wrong := np.count_nonzero(seen != 1)) > 0:
        place = int(np.flatnonzero(seen != 1)[0])
        yield f"{wrong} of {length} dense parameters are missing or there twice, the first at {place}"
