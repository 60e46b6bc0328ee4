"""Parquet data set: opens files, checks them against the schema up front, lists their row groups."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from pslib.data.column_types import ColumnKinds, KeyKinds, column_problems
from pslib.data.parquet_files import about_each, footer_of, open_file, parquet_from
from pslib.data.value_checks import one_line, statistics_problems
from pslib.errors import ConfigurationError, DataError
from pslib.schema import Schema
from pslib.storage import is_uri, open_uri, parent_and_name, real_place, shown, with_inner
from pslib.table.tables import text_hash
from pslib.text import counted

SUFFIXES = (".parquet", ".parq", ".pq")
"""File suffixes read from a folder; a file named explicitly may have any suffix."""

_SURROGATE = re.compile("[\ud800-\udfff]")
"""Python's representation of bytes in a file name that are not UTF-8."""
LOOKS = 8
"""Tries to list a folder in which others create and remove folders; 2 of 40,000 failed in a stress test."""

TEXT_SUFFIXES = (".csv", ".tsv", ".txt", ".libsvm", ".svm")
"""Suffixes of text formats that `pslib convert` reads."""

PROBLEMS_MAX = 50
"""Most problems shown at once; a thousand files with the same fault need not all be listed."""

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Row group of a Parquet file.

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
    """All row groups of a set of Parquet files, with the columns of a schema.

    Parameters
    ----------
    paths : path, URI, folder, glob pattern, or a sequence of them
        A folder gives its ``*.parquet`` (``.parq``, ``.pq``) files, at any depth, ordered by name; names that
        start with ``_`` or ``.`` are left out. A pattern gives the matching files and the files of matching
        folders. URIs (``s3://``, ``gs://``, ``hdfs://``, ``file://``) go through pyarrow.fs, with settings
        such as ``endpoint_override`` in their query; patterns are for local paths.
    schema : Schema
    may_be_empty : bool
        Accept data without any row.
    key_kinds : dict, optional
        Key kinds of other data for the same table rows (training data, when this is test data): each
        vocabulary with the kind of its values and a column and a file that have it. Updated with those of
        this data.

    Raises
    ------
    DataError
        If a path is missing, a file is listed twice (a local file under any name), is not Parquet, lacks a
        column or has one of a wrong type, or there is no row. Lists all problems at once.

    Attributes
    ----------
    schema : Schema
    row_groups : tuple of RowGroup
        In file order.
    rows : int
        Rows of all row groups.
    fingerprint : int
        64-bit hash of file names (without folders), sizes and row counts. Unchanged by a move to another
        folder; changed when a file is added or renamed, or its size or row count changes. Changed values in a
        file of the same size are not detected, since that would require reading the whole file.
    names : frozenset of str
        All columns of a file, including those that the schema does not read.
    """

    def __init__(
        self, paths: Paths, schema: Schema, *, may_be_empty: bool = False, key_kinds: KeyKinds | None = None
    ) -> None:
        self.schema = schema
        given = _given(paths)
        problems: list[str] = [] if given else ["data: expected at least one path, got none"]
        files: list[str] = []
        named: dict[str, str] = {}
        for path in given:
            found, problem = files_of(path)
            for file in found:
                place = real_place(file)
                if first := named.get(place):
                    other = "" if first == file else f", also as {shown(first)}"
                    problems.append(f"{shown(file)}: given twice{other}; name each file once")
                named.setdefault(place, file)
            files += found
            problems += problem
        groups: list[RowGroup] = []
        marks: list[str] = []
        names: set[str] = set()
        kinds = ColumnKinds(schema, key_kinds or {})
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
        """Build from metadata gathered by another process; opens no file before it is read."""
        data = cls.__new__(cls)
        data.schema, data.row_groups, data.names = schema, tuple(row_groups), frozenset()
        data.rows = sum(group.rows for group in row_groups)
        data.fingerprint = fingerprint
        return data


@dataclass(frozen=True, slots=True)
class _Look:
    """Footer metadata of one file: rows of its groups, columns, size in bytes, and problems."""

    counts: Sequence[int]
    columns: pa.Schema | None
    bytes: int
    of_columns: Sequence[str]
    of_values: Sequence[str] = ()


def _look(schema: Schema, file: str) -> _Look:
    try:
        with open_file(file) as source:
            size, footer = source.size(), footer_of(source)
        with parquet_from(pa.BufferReader(footer)) as opened:
            metadata = opened.metadata
            counts = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
            if sum(counts) != metadata.num_rows or min(counts, default=0) < 0:
                raise pa.ArrowInvalid(
                    f"its footer says {metadata.num_rows:,} rows, and its row groups {sum(counts):,}"
                )
            problems = column_problems(opened.schema_arrow, schema, shown(file))
            of_values = [] if problems else statistics_problems(file, footer, metadata, schema)
            return _Look(counts, opened.schema_arrow, size, problems, of_values)
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:  # last: a damaged name
        return _Look([], None, 0, [not_parquet(file, error)])


def _taken(
    file: str, look: _Look, kinds: ColumnKinds, groups: list[RowGroup], marks: list[str]
) -> Sequence[str]:
    """Append a file's row groups and fingerprint; return its problems, types before values."""
    if look.columns is None:
        return look.of_columns
    first_row = 0
    for i, rows in enumerate(look.counts):
        groups.append(RowGroup(file, i, rows, first_row))
        first_row += rows
    name = parent_and_name(file)[1]
    name = unquote(name) if is_uri(file) else name
    marks.append(f"{name} {look.bytes} {','.join(map(str, look.counts))}")
    return look.of_columns or kinds.conflicts(look.columns, shown(file)) or look.of_values


