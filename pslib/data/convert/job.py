"""Conversion job: reads pieces of a text file; writes a Parquet file, a rejects file and a report."""

from __future__ import annotations

import json
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
from pslib.data.column_types import same_labels
from pslib.data.convert.records import Parser, Piece, RejectedRecord, Rejects, parse_piece
from pslib.data.data_files import table_problem
from pslib.errors import ConfigurationError, DataError
from pslib.schema import Schema
from pslib.text import as_line, counted

ROW_GROUP_ROWS = 65_536  # four per shuffle window of the reader
ROW_GROUP_BYTES = 1 << 30
ADVICE = "allow more by --rejects-max-share"

REJECTED = "pslib.rejected"
"""Metadata of a file: number of records that were rejected, line and reason of the first."""

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
    columns : dict of str to str
        Arrow types by column.
    schema : Schema or None
        Schema that reads every column of the file (but not ``values``, see `convert_libsvm`); None without a
        label.
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
    columns: dict[str, str]
    schema: Schema | None
    infinite: dict[str, int]
    notes: Sequence[str]

    def lines(self) -> list[str]:
        """The report as lines."""
        said = [f"{self.out}: {counted(self.rows, 'row')} of {counted(self.source_lines, 'line')}"]
        if self.schema is None:
            said.append(f"columns: {', '.join(f'{name} {kind}' for name, kind in self.columns.items())}")
        else:
            said[0] += f", {self.positives / self.rows:.2%} positive"
            fields = {"dense": self.schema.dense, "sparse": self.schema.sparse, "ragged": self.schema.ragged}
            counts = ", ".join(f"{len(some)} {kind}" for kind, some in fields.items() if some)
            said.append(f"columns: label {self.schema.label!r}, {counts}")
        if self.nulls:
            cells = sum(self.nulls.values())
            said.append(f"missing values: {cells:,} in {counted(len(self.nulls), 'column')}, kept as nulls")
        if self.infinite:
            cells = sum(self.infinite.values())
            where = ", ".join(f"{name} ({count:,})" for name, count in self.infinite.items())
            said.append(f"infinite numbers: {cells:,} among these, which became nulls: {where}")
        said += [f"note: {note}" for note in [*self.notes, *self._same_labels()]]
        if self.blank_lines:
            said.append(f"blank lines passed over: {self.blank_lines:,}")
        if self.rejected:
            said.append(f"rejected: {counted(self.rejected, 'record')}, see {self.rejects}")
            said += [f"  line {record.line}: {record.reason}" for record in self.first_rejects]
        return list(map(as_line, said))

    def _same_labels(self) -> list[str]:
        """Lines about a label that has one value in all rows."""
        if self.schema is None or self.schema.label is None or self.positives not in (0, self.rows):
            return []
        return same_labels({self.schema.label: [self.positives > 0]})


def rejects_path(out: str | Path) -> Path:
    """Path of the rejects file of a conversion to ``out``: ``<out>.rejects.tsv``."""
    return Path(f"{out}.rejects.tsv")


class Conversion:
    """Conversion of one source to one output, with its rejects and counts.

    Parameters
    ----------
    source, out : path
    overwrite : bool
        True if ``out`` may be replaced.
    share_max : float
        Largest share of bad records.
    progress : callable or None
        Called with the number of lines read so far; of a source that is read several times, in each pass.
    advice : str
        End of the error line about too many bad records.
    """

    def __init__(
        self,
        source: str | Path,
        out: str | Path,
        *,
        overwrite: bool,
        share_max: float,
        progress: Progress | None,
        advice: str = ADVICE,
    ) -> None:
        self.source, self.out = Path(source), Path(out)
        self._share_max, self._progress, self._advice = share_max, progress, advice
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

    def report_lines(self, lines: int) -> None:
        """Tell the progress."""
        if self._progress:
            self._progress(lines)

    def over(
        self,
        found: Iterable[Piece],
        parse: Parser,
        schema: Schema | None,
        *,
        lines_before: int = 0,
        notes: Callable[[], Sequence[str]] = list,
        empty: pa.Table | None = None,
        group: tuple[int, int] = (ROW_GROUP_ROWS, ROW_GROUP_BYTES),
    ) -> ConvertReport:
        """Write all valid records.

        Parameters
        ----------
        found : iterable of Piece
        parse : callable
            Parser of their text.
        schema : Schema or None
            Schema of the table; None without a label.
        lines_before : int
            Lines of the source that have been read already.
        notes : callable
            Gives the notes of the report, at the end.
        empty : pyarrow.Table or None
            Table that is written if there is no record; None: that is an error.
        group : (int, int)
            Rows and bytes of a row group; it ends with either.

        Raises
        ------
        DataError
            If there is no record, or too many are invalid.
        """
        rejects_file = real_file(rejects_path(self.out))
        with ExitStack() as files:
            target = files.enter_context(atomic_output(self.out))
            bad_target = rejects_file.with_name(target.name + ".rejects")
            files.callback(bad_target.unlink, missing_ok=True)
            rejects = Rejects(bad_target, str(self.source), self._share_max, self._advice)
            files.callback(rejects.close)
            output = files.enter_context(_Output(target, schema, group))
            rejects.lines, blank = lines_before, 0
            for piece in found:
                rejects.lines += piece.lines
                tables, blank_here = parse_piece(piece, parse, rejects)
                blank += blank_here
                output.take(tables)
                self.report_lines(rejects.lines)
            rejects.judge(rejects.lines)
            if empty is not None and not output.rows:
                output.take([empty])
            output.close(_rejected(rejects))
            if empty is None and not output.rows:
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
            columns=output.columns,
            schema=schema,
            infinite=output.infinite,
            notes=tuple(notes()),
        )


