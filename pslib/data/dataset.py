"""Parquet files as one data set: opened, checked against the schema up front, listed by row group."""

from __future__ import annotations

import difflib
import glob
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyarrow import types

from pslib.data.features import field_problem
from pslib.data.looking import about_each
from pslib.data.opening import open_file, parquet_from
from pslib.data.values import one_line, statistics_problems
from pslib.errors import ConfigurationError, DataError
from pslib.places import is_uri, open_uri, parent_and_name, shown, with_inner
from pslib.schema import Schema, SparseField
from pslib.table.tables import text_hash
from pslib.words import counted

__all__ = [
    "KeyKinds",
    "ParquetData",
    "RowGroup",
    "column_problems",
    "key_kind",
    "label_problem",
    "weight_problem",
]

SUFFIXES = (".parquet", ".parq", ".pq")
"""Names that count as data in a folder; a file that is named itself may have any."""

TEXT_SUFFIXES = (".csv", ".tsv", ".txt", ".libsvm", ".svm")
"""Names of what `pslib convert` reads."""

PROBLEMS_MAX = 50
"""Problems shown at once: a thousand files with the same fault need not be listed."""

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
KeyKinds = dict[str, tuple[str, str, str]]
"""Of vocabularies: ``"integer"`` or ``"string"``, and a column and a file that have it."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group of one file.

    Attributes
    ----------
    file : str
        Path or URI as opened.
    row_group : int
        0-based number in the file.
    rows : int
        At least 0.
    first_row : int
        Row number in the file of its first row, 0-based.
    """

    file: str
    row_group: int
    rows: int
    first_row: int


class ParquetData:
    """All row groups of some Parquet files with the columns of a schema.

    Parameters
    ----------
    paths : path, URI, folder, glob pattern, or a sequence of them
        A folder gives its ``*.parquet`` (``.parq``, ``.pq``) files, at any depth, ordered by name; names that
        start with ``_`` or ``.`` are left out. URIs (``s3://``, ``gs://``, ``hdfs://``, ``file://``) go
        through pyarrow.fs, with settings such as ``endpoint_override`` in their query; patterns are for local
        paths.
    schema : Schema
    may_be_empty : bool
        Whether files without any row are data too.
    key_kinds : dict, optional
        Of other data for the same rows, as training data for those of a test: vocabularies, each with the
        kind of its values and a column and a file that have it. Gets those of this data.

    Raises
    ------
    DataError
        When a path is missing or twice there, a file is not Parquet, a column is missing or of a wrong type,
        or there is no row: all problems at once.

    Attributes
    ----------
    schema : Schema
    row_groups : tuple of RowGroup
        In file order.
    rows : int
        Rows of all of them.
    fingerprint : int
        64-bit hash of file names (without folders), sizes and row counts: the same after a move to another
        folder, another one when a file was added, rewritten or renamed.
    names : frozenset of str
        Columns that a file has, whether the schema reads them or not.
    """

    def __init__(
        self, paths: Paths, schema: Schema, *, may_be_empty: bool = False, key_kinds: KeyKinds | None = None
    ) -> None:
        self.schema = schema
        given = _given(paths)
        problems: list[str] = [] if given else ["data: expected at least one path, got none"]
        files: list[str] = []
        for path in given:
            found, problem = _files_of(path)
            problems += [f"{file}: given twice; name each file once" for file in found if file in files]
            files += found
            problems += problem
        groups: list[RowGroup] = []
        marks: list[str] = []
        names: set[str] = set()
        kinds = _KeyKinds(schema, key_kinds or {})
        every = list(dict.fromkeys(files))
        for file, look in zip(every, about_each(every, partial(_look, schema)), strict=True):
            problems += _taken(file, look, kinds, groups, marks)
            names.update(() if look.columns is None else look.columns.names)
        if not (problems or may_be_empty or any(group.rows for group in groups)):
            others = f" and {len(files) - 3} others" if len(files) > 3 else ""
            problems.append(
                f"{', '.join(map(shown, files[:3]))}{others}: expected at least one row, got none; is this "
                "the data that you mean?"
            )
        if problems:
            more = len(problems) - PROBLEMS_MAX
            raise DataError(
                *problems[:PROBLEMS_MAX], *([f"... and {counted(more, 'more problem')}"] if more > 0 else [])
            )
        if key_kinds is not None:
            key_kinds |= kinds.seen
        self.row_groups, self.names = tuple(groups), frozenset(names)
        self.rows = sum(group.rows for group in groups)
        self.fingerprint = text_hash(*marks)

    @classmethod
    def known(cls, schema: Schema, row_groups: Sequence[RowGroup], fingerprint: int) -> ParquetData:
        """Data that another process has looked at: nothing is opened before it is read."""
        data = cls.__new__(cls)
        data.schema, data.row_groups, data.names = schema, tuple(row_groups), frozenset()
        data.rows = sum(group.rows for group in row_groups)
        data.fingerprint = fingerprint
        return data


