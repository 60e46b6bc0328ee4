"""Image writer: files of a shard's image, from its pieces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType

import pyarrow as pa

from pslib.checkpoint.admission_counts import count_schema, counts_batch, filters_batch, kind_of_counts
from pslib.checkpoint.arrow_files import ArrowFile
from pslib.checkpoint.dense import DENSE_SCHEMA, dense_batch
from pslib.checkpoint.manifest import GONE, GONE_SCHEMA, ROWS, ManifestFile, open_folder, unwritten
from pslib.checkpoint.rows import BatchBuilder, table_schema
from pslib.errors import CheckpointError
from pslib.shard.snapshot import Piece
from pslib.storage import shown
from pslib.table.tables import RowLayout, TableSpec

OTHER_DENSE = "0dense"
"""Stem of the dense file if a table is called dense; not a valid table name."""


class ImageWriter:
    """Write the image of one shard below a path; a context manager that closes all files at its end.

    Parameters
    ----------
    path : str
        Folder of the checkpoint, created if missing.
    stem : str
        Part of the file names.
    specs : mapping of name to TableSpec
    partition_bits : int

    Attributes
    ----------
    entries : list of ManifestFile
        Complete files.

    Raises
    ------
    CheckpointError
        If the folder can't be written; also from `take`.
    """

    def __init__(self, path: str, stem: str, specs: Mapping[str, TableSpec], partition_bits: int) -> None:
        self._path, self._stem, self._bits, self._specs = path, stem, partition_bits, specs
        self.entries: list[ManifestFile] = []
        self._open: dict[str, ArrowFile] = {}
        self._builders: dict[tuple[str, bool], BatchBuilder] = {}
        self._make: dict[str, Callable[[Piece], None]] = {
            "rows": self._rows,
            "narrow": self._rows,
            "counts": self._counts,
            "filters": self._counts,
            "gone": self._gone,
            "dense": self._dense,
            "end": self._end_table,
        }
        filesystem, root = self._folder = open_folder(path)
        try:
            filesystem.create_dir(root, recursive=True)
        except OSError as error:
            raise self._failed(error) from error

    def __enter__(self) -> ImageWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._open.values():
            file.abandon()

    def take(self, piece: Piece) -> None:
        """Write a piece."""
        try:
            self._make[piece.kind](piece)
        except (OSError, pa.ArrowException) as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> CheckpointError:
        return unwritten(f"checkpoint {shown(self._path)}: can't write: {error}", error)

    def _file(self, name: str, schema: pa.Schema) -> ArrowFile:
        if name not in self._open:
            self._open[name] = ArrowFile(*self._folder, name, schema)
        return self._open[name]

    def _finish(self, name: str, table: str, kind: str) -> None:
        sums, rows = self._open.pop(name).finish()
        self.entries.append(ManifestFile(name, table, sums.bytes, sums.crc32, rows, kind, tuple(sums.blocks)))

    def _name(self, table: str, kind: str = "") -> str:
        return f"{table}.{self._stem}.{kind}.arrow" if kind else f"{table}.{self._stem}.arrow"

    def _rows(self, piece: Piece) -> None:
        spec, narrow = self._specs[piece.table], piece.kind == "narrow"
        schema = table_schema(spec)
        builder = self._builders.get((piece.table, narrow))
        if builder is None:
            builder = self._builders[piece.table, narrow] = BatchBuilder(schema, RowLayout.of(spec, narrow))
        self._file(self._name(piece.table), schema).write(builder.batch(*piece.arrays))

    def _counts(self, piece: Piece) -> None:
        schema = count_schema(self._specs[piece.table], self._bits)
        batch = counts_batch if piece.kind == "counts" else filters_batch
        self._file(self._name(piece.table, piece.kind), schema).write(batch(schema, *piece.arrays))

    def _gone(self, piece: Piece) -> None:
        name = self._name(piece.table, GONE)
        batch = pa.record_batch([pa.array(piece.arrays[0])], schema=GONE_SCHEMA)
        self._file(name, GONE_SCHEMA).write(batch)
        self._finish(name, piece.table, GONE)

    def _dense(self, piece: Piece) -> None:
        name = self._name("dense" if "dense" not in self._specs else OTHER_DENSE)
        self._file(name, DENSE_SCHEMA).write(dense_batch(*piece.arrays))
        self._finish(name, "", ROWS)

    def _end_table(self, piece: Piece) -> None:
        """Close the files of a table; every table has its files, even if empty."""
        spec = self._specs[piece.table]
        self._file(self._name(piece.table), table_schema(spec))
        self._finish(self._name(piece.table), piece.table, ROWS)
        if kind := kind_of_counts(spec):
            self._file(self._name(piece.table, kind), count_schema(spec, self._bits))
            self._finish(self._name(piece.table, kind), piece.table, kind)