def _rejected(rejects: Rejects) -> dict[str, str]:
    """Metadata about the rejects; none without any."""
    return (
        {REJECTED: json.dumps([rejects.count, rejects.first[0].line, rejects.first[0].reason])}
        if rejects.count
        else {}
    )


class _Output:
    """Parquet file with row groups of even size, and counts of its content.

    In a dense column an infinite number becomes null, as training refuses a whole file for one.
    """

    def __init__(self, path: Path, schema: Schema | None, group: tuple[int, int]) -> None:
        self._path, self._label = path, schema.label if schema else None
        self._dense = {field.name for field in schema.dense} if schema else set[str]()
        self._group_rows, self._group_bytes = group
        self._writer: Any = None
        self._waiting: list[Any] = []
        self._waiting_rows = self._waiting_bytes = 0
        self.rows = self.positives = 0
        self.nulls: dict[str, int] = {}
        self.columns: dict[str, str] = {}
        self.infinite: dict[str, int] = {}

    def __enter__(self) -> _Output:
        return self

    def __exit__(self, *failure: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def take(self, tables: Sequence[Any]) -> None:
        """Append tables of one Arrow schema."""
        for table in map(self._finite, tables):
            self.columns = {field.name: str(field.type) for field in table.schema}
            self.rows += table.num_rows
            if self._label is not None:
                self.positives += pc.sum(table.column(self._label)).as_py() or 0
            for name, column in zip(table.schema.names, table.columns, strict=True):
                if column.null_count:
                    self.nulls[name] = self.nulls.get(name, 0) + column.null_count
            self._waiting.append(table)
            self._waiting_rows += table.num_rows
            self._waiting_bytes += table.nbytes
        rows = self._group_rows
        if self._waiting_rows >= rows:
            whole = pa.concat_tables(self._waiting)
            ready = whole.num_rows // rows * rows
            self._write(whole.slice(0, ready))
            rest = whole.slice(ready)
            self._waiting, self._waiting_rows, self._waiting_bytes = [rest], rest.num_rows, rest.nbytes
        elif self._waiting_bytes >= self._group_bytes:
            self._write(pa.concat_tables(self._waiting))
            self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0

    def _finite(self, table: Any) -> Any:
        for place, (name, column) in enumerate(zip(table.column_names, table.columns, strict=True)):
            if name not in self._dense or column.type != pa.float64():
                continue
            infinite = pc.is_inf(column)
            if count := pc.sum(infinite).as_py():  # None if every value is missing
                self.infinite[name] = self.infinite.get(name, 0) + count
                table = table.set_column(place, table.field(place), pc.if_else(infinite, None, column))
        return table

    def close(self, metadata: dict[str, str]) -> None:
        """Write the last row group and the footer, with further metadata."""
        if self._waiting_rows or (self._waiting and self._writer is None):
            self._write(pa.concat_tables(self._waiting))
        if self._writer is not None:
            self._writer.add_key_value_metadata(metadata)
            self._writer.close()

    def _write(self, table: Any) -> None:
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, table.schema, compression="zstd", compression_level=1)
        self._writer.write_table(table, row_group_size=self._group_rows)