@dataclass(frozen=True, slots=True)
class _Look:
    """What the footer of one file tells: rows of its groups, its columns, bytes, and what does not fit."""

    counts: Sequence[int]
    columns: pa.Schema | None
    bytes: int
    of_columns: Sequence[str]
    of_values: Sequence[str] = ()


def _look(schema: Schema, file: str) -> _Look:
    try:
        with open_file(file) as source, parquet_from(source) as opened:
            metadata = opened.metadata
            counts = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
            problems = column_problems(opened.schema_arrow, schema, shown(file))
            of_values = [] if problems else statistics_problems(file, opened, schema)
            return _Look(counts, opened.schema_arrow, source.size(), problems, of_values)
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:  # the last one: a damaged name
        return _Look([], None, 0, [not_parquet(file, error)])


def _taken(
    file: str, look: _Look, kinds: _KeyKinds, groups: list[RowGroup], marks: list[str]
) -> Sequence[str]:
    """Append a file's row groups and mark; its problems, those of types before those of values."""
    if look.columns is None:
        return look.of_columns
    first_row = 0
    for i, rows in enumerate(look.counts):
        groups.append(RowGroup(file, i, rows, first_row))
        first_row += rows
    marks.append(f"{parent_and_name(file)[1]} {look.bytes} {','.join(map(str, look.counts))}")
    return look.of_columns or kinds.conflicts(look.columns, shown(file)) or look.of_values


def not_parquet(file: str, error: Exception) -> str:
    """A line about a file that can't be opened as Parquet, with the way out."""
    text = f"{shown(file)}: expected a Parquet file; {one_line(error)}"
    name = file.lower().removesuffix(".gz")
    advice = "write it anew, or take it out of the data"
    return f"{text.rstrip('.')}; {'make one with: pslib convert' if name.endswith(TEXT_SUFFIXES) else advice}"


def open_parquet(file: str) -> pq.ParquetFile:
    """Open a path or URI; close it with ``with`` or `close`."""
    return parquet_from(open_file(file))


def key_kind(kind: pa.DataType) -> str | None:
    """How values of an Arrow type become keys.

    Returns
    -------
    str or None
        ``"integer"`` (all widths, bool), ``"string"`` (also binary, as bytes), ``"null"``, or None when this
        type makes no keys. A dictionary is what its values are.
    """
    if types.is_dictionary(kind):
        return key_kind(kind.value_type)
    if types.is_null(kind):
        return "null"
    if types.is_integer(kind) or types.is_boolean(kind):
        return "integer"
    tests = (types.is_string, types.is_large_string, types.is_string_view, types.is_binary,
             types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary)  # fmt: skip
    return "string" if any(test(kind) for test in tests) else None


def is_list(kind: pa.DataType) -> bool:
    """Whether values of this type are lists: variable, large, fixed-size or view."""
    tests = (types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_list_view,
             types.is_large_list_view)  # fmt: skip
    return any(test(kind) for test in tests)


def label_problem(kind: pa.DataType) -> str | None:
    """Why values of this type are no labels; None: they may be."""
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return None
    return f"a label is integer, float or boolean, got {kind}; cast it to one of them"


