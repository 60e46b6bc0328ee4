"""Data check before training: column statistics, and the first bad value of each kind by file and row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pslib.data.column_casts import NUMBERS as NUMBERS_ALONE
from pslib.data.column_casts import ColumnCasts, numbers_in
from pslib.data.column_types import KeyKinds, folder_columns, key_kind, same_labels, unread_reason
from pslib.data.columns import is_list, storage_type
from pslib.data.data_files import Paths, data_files, text_format
from pslib.data.dataset import ParquetData, not_parquet, open_parquet
from pslib.data.features import seconds_note
from pslib.data.inspect.column_reader import parts_of
from pslib.data.inspect.column_scan import ColumnReport, ColumnScan, read_alike
from pslib.data.inspect.row_sample import RowSample
from pslib.data.parquet_files import UNREADABLE
from pslib.errors import DataError
from pslib.schema import Schema, SparseField
from pslib.storage import shown
from pslib.text import as_cell, as_line, counted

LABEL_NAMES = ("label", "click", "Label")  # assumed label names without a schema
GROUP_ROWS_FEW, GROUP_ROWS_MANY = 1_000, 1_048_576  # outside these bounds, reading or shuffling suffers
NUMBERS = ("int", "uint", "float", "double", "halffloat", "bool")  # prefixes of Arrow's numeric types
# A dense column that reaches further is worth a note. DeepFM on 180,000 generated clicks with a price up to
# 160, two epochs: log loss 0.574 with the price as it is, 0.517 with log1p.
DENSE_FAR = 30.0
GROUPS_MANY = 16  # a file of fewer row groups is small rather than badly divided


@dataclass(frozen=True, slots=True)
class FileReport:
    """Rows of one file.

    Attributes
    ----------
    file : str
    rows : int
    group_rows : tuple of int
        Rows of each row group.
    """

    file: str
    rows: int
    group_rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Result of `check`.

    Attributes
    ----------
    files : tuple of FileReport
        Readable files.
    columns : tuple of ColumnReport
        In the order of the files, or of the schema if given.
    problems : tuple of str
        Problems that would stop a training run, one line each with file, row and column.
    notes : tuple of str
        Valid but notable properties.
    unread : dict of str to str
        Columns that are not read without a schema, each with the reason.
    """

    files: tuple[FileReport, ...]
    columns: tuple[ColumnReport, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    unread: Mapping[str, str]

    @property
    def ok(self) -> bool:
        """True if the data is valid for training."""
        return not self.problems

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return sum(file.rows for file in self.files)

    @property
    def label_rate(self) -> float | None:
        """Share of label 1 among all rows; None without a numeric label."""
        labels = [column for column in self.columns if _is_label(column)]
        return labels[0].ones / labels[0].rows if labels else None

    def lines(self) -> list[str]:
        """The report for people, as lines: files, columns, notes, problems."""
        said = [_file_line(file) for file in self.files]
        if self.label_rate is not None:
            said.append(f"label: {self.label_rate:.2%} positive of {counted(self.rows, 'row')}")
        said += _column_lines(self.columns)
        said += [f"note: {note}" for note in self.notes]
        said += [f"problem: {problem}" for problem in self.problems]
        said.append(
            "no problem found" if self.ok else f"{len(self.problems)} problem{'s'[: len(self.problems) > 1]}"
        )
        return list(map(as_line, said))


def check(
    path: Paths,
    schema: Schema | None = None,
    label: str | None = None,
    *,
    key_kinds: KeyKinds | None = None,
    sample: RowSample | None = None,
    progress: Callable[[int], object] | None = None,
) -> CheckReport:
    r"""Read all values of some data files and report on them.

    Bad data raises nothing: the report lists every problem found.

    Parameters
    ----------
    path : path, URI, folder, glob pattern, or a sequence of them
        As for `ParquetData`.
    schema : Schema, optional
        Only its columns are read, and values invalid for their roles are problems. Without it all columns are
        read, and one is the label.
    label : str, optional
        Label column if there is no schema. Default: one named label or click.
    key_kinds : dict, optional
        Key kinds of the training data, as for `ParquetData`: other kinds are a problem.
    sample : RowSample, optional
        Filled with some rows of every column.
    progress : callable, optional
        Called with the number of values of each part read.

    Returns
    -------
    CheckReport

    Examples
    --------
    >>> print(*check("train.parquet").lines(), sep="\n")  # doctest: +SKIP
    """
    found = data_files(path)
    scans = _Scans(sample, progress, list(found.problems), _mixed(found.files))
    if schema is not None:
        try:
            ParquetData(found, schema, key_kinds=dict(key_kinds or {}))
        except DataError as error:
            scans.problems = list(error.problems)
    for file in found.files:
        try:
            opened = open_parquet(file)
            columns = opened.schema_arrow  # rebuilt at each access; raises for a damaged name
        except UNREADABLE as error:
            _say(scans.problems, not_parquet(file, error))
            continue
        with opened:
            scans.files.append(_file_report(file, opened))
            scans.unread = dict(_unread(file, columns)) | scans.unread
            roles = dict(_roles(schema, label, columns))
            _scan_file(file, opened, columns, roles, _casts(schema, roles), scans)
    bad = [problem for scan in scans.columns.values() for problem in scan.problems()]
    # A problem found by statistics is reported once, with the number of such values.
    problems = [line for line in scans.problems if not any(one.startswith(line) for one in bad)] + bad
    reports = tuple(scan.report() for scan in scans.columns.values())
    notes = [note for scan in scans.columns.values() for note in scan.notes()]
    notes = [note for note in (found.note(), *notes, *_notes(scans.files, reports, schema)) if note]
    read = {one.name for one in reports}
    if schema is None:
        notes += [
            f"column {name!r}: in some files {why}" for name, why in scans.unread.items() if name in read
        ]
    unread = {name: reason for name, reason in scans.unread.items() if name not in read}
    return CheckReport(tuple(scans.files), reports, tuple(problems), tuple(notes), unread)


def _mixed(files: Sequence[str]) -> dict[str, pa.DataType]:
    """Types as which columns of several ones are read, if files of text have them: numbers, or texts."""
    found: dict[str, set[str]] = {}
    for file in files if any(map(text_format, files)) else ():
        with suppress(*UNREADABLE), open_parquet(file) as opened:
            for one in opened.schema_arrow:
                kind = "number" if NUMBERS_ALONE in (one.metadata or {}) else str(one.type)
                if text_format(file) is None and kind == "int64":
                    kind = "typed"
                found.setdefault(one.name, set()).add(kind)
    mixed: dict[str, pa.DataType] = {}
    for name, every in found.items():
        kinds = every - {"null"}
        if len(kinds) > 1 and kinds <= {"double", "int64", "number"}:
            mixed[name] = pa.float64() if "double" in kinds else pa.string()
        elif "string" in kinds and kinds <= {"string", "int64", "number"}:
            mixed[name] = pa.string()
    return mixed


def _say(problems: list[str], problem: str) -> None:
    """Append problems that ParquetData has not reported."""
    if problem not in problems:
        problems.append(problem)


def _file_report(file: str, opened: pq.ParquetFile) -> FileReport:
    metadata = opened.metadata
    groups = tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
    return FileReport(file, metadata.num_rows, groups)


def _roles(schema: Schema | None, label: str | None, arrow_schema: pa.Schema) -> Iterator[tuple[str, str]]:
    """(column, role) of the columns to read."""
    if schema is None:
        label = label or next((name for name in LABEL_NAMES if name in arrow_schema.names), None)
        for name in _once(arrow_schema):
            if name and _readable(arrow_schema.field(name).type):
                yield name, "label" if name == label else ""
        return
    roles = {name: "sparse" for name in schema.columns}  # a column of several fields is read once
    roles |= {field.name: "ragged" for field in schema.ragged} | {
        field.name: "dense" for field in schema.dense
    }
    roles |= {name: "label" for name in schema.labels}
    if schema.weight is not None:
        roles[schema.weight] = "weight"
    yield from (
        (name, role) for name, role in roles.items() if len(arrow_schema.get_all_field_indices(name)) == 1
    )


def _casts(schema: Schema | None, roles: Mapping[str, str]) -> ColumnCasts:
    """Casts of a training by the schema; without one by a schema of the label alone, in which 007 is 7."""
    named = [name for name, role in roles.items() if role == "label"]
    return ColumnCasts(schema or Schema(label=named[0] if named else None, sparse=[f"not {named}"]))


def _once(arrow_schema: pa.Schema) -> list[str]:
    """Names that occur once; duplicated names are omitted."""
    return [name for name in arrow_schema.names if len(arrow_schema.get_all_field_indices(name)) == 1]


def _scan_file(
    file: str,
    opened: pq.ParquetFile,
    columns: pa.Schema,
    roles: Mapping[str, str],
    casts: ColumnCasts,
    scans: _Scans,
) -> None:
    """Read the columns with a role, cast as a training casts them, and add them to their scans."""
    read = casts.schema(columns)
    rows = opened.metadata.num_rows
    group_rows = scans.files[-1].group_rows
    mine = {}
    for name, role in roles.items():
        kind = storage_type(read.field(name).type)
        kind = scans.read_as(name, kind, role)
        mine[name] = scans.of(name, kind, role)
        mine[name].begin(kind, file, group_rows)
    if scans.sample is not None:
        scans.sample.begin(rows, len(mine))
    for name, given, first_row in parts_of(file, opened, list(mine), scans.problems):
        is_cast = read.field(name).type != columns.field(name).type
        array = casts.column(name, given) if is_cast else given
        kind = scans.read_as(name, array.type, roles[name])
        if kind != array.type:
            array = numbers_in(array) if pa.types.is_floating(kind) else array.cast(kind)
        mine[name].add(array, first_row)
        if scans.sample is not None:
            scans.sample.add(name, array, first_row)
        if scans.progress is not None:
            scans.progress(len(array))


@dataclass(slots=True)
class _Scans:
    """Findings in the files that have been read so far."""

    sample: RowSample | None
    progress: Callable[[int], object] | None
    problems: list[str] = field(default_factory=list)
    mixed: Mapping[str, pa.DataType] = field(default_factory=dict)
    files: list[FileReport] = field(default_factory=list)
    columns: dict[tuple[str, str], ColumnScan] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)

    def read_as(self, name: str, kind: pa.DataType, role: str) -> pa.DataType:
        """Return the type as which values are read, beside others of their column in other files."""
        alike = self.mixed.get(name)
        if alike is None or role not in ("", "sparse") or pa.types.is_null(kind):
            return kind
        return kind if role == "sparse" and pa.types.is_floating(alike) else alike

    def of(self, name: str, kind: pa.DataType, role: str) -> ColumnScan:
        """Scan of a column's values: shared by types that are read alike, separate for others."""
        scans, alike = self.columns, read_alike(kind)
        if alike == "null":
            alike = next((known for named, known in scans if named == name), alike)
        elif (name, "null") in scans:
            scans[name, alike] = scans.pop((name, "null"))
        return scans.setdefault((name, alike), ColumnScan(name, role))


