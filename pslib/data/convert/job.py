"""Conversion job: reads pieces of a text file; writes a Parquet file, a rejects file and a report."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pslib.data.atomic_files import atomic_output, real_file, refuse_existing
from pslib.data.convert.records import Parser, Piece, RejectedRecord, Rejects, parse_piece
from pslib.data.data_files import table_problem
from pslib.errors import ConfigurationError, DataError
from pslib.schema import Schema
from pslib.text import as_line, counted

ROW_GROUP_ROWS = 65_536  # four per shuffle window of the reader

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class ConvertReport:
    """Result of a conversion.

    Attributes
    ----------
    out : Path
        The Parquet file.
    rows : int
        Rows in it.
    source_lines : int
        Lines of the source, the header included.
    blank_lines : int
        Skipped lines without any value.
    rejected : int
        Records in the rejects file.
    rejects : Path or None
        The rejects file; None if nothing was rejected.
    first_rejects : sequence of RejectedRecord
        Up to three of them.
    nulls : dict of str to int
        Missing values by column, for columns with any.
    positives : int
        Rows with label 1.
    schema : Schema
        Schema that reads every column of the file (but not ``values``, see `convert_libsvm`).
    infinite : dict of str to int
        Infinite numbers by dense column, for columns with any. They became nulls, which `nulls` counts.
    notes : sequence of str
        How values were read that have another reading too.
    """

    out: Path
    rows: int
    source_lines: int
    blank_lines: int
    rejected: int
    rejects: Path | None
    first_rejects: Sequence[RejectedRecord]
    nulls: dict[str, int]
    positives: int
    schema: Schema
    infinite: dict[str, int]
    notes: Sequence[str]

    def lines(self) -> list[str]:
        """The report as lines."""
        kinds = ((self.schema.dense, "dense"), (self.schema.sparse, "sparse"), (self.schema.ragged, "ragged"))
        counts = ", ".join(f"{len(some)} {kind}" for some, kind in kinds if some)
        said = [
            f"{self.out}: {counted(self.rows, 'row')} of {counted(self.source_lines, 'line')}, "
            f"{self.positives / self.rows:.2%} positive",
            f"columns: label {self.schema.label!r}, {counts}",
        ]
        if self.nulls:
            cells = sum(self.nulls.values())
            said.append(f"missing values: {cells:,} in {counted(len(self.nulls), 'column')}, kept as nulls")
        if self.infinite:
            cells = sum(self.infinite.values())
            where = ", ".join(f"{name} ({count:,})" for name, count in self.infinite.items())
            said.append(f"infinite numbers: {cells:,} among these, which became nulls: {where}")
        said += [f"note: {note}" for note in self.notes]
        if self.blank_lines:
            said.append(f"blank lines passed over: {self.blank_lines:,}")
        if self.rejected:
            said.append(f"rejected: {counted(self.rejected, 'record')}, see {self.rejects}")
            said += [f"  line {record.line}: {record.reason}" for record in self.first_rejects]
        return list(map(as_line, said))


def rejects_path(out: str | Path) -> Path:
    """Path of the rejects file of a conversion to ``out``: ``<out>.rejects.tsv``."""
    return Path(f"{out}.rejects.tsv")


class Conversion:
    """Conversion of one source to one output, with its rejects and counts."""

    def __init__(
        self,
        source: str | Path,
        out: str | Path,
        *,
        overwrite: bool,
        share_max: float,
        progress: Progress | None,
    ) -> None:
        self.source, self.out = Path(source), Path(out)
        self._share_max, self._progress = share_max, progress
        if not 0 <= share_max <= 1:
            raise ConfigurationError(f"rejects_max_share: expected a share from 0 to 1, got {share_max}")
        if os.path.isdir(self.source):  # `Path.is_dir` raises for a name that is too long
            told = f"{source}: expected a file, got a folder; convert its files one by one"
            raise DataError(table_problem(str(source)) or told)
        if not os.path.isfile(self.source):
            raise DataError(f"{source}: no such file")
        for written in (self.out, rejects_path(out)):
            if os.path.exists(written) and written.samefile(self.source):
                raise ConfigurationError(f"out: {written} is the source: give another out")
        refuse_existing(self.out, rejects_path(out), overwrite=overwrite)

    def over(
        self,
        found: Iterable[Piece],
        parse: Parser,
        schema: Schema,
        *,
        lines_before: int = 0,
        notes: Callable[[], Sequence[str]] = list,
    ) -> ConvertReport:
        """Write all valid records of ``found``; ``lines_before`` of the source have been read already.

        ``notes`` of the report are asked for at the end.

        Raises
        ------
        DataError
            If there is none, or too many are invalid.
        """
        rejects_file = real_file(rejects_path(self.out))
        with ExitStack() as files:
            target = files.enter_context(atomic_output(self.out))
            bad_target = rejects_file.with_name(target.name + ".rejects")
            files.callback(bad_target.unlink, missing_ok=True)
            rejects = Rejects(bad_target, str(self.source), self._share_max)
            files.callback(rejects.close)
            output = files.enter_context(_Output(target, schema))
            rejects.lines, blank = lines_before, 0
            for piece in found:
                rejects.lines += piece.lines
                tables, blank_here = parse_piece(piece, parse, rejects)
                blank += blank_here
                output.take(tables)
                if self._progress:
                    self._progress(rejects.lines)
            rejects.judge(rejects.lines)
            output.close()
            if not output.rows:
                raise DataError(f"{self.source}: expected at least one record, got none")
            rejects.close()
            rejects_file.unlink(missing_ok=True)
            if rejects.count:
                bad_target.replace(rejects_file)
        return ConvertReport(
            out=self.out,
            rows=output.rows,
            source_lines=rejects.lines,
            blank_lines=blank,
            rejected=rejects.count,
            rejects=rejects_path(self.out) if rejects.count else None,
            first_rejects=tuple(rejects.first),
            nulls=output.nulls,
            positives=output.positives,
            schema=schema,
            infinite=output.infinite,
            notes=tuple(notes()),
        )


class _Output:
    """Parquet file with row groups of even size, and counts of its content.

    In a dense column an infinite number becomes null, as training refuses a whole file for one.
    """

    def __init__(self, path: Path, schema: Schema) -> None:
        self._path, self._label = path, schema.label or ""
        self._dense = {field.name for field in schema.dense}
        self._writer: Any = None
        self._waiting: list[Any] = []
        self._waiting_rows = 0
        self.rows = self.positives = 0
        self.nulls: dict[str, int] = {}
        self.infinite: dict[str, int] = {}

    def __enter__(self) -> _Output:
        return self

    def __exit__(self, *failure: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def take(self, tables: Sequence[Any]) -> None:
        """Append tables of one Arrow schema."""
        for table in map(self._finite, tables):
            self.rows += table.num_rows
            self.positives += pc.sum(table.column(self._label)).as_py() or 0
            for name, column in zip(table.schema.names, table.columns, strict=True):
                if column.null_count:
                    self.nulls[name] = self.nulls.get(name, 0) + column.null_count
            self._waiting.append(table)
            self._waiting_rows += table.num_rows
        if self._waiting_rows >= ROW_GROUP_ROWS:
            whole = pa.concat_tables(self._waiting)
            ready = whole.num_rows // ROW_GROUP_ROWS * ROW_GROUP_ROWS
            self._write(whole.slice(0, ready))
            self._waiting, self._waiting_rows = [whole.slice(ready)], whole.num_rows - ready

    def _finite(self, table: Any) -> Any:
        for place, (name, column) in enumerate(zip(table.column_names, table.columns, strict=True)):
            if name not in self._dense or column.type != pa.float64():
                continue
            infinite = pc.is_inf(column)
            if count := pc.sum(infinite).as_py():  # None if every value is missing
                self.infinite[name] = self.infinite.get(name, 0) + count
                table = table.set_column(place, table.field(place), pc.if_else(infinite, None, column))
        return table

    def close(self) -> None:
        """Write the last row group and the footer."""
        if self._waiting_rows:
            self._write(pa.concat_tables(self._waiting))
        if self._writer is not None:
            self._writer.close()

    def _write(self, table: Any) -> None:
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, table.schema, compression="zstd", compression_level=1)
        self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