def weight_problem(kind: pa.DataType) -> str | None:
    """Why values of this type are no weights; None: they may be."""
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return None
    return f"a weight is a number, got {kind}; cast it to float"


def _dense_problem(kind: pa.DataType) -> str | None:
    value = kind.value_type if types.is_dictionary(kind) else kind
    if types.is_integer(value) or types.is_floating(value) or types.is_boolean(value) or types.is_null(value):
        return None
    hint = _inside(value) or ("; make a column of each element" if is_list(value) else "; cast it to float")
    hint = "; did you mean a sparse column?" if key_kind(value) == "string" else hint
    return f"a dense column is integer, float or boolean, got {kind}{hint}"


def _sparse_problem(kind: pa.DataType) -> str | None:
    if key_kind(kind) is not None:
        return None
    hint = _inside(kind) or "; cast it to one of them"
    if is_list(kind):
        hint = "; did you mean a ragged column?"
    elif types.is_floating(kind):
        hint = "; did you mean a dense column? (a float is no identity: cast ids to integer)"
    elif types.is_timestamp(kind) or types.is_date(kind):
        hint = "; take: hour, weekday, day or month makes keys of it"
    return f"a sparse column is integer, boolean, string or binary, got {kind}{hint}"


def _sparse_check(field: SparseField) -> Callable[[pa.DataType], str | None]:
    """What a column must be for this field."""
    return partial(field_problem, field) if field.take or field.buckets else _sparse_problem


def _ragged_problem(kind: pa.DataType) -> str | None:
    if types.is_null(kind) or (is_list(kind) and key_kind(kind.value_type) is not None):
        return None
    hint = _inside(kind)
    if is_list(kind):
        hint = "; flatten it" if is_list(kind.value_type) else "; cast what is in it"
    elif key_kind(kind) is not None:
        hint = "; did you mean a sparse column?"
    return f"a ragged column is a list of integers or strings, got {kind}{hint}"


def _inside(kind: pa.DataType) -> str:
    """Advice about types that hold other columns."""
    holds = types.is_struct(kind) or types.is_map(kind)
    return "; make columns of what is in it" if holds else ""


def column_problems(arrow_schema: pa.Schema, schema: Schema, where: str) -> list[str]:
    """What keeps columns of these Arrow types from being read by the schema.

    Parameters
    ----------
    arrow_schema : pyarrow.Schema
        Of a file.
    schema : Schema
    where : str
        Name of the file, for the messages.

    Returns
    -------
    list of str
        One line a problem; empty when all columns are there and fit.
    """
    checks: list[tuple[str, Callable[[pa.DataType], str | None]]] = []
    checks += [(name, label_problem) for name in schema.labels]
    if schema.weight is not None:
        checks.append((schema.weight, weight_problem))
    checks += [(field.name, _dense_problem) for field in schema.dense]
    checks += [(name, _sparse_check(field)) for field in schema.sparse for name in field.columns]
    checks += [(field.name, _ragged_problem) for field in schema.ragged]
    problems = []
    for name, check in checks:
        places = arrow_schema.get_all_field_indices(name)
        if len(places) == 1:
            problem = check(arrow_schema.field(places[0]).type)
            problems += [f"{where}: column {name!r}: {problem}"] if problem else []
        elif places:
            problems.append(f"{where}: column {name!r} is there {len(places)} times; rename all but one")
        else:
            problems.append(f"{where}: no column {name!r}; {_suggestion(name, arrow_schema.names)}")
    return problems


def _suggestion(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, n=3)
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    return f"the file has {shown or 'no columns'}"