def _unread(file: str, columns: pa.Schema) -> Iterator[tuple[str, str]]:
    """Columns that are not read without a schema, each with the reason."""
    for one in columns:
        count = len(columns.get_all_field_indices(one.name))
        if not one.name:
            yield "", "it has no name: give it one, or leave it out (row numbers of a CSV have none)"
        elif count > 1:
            yield one.name, f"is there {count} times; rename all but one"
        elif not _readable(one.type):
            yield one.name, unread_reason(one.name, one.type)
    for name, value in folder_columns(file).items():
        if name not in columns.names:
            yield name, f"it stands in the names of folders ({name}={value}): write it as a column"


def _readable(kind: pa.DataType) -> bool:
    """Return True for types of keys and numbers, and lists of such; others are skipped without a schema."""
    kind = storage_type(kind)
    inner: Any = kind.value_type if is_list(kind) or pa.types.is_dictionary(kind) else kind
    return pa.types.is_floating(inner) or key_kind(inner) is not None


def _is_label(column: ColumnReport) -> bool:
    return column.role == "label" and column.rows > 0 and column.kind.startswith(NUMBERS)


def _notes(files: list[FileReport], columns: tuple[ColumnReport, ...], schema: Schema | None) -> list[str]:
    said = []
    for file in files:
        rows = file.group_rows
        if len(rows) > GROUPS_MANY and sum(rows) / len(rows) < GROUP_ROWS_FEW:
            mean = counted(round(sum(rows) / len(rows)), "row")
            said.append(f"{shown(file.file)}: row groups of {mean} are slow to read")
        if rows and max(rows) > GROUP_ROWS_MANY:
            said.append(f"{shown(file.file)}: a row group of {max(rows):,} rows makes shuffling coarse")
    labels = [column for column in columns if _is_label(column) and column.ones in (0, column.rows)]
    said += same_labels({column.name: [column.ones > 0] for column in labels})
    said += [note for column in columns if column.role in ("", "dense") for note in _ids_note(column)]
    by_name = {column.name: column for column in columns}
    said += [note for one in (schema.sparse if schema else ()) for note in _time_note(one, by_name)]
    raw = {field.name for field in schema.dense if not field.log1p} if schema else set()
    return said + [note for column in columns if column.name in raw for note in _far_note(column)]


