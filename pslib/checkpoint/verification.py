"""Verification of a checkpoint: checksums all bytes, decodes all record batches, counts all rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from pslib.checkpoint.admission_counts import count_schema
from pslib.checkpoint.arrow_files import batches_of, verify
from pslib.checkpoint.dense import DENSE_SCHEMA, dense_pieces
from pslib.checkpoint.folders import chain_of
from pslib.checkpoint.manifest import GONE, GONE_SCHEMA, ROWS, ManifestFile
from pslib.checkpoint.rows import table_schema
from pslib.errors import CheckpointError
from pslib.table.tables import TableSpec

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
    problems: list[str] = []
    rows = {str(table["name"]): 0 for table in links[-1].manifest.tables}
    files = total = 0
    specs = [link.manifest.specs for link in links]
    for at, link, entry in ((at, one, entry) for at, one in enumerate(links) for entry in one.manifest.files):
        try:
            verify(link.path, entry, progress)
            for _ in batches_of(link.path, entry, schema_of(entry, specs[at])):
                pass
        except CheckpointError as error:
            problems.append(str(error))
            continue
        files, total = files + 1, total + entry.bytes
        if entry.table and entry.kind == ROWS:
            rows[entry.table] = rows.get(entry.table, 0) + entry.rows
    if not problems:
        try:
            for _ in dense_pieces(path, links[-1].manifest):
                pass
        except CheckpointError as error:
            problems.append(str(error))
    return VerifyReport(path, files, total, rows, tuple(problems))


def schema_of(entry: ManifestFile, specs: dict[str, TableSpec]) -> pa.Schema:
    """Columns that a file of a checkpoint must have."""
    if not entry.table:
        return DENSE_SCHEMA
    if entry.kind == GONE:
        return GONE_SCHEMA
    spec = specs[entry.table]
    return table_schema(spec) if entry.kind == ROWS else count_schema(spec, 0)