def not_parquet(file: str, error: Exception) -> str:
    """Error line for a file that can't be opened as Parquet, with a hint."""
    if isinstance(error, PermissionError) and not is_uri(file):
        who = f"this user (uid {os.geteuid()}) may not read it"
        return f"{file}: {who}: chmod a+r it, or let its owner do so; a folder above it needs a+x"
    text = f"{shown(file)}: expected a Parquet file; {one_line(error)}"
    name = file.lower().removesuffix(".gz")
    advice = "write it anew, or take it out of the data"
    return f"{text.rstrip('.')}; {'make one with: pslib convert' if name.endswith(TEXT_SUFFIXES) else advice}"


def open_parquet(file: str) -> pq.ParquetFile:
    """Open a path or URI; close it with ``with`` or `close`."""
    return parquet_from(open_file(file))


def _given(paths: Paths) -> list[str]:
    """List the paths; reject a data frame (which would iterate over its column names) with a hint."""
    given = [paths] if isinstance(paths, str | os.PathLike) else paths
    if hasattr(given, "columns") or not all(isinstance(path, str | os.PathLike) for path in given):
        raise ConfigurationError(
            f"data: expected the path of Parquet, or a list of paths, got {type(paths).__name__}; "
            "write it to a file first (in pandas: frame.to_parquet)"
        )
    return [os.fspath(path) for path in given]


def files_of(path: str) -> tuple[list[str], list[str]]:
    """Expand a path, folder, pattern or URI to files, with the problems found."""
    try:
        filesystem, inner = open_uri(path)
        info = filesystem.get_file_info(inner)
    except (OSError, ValueError) as error:
        return [], [f"{shown(path)}: can't be opened; {one_line(error).replace(path, shown(path))}"]
    if info.type == pafs.FileType.File:
        return [path], []
    if info.type == pafs.FileType.Directory:
        try:
            names = list(_data_files(filesystem, inner))
        except OSError as error:
            return [], [f"{shown(path)}: can't be read; {one_line(error).replace(path, shown(path))}"]
        found = sorted(with_inner(path, inner, name) if is_uri(path) else name for name in names)
        lost = _lost_links(inner) if isinstance(filesystem, pafs.LocalFileSystem) else []
        missing = (
            f"{shown(path)}: expected a folder with {', '.join('*' + s for s in SUFFIXES)} files, got none"
        )
        return found, _dangling(lost) if found or lost else [missing]
    if not is_uri(path) and glob.has_magic(path):
        try:
            matches = sorted(_matches(path))
        except OSError as error:
            return [], [f"{path}: can't be read; {one_line(error)}"]
        lost = [name for name in matches if not Path(name).exists()]
        found = [name for name in matches if Path(name).exists()]
        return found, _dangling(lost) if matches else [f"{path}: no file matches this pattern"]
    return [], [f"{shown(path) or repr(path)}: no such file or folder"]


def _matches(pattern: str) -> set[str]:
    """Files that match a pattern and data files in matching folders, without duplicates from ``**``."""
    names: set[str] = set()
    local = pafs.LocalFileSystem()
    for path in map(Path, glob.glob(pattern, recursive=True)):
        if _SURROGATE.search(str(path)):
            raise OSError(_no_text(str(path)))
        if not path.is_dir():
            names.add(str(path))
        elif not path.name.startswith(("_", ".")):
            names.update((*_data_files(local, str(path)), *_lost_links(str(path))))
    return names


def files_below(filesystem: pafs.FileSystem, folder: str) -> list[str]:
    """List paths of the files in a folder, at any depth.

    Subfolders may vanish and reappear during the listing: writers create temporary folders and rename them.

    Raises
    ------
    OSError
        If the folder itself is missing or unreadable, or contains a name that is not valid text.
    """
    selector = pafs.FileSelector(folder, recursive=True, allow_not_found=True)
    for left in reversed(range(LOOKS)):
        try:
            infos = filesystem.get_file_info(selector)
            break
        except FileNotFoundError:  # missing when Arrow listed it, present again when checked
            if not left:
                raise
    if not infos and filesystem.get_file_info(folder).type != pafs.FileType.Directory:
        raise FileNotFoundError("the folder is gone")
    try:
        return [info.path for info in infos if info.type == pafs.FileType.File]
    except UnicodeDecodeError as error:
        raise OSError(_no_text(os.fsdecode(error.object))) from error


def _no_text(path: str) -> str:
    return f"the name {path.rpartition('/')[2]!a} in it is not UTF-8: rename it"


def _data_files(filesystem: pafs.FileSystem, folder: str) -> Iterator[str]:
    for path in files_below(filesystem, folder):
        if _is_data(path[len(folder) :]):
            yield path


def _is_data(inner: str) -> bool:
    """Return whether a path below a folder is a data file, by its name."""
    hidden = any(part.startswith(("_", ".")) for part in inner.strip("/").split("/"))
    return inner.lower().endswith(SUFFIXES) and not hidden


def _lost_links(folder: str) -> list[str]:
    """Dangling links with names of data files, which Arrow skips."""
    names = (os.path.join(place, name) for place, _folders, files in os.walk(folder) for name in files)
    lost = (name for name in names if os.path.islink(name) and not os.path.exists(name))
    return sorted(name for name in lost if _is_data(name[len(folder) :]))


def _dangling(links: list[str]) -> list[str]:
    """Error lines for dangling links; skipping them would silently drop a part of the data."""
    return [
        f"{link}: a link to {os.readlink(link)}, which is not there; mend it or remove it" for link in links
    ]