def _time_note(one: SparseField, columns: Mapping[str, ColumnReport]) -> list[str]:
    """Note about whole numbers that can't be the seconds since 1970 that a part is taken of."""
    column = columns.get(one.columns[0]) if one.take else None
    if column is None or not isinstance(column.smallest, int) or not isinstance(column.largest, int):
        return []
    note = seconds_note(one, column.smallest, column.largest)
    return [note] if note else []


def _ids_note(column: ColumnReport) -> list[str]:
    """Note about a column of floats that is what pandas makes of ids, among which one is missing."""
    missing = column.nulls + column.nans
    if not missing or column.reach <= DENSE_FAR or not column.ids_hint or column.lengths:
        return []
    return [f"column {column.name!r}: whole numbers as {column.kind}, {missing:,} missing: {column.ids_hint}"]


def _far_note(column: ColumnReport) -> list[str]:
    """Note about a dense column that is used unscaled and has values far from 0."""
    if not column.kind.startswith(NUMBERS) or column.smallest is None or column.largest is None:
        return []
    if column.reach <= DENSE_FAR:
        return []
    return [
        f"column {column.name!r}: values from {column.smallest:,.6g} to {column.largest:,.6g} go into the "
        f"model as they are; log1p: true for it in the schema, or scaled data, learns faster"
    ]


