"""Data files: one rule for which files of paths, folders and patterns are read, and how the others are told.

Training, `check`, `describe`, predictions and streams list their files here.

- A file that is given, by its path or by a pattern that matches it, is read whatever its name: as text if
  `text_format` knows the name, else as Parquet.
- A file in a folder is read if its name ends as those of Parquet (`PARQUET`) or of text (`TEXT`), and neither
  it nor a folder on the way to it is hidden, by a ``.`` or ``_`` in front. A folder ``_name=value`` is a
  partition, as for Spark. Text in a folder with Parquet is left out: often the Parquet was made of it.
- Other files of a folder are left out, and `DataFiles.note` says so in one line.
- A file is read once. A second way to it is a problem: given again, a link, a hard link, a loop of links.
- A folder of a table format is a problem: its log says which of its files are alive (`_TABLES`).
"""

from __future__ import annotations

import difflib
import glob
import heapq
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from stat import S_ISREG

import pyarrow.fs as pafs

from pslib.errors import ConfigurationError
from pslib.storage import file_identity, is_uri, open_uri, parent_and_name, shown, with_inner
from pslib.text import counted, listed, one_line

PARQUET = (".parquet", ".parq", ".pq")
"""Suffixes of Parquet that is read in a folder, in small or capital letters."""
TEXT = {".csv": "csv", ".tsv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
"""Suffixes of text that is read in a folder, likewise, and their formats."""
PACKED = (".gz", ".zst", ".bz2", ".xz", ".lz4")
"""Suffixes of packed text, behind those of `TEXT`."""
REJECTS = ".rejects.tsv"
"""End of the names of files with the records that a conversion could not read; no data."""
MEANT_AMONG = 1_000
"""Most names that one that is not there is compared with: 40 ms."""
LOOKS = 8
"""Tries to list a folder in which others create and remove folders; 2 of 40,000 failed in a stress test."""

_SURROGATE = re.compile("[\ud800-\udfff]")
"""Python's representation of bytes in a file name that are not UTF-8."""

_TABLES = {
    "a Delta table": (r"(_delta_log)/", "deltalake.DeltaTable(PATH).file_uris()"),
    "a Hudi table": (
        r"(\.hoodie|\.hoodie_partition_metadata)/?",
        "base_file_relative_path() of each of hudi's table.get_file_slices()",
    ),
    "an Iceberg table": (
        r"(metadata)/[^/]*\.metadata\.json(?:\.gz)?",
        "[task.file.file_path for task in table.scan().plan_files()] of pyiceberg",
    ),
    "a Paimon table": (
        r"(snapshot)/snapshot-\d+",
        "file_paths of each of pypaimon's table.new_read_builder().new_scan().plan().splits()",
    ),
    "the output of a Spark stream": (r"(_spark_metadata)/", "spark.read.parquet(PATH).inputFiles()"),
}
"""Table formats: the log of each, below the table's folder, and what lists the live files."""
_LOG = re.compile(f"(?:(.*)/)?(?:{'|'.join(log for log, _ in _TABLES.values())})")
_INSIDE = re.compile(r"[^=]+=.*|data|bucket-\d+")
"""Names of folders that table formats make inside a table."""

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

log = logging.getLogger(__name__)
_told: set[str] = set()
"""Notes that this process has logged: a job opens its data several times."""


@dataclass(frozen=True, slots=True)
class DataFiles:
    """Files that are read, and what else was found.

    Attributes
    ----------
    files : tuple of str
        In order, each once: paths and URIs, or names below a folder.
    left_out : tuple of str
        Files that are not read because of their names; a hidden folder as one, with a slash at its end.
    problems : tuple of str
        One line each.
    told : str
        Names that are read in a folder, for the note.
    """

    files: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    told: str = ""

    def note(self) -> str | None:
        """Line about what is left out; None if nothing is."""
        if not self.left_out:
            return None
        first = sorted(self.left_out, key=lambda name: (_is_hidden(Path(name).name), name))
        return (
            f"{counted(len(first), 'file or folder', 'files or folders')} left out by name: "
            f"{listed(map(shown, first))}; in a folder {self.told or NAMES_TOLD} files are read, if neither "
            "they nor their folders begin with . or _ (but for _name=value); to read another, give it or a "
            "pattern"
        )

    def tell(self) -> DataFiles:
        """Log the note, once in a process; return the same files."""
        note = self.note()
        if note is not None and note not in _told:
            _told.add(note)
            log.warning("pslib: %s", note)
        return self


PARQUET_TOLD = ", ".join(f"*{suffix}" for suffix in PARQUET)
NAMES_TOLD = f"{PARQUET_TOLD} or, without these, {', '.join(f'*{suffix}' for suffix in TEXT)} (also packed)"


def data_files(paths: Paths) -> DataFiles:
    """List the files of paths, URIs, folders and patterns.

    Raises
    ------
    ConfigurationError
        If it is no path: a data frame, for example.
    """
    given = _given(paths)
    listings = [_files_of(path) for path in given]
    problems = [] if given else ["data: expected at least one path, got none"]
    first: dict[str | tuple[int, int], str] = {}
    for file in (file for listing in listings for file in listing.files):
        place = file_identity(file)
        if place in first:
            problems.append(_twice(file, first[place]))
        first.setdefault(place, file)
    problems += (problem for listing in listings for problem in listing.problems)
    left_out = dict.fromkeys(name for listing in listings for name in listing.left_out)
    return DataFiles(tuple(first.values()), tuple(left_out), tuple(dict.fromkeys(problems)))


def files_in(filesystem: pafs.FileSystem, folder: str, path: str, *, parquet_only: bool = False) -> DataFiles:
    """List the files in a folder by their names below it.

    Parameters
    ----------
    filesystem : pyarrow.fs.FileSystem
    folder : str
        Path in the file system.
    path : str
        The folder as it was given, for messages.
    parquet_only : bool
        Leave text out, also where there is no Parquet.

    Raises
    ------
    OSError
        If the folder is missing or unreadable, or contains a name that is not valid text.
    """
    problems: list[str] = []
    if isinstance(filesystem, pafs.LocalFileSystem):
        names = sorted(_local_names(folder, problems))
        inside = os.path.realpath(folder)
    else:
        root = len(folder.rstrip("/")) + 1
        names = sorted({_up_to_hidden(one[root:]) for one in files_below(filesystem, folder)})
        inside = folder.rstrip("/")
    if tables := [*_tables_among(names, path), *_tables_around(filesystem, inside)]:
        return DataFiles((), (), tuple(tables))
    files = list(filter(is_data, names))
    if parquet_only or any(map(_is_parquet, files)):
        files = list(filter(_is_parquet, files))
    read = set(files)
    left_out = tuple(name for name in names if name not in read)
    return DataFiles(tuple(files), left_out, tuple(problems))


def is_data(name: str) -> bool:
    """Return whether a file may be read, by its name below the folder that was given."""
    *folders, file = name.split("/")
    hidden = file.startswith((".", "_")) or any(map(_is_hidden, folders))
    is_text = text_format(file) is not None and not file.lower().endswith((REJECTS, ".json"))
    return (is_text or _is_parquet(file)) and not hidden


def _is_parquet(name: str) -> bool:
    return name.lower().endswith(PARQUET)


def text_format(file: str) -> str | None:
    """Return ``"csv"`` or ``"jsonl"`` of a file of text, by its name; None of any other.

    A ``.json`` is JSON lines if it is given; in a folder it is left out, where it usually is about the data.
    """
    name = parent_and_name(file)[1].lower()
    packed = next((suffix for suffix in PACKED if name.endswith(suffix)), "")
    suffix = os.path.splitext(name.removesuffix(packed))[1]
    return "jsonl" if suffix == ".json" else TEXT.get(suffix)


def files_below(filesystem: pafs.FileSystem, folder: str) -> list[str]:
    """List paths of the files in a folder that is not on a local disk, at any depth.

    Subfolders may vanish and reappear during the listing: writers create temporary folders and rename them.

    Raises
    ------
    OSError
        If the folder itself is missing or unreadable.
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
    return [info.path for info in infos if info.type == pafs.FileType.File]


def table_problem(folder: str) -> str | None:
    """Error line for a local folder that is a table of a table format; None for any other."""
    return next(_tables_at(pafs.LocalFileSystem(), folder), None)


def _is_hidden(folder: str) -> bool:
    return folder.startswith(".") or (folder.startswith("_") and "=" not in folder)


def _up_to_hidden(name: str) -> str:
    """Cut the name of a file after the first hidden folder."""
    folders = name.split("/")[:-1]
    for depth, folder in enumerate(folders, 1):
        if _is_hidden(folder):
            return "/".join(folders[:depth]) + "/"
    return name


def _local_names(folder: str, problems: list[str]) -> Iterator[str]:
    """Names below a local folder of all that is no folder, and of hidden folders, which are not entered.

    Arrow's listing follows a link to a folder above until the system refuses: 41 times each file, and without
    an end where there are two such links. Links are followed last here, so that they are the second way.
    """
    seen: dict[tuple[int, int], str] = {}
    waiting = [(False, "")]
    while waiting:
        _, below = heapq.heappop(waiting)
        for entry in _entries(os.path.join(folder, below) if below else folder, seen, problems):
            name = f"{below}/{entry.name}" if below else entry.name
            if not _is_folder(entry):
                problem = _no_file(entry, seen) if is_data(name) else None
                problems += [problem] if problem else []
                if problem is None:
                    yield name
            elif _is_hidden(entry.name):
                yield f"{name}/"
            else:
                heapq.heappush(waiting, (entry.is_symlink(), name))


def _entries(place: str, seen: dict[tuple[int, int], str], problems: list[str]) -> list[os.DirEntry[str]]:
    """Entries of a local folder that is not in ``seen``, and none of one that is gone since it was listed."""
    try:
        info = os.stat(place)
        first = seen.setdefault((info.st_dev, info.st_ino), place)
        if first != place:
            problems.append(_twice(place, first))
            return []
        with os.scandir(place) as found:
            entries = sorted(found, key=lambda entry: (entry.is_symlink(), entry.name))
    except (FileNotFoundError, NotADirectoryError) as error:
        if seen:
            return []
        raise FileNotFoundError("the folder is gone") from error
    if bad := next((entry.name for entry in entries if _SURROGATE.search(entry.name)), None):
        raise OSError(_no_text(bad))
    return entries


def _is_folder(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):  # a loop of links
        return entry.is_dir()
    return False


def _no_file(entry: os.DirEntry[str], seen: dict[tuple[int, int], str]) -> str | None:
    """Error line for what has the name of a data file and is none, or none of its own; None for one.

    Skipping such a thing would silently drop a part of the data. The line is empty if it is gone.
    """
    try:
        info = entry.stat()
    except FileNotFoundError:
        return _dangling(entry.path) if entry.is_symlink() else ""
    except OSError as error:
        return f"{entry.path}: can't be read; {error.strerror}"
    if not S_ISREG(info.st_mode):
        return f"{entry.path}: expected a file, got a pipe, socket or device; remove it"
    first = seen.setdefault((info.st_dev, info.st_ino), entry.path)
    return None if first == entry.path else _twice(entry.path, first)


def _dangling(link: str) -> str:
    return f"{link}: a link to {os.readlink(link)}, which is not there; mend it or remove it"


def _twice(name: str, first: str) -> str:
    other = "" if first == name else f", also as {shown(first)}"
    return f"{shown(name)}: given twice{other}; name each file once"


def _no_text(name: str) -> str:
    return f"the name {name!a} in it is not UTF-8: rename it"


def _given(paths: Paths) -> list[str]:
    """List the paths; reject a data frame (which would iterate over its column names) with a hint."""
    given = [paths] if isinstance(paths, str | os.PathLike) else paths
    if hasattr(given, "columns") or not all(isinstance(path, str | os.PathLike) for path in given):
        raise ConfigurationError(
            f"data: expected the path of Parquet, or a list of paths, got {type(paths).__name__}; "
            "write it to a file first (in pandas: frame.to_parquet)"
        )
    return [os.fspath(path) for path in given]


def _files_of(path: str) -> DataFiles:
    try:
        filesystem, inner = open_uri(path)
        info = filesystem.get_file_info(inner)
    except (OSError, ValueError) as error:
        return _unreadable(path, "opened", error)
    try:
        if info.type == pafs.FileType.File:
            return DataFiles((path,))
        if info.type == pafs.FileType.Directory:
            return _files_of_folder(path, filesystem, inner)
        if not is_uri(path) and glob.has_magic(path):
            return _files_of_pattern(path)
    except OSError as error:
        return _unreadable(path, "read", error)
    if not is_uri(path) and os.path.islink(path):
        return DataFiles((), (), (_dangling(path),))
    if info.type == pafs.FileType.Unknown:
        line = f"{shown(path)}: expected a file or a folder, got a pipe, socket or device"
        return DataFiles((), (), (line,))
    return DataFiles((), (), (f"{shown(path) or repr(path)}: no such file or folder{_meant(path)}",))


def _meant(path: str) -> str:
    """Name the file beside a missing one whose name is most like its own; empty if there is none."""
    folder, name = os.path.split(path)
    names: list[str] = []
    if not is_uri(path):
        with suppress(OSError, ValueError), os.scandir(folder or ".") as found:
            names += [one.name for one in islice(found, MEANT_AMONG)]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.8)
    return f"; did you mean {shown(os.path.join(folder, near[0]))}?" if near else ""


def _unreadable(path: str, what: str, error: Exception) -> DataFiles:
    told = f"{shown(path)}: can't be {what}; {one_line(error).replace(path, shown(path))}"
    return DataFiles((), (), (told,))


def _files_of_folder(path: str, filesystem: pafs.FileSystem, inner: str) -> DataFiles:
    found = files_in(filesystem, inner, path)
    problems = found.problems
    if not (found.files or problems):
        others = f" but {listed(found.left_out)}" if found.left_out else ""
        problems = (f"{shown(path)}: expected a folder with {NAMES_TOLD} files, got none{others}",)

    def named(name: str) -> str:
        return with_inner(path, inner, f"{inner}/{name}") if is_uri(path) else os.path.join(path, name)

    return DataFiles(tuple(sorted(map(named, found.files))), tuple(map(named, found.left_out)), problems)


def _files_of_pattern(pattern: str) -> DataFiles:
    """Files that match a pattern and data files in matching folders, without duplicates from ``**``."""
    local = pafs.LocalFileSystem()
    if problems := _problems_of_stars(local, Path(pattern)):
        return DataFiles((), (), problems)
    found = glob.glob(pattern, recursive=True)
    matches = sorted(
        {str(Path(match)) for match in found if os.path.lexists(match)}
    )  # ** gives what is not there
    if bad := next((name for name in matches if _SURROGATE.search(name)), None):
        raise OSError(_no_text(Path(bad).name))
    around = sorted({os.path.realpath(os.path.dirname(name)) for name in matches})
    tables = [one for at in around for one in (*_tables_at(local, at), *_tables_around(local, at))]
    if tables:
        return DataFiles((), (), tuple(dict.fromkeys(tables)))
    listings = [_files_of_match(local, match) for match in matches]
    files = {name for listing in listings for name in listing.files}
    left_out = {name for listing in listings for name in listing.left_out}
    problems = tuple(problem for listing in listings for problem in listing.problems)
    if not (files or problems):
        problems = (f"{pattern}: no file matches this pattern",)
    return DataFiles(tuple(sorted(files)), tuple(sorted(left_out - files)), problems)


def _problems_of_stars(local: pafs.FileSystem, pattern: Path) -> tuple[str, ...]:
    """Problems of the folder in which a ``**`` looks: it follows links, without an end if two lead back."""
    if "**" not in pattern.parts:
        return ()
    fixed = next(i for i, part in enumerate(pattern.parts) if glob.has_magic(part))
    top = str(Path(*pattern.parts[:fixed]))
    return files_in(local, top, top).problems if os.path.isdir(top) else ()


def _files_of_match(local: pafs.FileSystem, match: str) -> DataFiles:
    if not os.path.exists(match):
        return DataFiles((), (), (_dangling(match),))
    if not os.path.isdir(match):
        return DataFiles((match,))
    if _is_hidden(os.path.basename(match)):
        return DataFiles((), (f"{match}/",))
    found = files_in(local, match, match)
    return DataFiles(
        tuple(os.path.join(match, name) for name in found.files),
        tuple(os.path.join(match, name) for name in found.left_out),
        found.problems,
    )


def _tables_among(names: Iterable[str], folder: str) -> list[str]:
    """Error lines for the tables whose logs are among the names below a folder, but for tables in tables."""
    found: dict[str, str] = {}
    for match in filter(None, map(_LOG.fullmatch, names)):
        place, *logs = match.groups()
        root = shown(folder) if place is None else f"{shown(folder).rstrip('/')}/{place}"
        if any(f"{root}/".startswith(f"{other}/") for other in found):
            continue
        kind, (_, way) = next(one for one, log in zip(_TABLES.items(), logs, strict=True) if log)
        found[root] = (
            f"{root}: expected a folder of data, got {kind}: its {match[match.lastindex or 0]} says which "
            f"files are live, and others lie beside them; give the live ones as a list: {way}"
        )
    return list(found.values())


def _tables_at(filesystem: pafs.FileSystem, folder: str) -> Iterator[str]:
    """Error lines for a folder that is a table."""
    with suppress(OSError, UnicodeDecodeError):
        infos = filesystem.get_file_info(pafs.FileSelector(folder))
        for info in list(infos):
            if info.base_name in ("metadata", "snapshot") and info.type == pafs.FileType.Directory:
                infos += filesystem.get_file_info(pafs.FileSelector(info.path))
        root = len(folder.rstrip("/")) + 1
        slash = {pafs.FileType.Directory: "/"}
        yield from _tables_among((one.path[root:] + slash.get(one.type, "") for one in infos), folder)


def _tables_around(filesystem: pafs.FileSystem, folder: str) -> Iterator[str]:
    """Error lines for the table that a folder is a part of: a partition, for example."""
    head, _, name = folder.rpartition("/")
    while head and _INSIDE.fullmatch(name):
        yield from _tables_at(filesystem, head)
        head, _, name = head.rpartition("/")