class _KeyKinds:
    """Whether the keys of each vocabulary are made of integers or of strings, the same over all files."""

    def __init__(self, schema: Schema, before: KeyKinds) -> None:
        self.columns: list[tuple[str, str]] = []
        for field in schema.sparse:
            if field.take or field.buckets:
                continue
            name = field.vocabulary or field.name
            crossed = len(field.columns) > 1  # columns of a cross may be of different kinds
            places = enumerate(field.columns)
            self.columns += [(column, f"{name}\0{i}" if crossed else name) for i, column in places]
        self.columns += [(field.name, field.vocabulary or field.name) for field in schema.ragged]
        self.seen = dict(before)

    def conflicts(self, arrow_schema: pa.Schema, file: str) -> list[str]:
        problems: list[str] = []
        for name, vocabulary in self.columns:
            arrow_type = arrow_schema.field(name).type
            kind = key_kind(arrow_type.value_type if is_list(arrow_type) else arrow_type)
            if kind is None or kind == "null":
                continue
            first_kind, first_name, first_file = self.seen.setdefault(vocabulary, (kind, name, file))
            if kind != first_kind:
                before = f"{first_kind} in {first_file}"
                if first_name != name:
                    before = f"column {first_name!r}, whose keys it shares, is {before}"
                problems.append(
                    f"{file}: column {name!r} is {kind}, but {before}: equal values would get different "
                    "keys; write both with one type"
                )
        return list(dict.fromkeys(problems))


def _given(paths: Paths) -> list[str]:
    """The paths one by one; a data frame, which would be taken for its column names, is told what to do."""
    given = [paths] if isinstance(paths, str | os.PathLike) else paths
    if hasattr(given, "columns") or not all(isinstance(path, str | os.PathLike) for path in given):
        raise ConfigurationError(
            f"data: expected the path of Parquet, or a list of paths, got {type(paths).__name__}; "
            "write it to a file first (in pandas: frame.to_parquet)"
        )
    return [os.fspath(path) for path in given]


def _files_of(path: str) -> tuple[list[str], list[str]]:
    """Files that a path stands for, and what is wrong with it."""
    try:
        filesystem, inner = open_uri(path)
        info = filesystem.get_file_info(inner)
    except (OSError, ValueError) as error:
        return [], [f"{shown(path)}: can't be opened; {one_line(error).replace(path, shown(path))}"]
    if info.type == pafs.FileType.File:
        return [path], []
    if info.type == pafs.FileType.Directory:
        names = _data_files(filesystem, inner)
        found = sorted(with_inner(path, inner, name) if is_uri(path) else name for name in names)
        lost = _lost_links(inner) if isinstance(filesystem, pafs.LocalFileSystem) else []
        missing = (
            f"{shown(path)}: expected a folder with {', '.join('*' + s for s in SUFFIXES)} files, got none"
        )
        return found, _dangling(lost) if found or lost else [missing]
    if not is_uri(path) and glob.has_magic(path):
        matches = sorted(name for name in glob.glob(path, recursive=True) if not Path(name).is_dir())
        lost = [name for name in matches if not Path(name).exists()]
        found = [name for name in matches if Path(name).exists()]
        return found, _dangling(lost) if matches else [f"{path}: no file matches this pattern"]
    return [], [f"{shown(path) or repr(path)}: no such file or folder"]


def _data_files(filesystem: pafs.FileSystem, folder: str) -> Iterator[str]:
    for info in filesystem.get_file_info(pafs.FileSelector(folder, recursive=True)):
        if info.type == pafs.FileType.File and _is_data(info.path[len(folder) :]):
            yield info.path


def _is_data(inner: str) -> bool:
    """Whether a path below a folder is one of data, by its name."""
    hidden = any(part.startswith(("_", ".")) for part in inner.strip("/").split("/"))
    return inner.lower().endswith(SUFFIXES) and not hidden


def _lost_links(folder: str) -> list[str]:
    """Links with names of data that lead to no file, which Arrow leaves out."""
    names = (os.path.join(place, name) for place, _folders, files in os.walk(folder) for name in files)
    lost = (name for name in names if os.path.islink(name) and not os.path.exists(name))
    return sorted(name for name in lost if _is_data(name[len(folder) :]))


def _dangling(links: list[str]) -> list[str]:
    """What is wrong with links that lead to no file: left out, a part of the data would be missing unseen."""
    return [
        f"{link}: a link to {os.readlink(link)}, which is not there; mend it or remove it" for link in links
    ]