def _file_line(file: FileReport) -> str:
    groups = file.group_rows
    text = f"{shown(file.file)}: {counted(file.rows, 'row')} in {counted(len(groups), 'row group')}"
    if not groups:
        return text
    return f"{text} of {min(groups):,} to {max(groups):,} rows" if len(groups) > 1 else text


def _column_lines(columns: tuple[ColumnReport, ...]) -> list[str]:
    """Format a table with aligned columns."""
    rows = [("column", "role", "type", "missing", "distinct", "range", "")]
    rows += [
        (
            as_cell(column.name),
            column.role or "-",
            column.kind,
            f"{column.nulls / column.rows:.1%}" if column.nulls else "-",
            "-" if column.distinct is None else f"{column.distinct:,}",
            _range_text(column),
            _rest_text(column),
        )
        for column in columns
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(7)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _range_text(column: ColumnReport) -> str:
    if column.smallest is None:
        return "-"
    text = f"{column.smallest:,.6g} .. {column.largest:,.6g}"
    if isinstance(column.smallest, int):
        text = f"{column.smallest} .. {column.largest}"
    return f"{text} bytes" if "string" in column.kind or "binary" in column.kind else text


def _rest_text(column: ColumnReport) -> str:
    parts = []
    if column.lengths:
        low, mean, high = column.lengths
        parts.append(f"lists of {low} to {high}, mean {mean:.1f}")
    for count, what in (
        (column.empty_lists, "empty"),
        (column.null_elements, "null elements"),
        (column.nans, "nan"),
        (column.infinite, "infinite"),
    ):
        parts += [f"{count:,} {what}"] if count else []
    return ", ".join(parts)
