"""Cache of converted text: a file of CSV or JSON lines is converted to Parquet once, and read from there.

Leases, exact resume, shuffling and checks are then those of Parquet. Every process of a machine finds the
same file; hosts that do not share the folder convert the same text to the same row groups
(`pslib.data.convert.by_values`).

- An entry is named by the text's path, size and time of change, and by the version of the conversion: text
  that has changed is converted anew.
- A process that converts holds a lock; others wait for it. The file appears when it is complete and on the
  disk; one that is broken all the same is made anew.
- The folder is ``.pslib-text-UID`` in ``PSLIB_CACHE``, else ``pslib`` in ``XDG_CACHE_HOME``, else
  ``~/.cache/pslib``, else, where none can be written, ``pslib-UID`` in the folder for temporary files. It is
  for its user alone; its hidden name keeps the entries out of data in ``PSLIB_CACHE``.
- A conversion removes entries that were not used for `KEPT_DAYS`, and while all take more than `KEPT_BYTES`
  those that were used longest ago, but none that was used within a day; and, after a day, what ended
  processes have left. It removes nothing of another name.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import blake2b
from os.path import expanduser
from pathlib import Path
from shutil import disk_usage
from stat import S_ISDIR

import pyarrow.parquet as pq

from pslib.clock import SystemClock
from pslib.config import CACHE_VARIABLE
from pslib.data.convert.by_values import VERSION, convert_by_values
from pslib.data.convert.convert import REJECTS_SHARE_MAX
from pslib.data.convert.job import REJECTED, Conversion, rejects_path
from pslib.data.data_files import text_format
from pslib.errors import DataError
from pslib.storage import is_uri, open_uri, shown, unwritable
from pslib.text import counted, one_line

KEPT_DAYS = 30
KEPT_BYTES = 64 << 30
DAY_S = 86_400
PARQUET_END = b"PAR1"
REPORT_S = 5.0
PASSES = {"csv": "2", "jsonl": "at most 3"}
"""Passes of a conversion over the text, for progress lines; two of JSON lines without any string."""
NAME_CHARS = 60
"""Characters of the text's name in that of its entry."""

log = logging.getLogger(__name__)
_ENTRY = re.compile(r".*-[0-9a-f]{16}\.parquet", re.DOTALL)
"""Names of entries, as `_entry_name` gives them."""
_UNFINISHED = re.compile(r".*-[0-9a-f]{16}\.lock|\..*\.[0-9a-f]{8}\.tmp(\.rejects)?", re.DOTALL)
"""Names of locks and of drafts (`atomic_output`): a process that is killed leaves them."""
_converting = threading.Lock()
"""One conversion at a time: it uses several cores, and as much memory as a row group."""
_told: set[str] = set()
"""Folders, and entries with their bad records, that this process has named in its log."""


def stored_as(file: str) -> str:
    """Return the path or URI of the Parquet with the rows of a data file; text is converted if need be.

    Parameters
    ----------
    file : str
        Path or URI; of any but text it is returned.

    Raises
    ------
    DataError
        If the text can't be read, or too many of its records.
    OSError
        If it is not there.
    """
    form = text_format(file)
    if form is None:
        return file
    source = _local(file)
    entry = cache_folder() / _entry_name(source)
    if not _is_whole(entry):
        with _converting, _writes(source, entry), _locked(entry, source):
            if not _is_whole(entry):  # else another process has converted it meanwhile
                _convert(source, entry, form)
    with suppress(OSError):
        os.utime(entry)  # for `_prune`
    _tell_rejected(source, entry)
    return str(entry)


def bad_records(file: str) -> int:
    """Return how many records of a file of text are left out as bad ones; 0 of any other."""
    rejected = None if text_format(file) is None else _rejected(Path(stored_as(file)))
    return rejected[0] if rejected else 0


def text_bytes(file: str) -> int | None:
    """Return the size of a file of text; None of any other."""
    return None if text_format(file) is None else _local(file).stat().st_size


def cache_folder() -> Path:
    """Return the folder of the cache; make it if need be.

    Raises
    ------
    DataError
        If there is none to write to.
    """
    named, home = os.environ.get(CACHE_VARIABLE), os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = _usable(named and expanduser(named), expanduser(home), tempfile.gettempdir())
    folder.mkdir(0o700, parents=True, exist_ok=True)
    return folder


@cache
def _usable(named: str | None, home: str, temporary: str) -> Path:
    """Return the first folder that is this user's and can be written."""
    user = os.geteuid()
    linked = Path(home).absolute() / "pslib"  # may be a link: no other user can put one into a home
    folders = [linked, Path(temporary) / f"pslib-{user}"]
    if named:
        folders.insert(0, Path(named).absolute() / f".pslib-text-{user}")
    for folder in folders:
        with suppress(OSError):
            folder.mkdir(0o700, parents=True, exist_ok=True)
            about = folder.stat(follow_symlinks=folder == linked)
            if S_ISDIR(about.st_mode) and about.st_uid == user and unwritable(folder) is None:
                if named and folder != folders[0]:
                    log.warning(
                        "pslib: %s: %s can't be made or written by this user; text is kept in %s",
                        CACHE_VARIABLE,
                        folders[0],
                        folder,
                    )
                return folder
    raise DataError(
        f"{folders[0]}: can't be written, nor {folders[-1]}; name a folder for converted text: "
        f"{CACHE_VARIABLE}"
    )


def _local(file: str) -> Path:
    if is_uri(file) and not file.lower().startswith("file:"):
        raise DataError(
            f"{shown(file)}: expected Parquet in an object store, got text; copy it to a local disk, or make "
            "Parquet of it: pslib convert"
        )
    return Path(open_uri(file)[1])


def _entry_name(source: Path) -> str:
    about = source.stat()
    key = f"{source.absolute()}\0{about.st_size}\0{about.st_mtime_ns}\0{VERSION}"
    return f"{source.name[:NAME_CHARS]}-{blake2b(os.fsencode(key), digest_size=8).hexdigest()}.parquet"


def _is_whole(entry: Path) -> bool:
    """Return whether a file is there, and ends as Parquet: a damaged disk or a person may have cut it."""
    try:
        with entry.open("rb") as file:
            file.seek(-len(PARQUET_END), os.SEEK_END)
            return file.read() == PARQUET_END
    except OSError:  # also of a file that is shorter
        return False


@contextmanager
def _writes(source: Path, entry: Path) -> Iterator[None]:
    """Tell an error of writing as one of the cache; those of the text are DataErrors already."""
    try:
        yield
    except OSError as error:
        free = disk_usage(entry.parent).free
        raise DataError(
            f"{entry.parent}: can't write the Parquet of {source}: {one_line(error)}; it has "
            f"{counted(free, 'free byte')}: make room, or name another folder: {CACHE_VARIABLE}"
        ) from error


@contextmanager
def _locked(entry: Path, source: Path) -> Iterator[None]:
    """Hold the lock of an entry; some file systems have none, and there each process converts for itself."""
    lock = entry.with_suffix(".lock")
    with lock.open("wb") as held:
        with suppress(OSError):
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log.warning("pslib: %s: another process converts it; waiting for that one", source)
                fcntl.flock(held, fcntl.LOCK_EX)
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _convert(source: Path, entry: Path, form: str) -> None:
    folder = str(entry.parent)
    if folder not in _told:
        _told.add(folder)
        log.warning(
            "pslib: text is converted to Parquet once and kept in %s; %s names another folder",
            folder,
            CACHE_VARIABLE,
        )
    advice = f"mend them, or allow more: pslib convert {form} --no-label --rejects-max-share SHARE"
    run = Conversion(
        source,
        entry,
        overwrite=True,
        share_max=REJECTS_SHARE_MAX,
        progress=_Progress(source, PASSES[form]),
        advice=advice,
    )
    report = convert_by_values(run, form, may_be_empty=True)
    entry.chmod(0o600)
    if not source.exists() or entry.name != _entry_name(source):
        entry.unlink(missing_ok=True)
        raise DataError(f"{source}: it was changed while it was read; start again when it is complete")
    for note in report.notes:
        log.warning("pslib: %s: %s", source, note)
    _prune(entry)


class _Progress:
    """Progress of a conversion in the log, every few seconds."""

    def __init__(self, source: Path, passes: str) -> None:
        self._source, self._passes, self._clock = source, passes, SystemClock()
        self._said_s, self._lines, self._pass = self._clock.now_s(), 0, 1

    def __call__(self, lines: int) -> None:
        if lines <= self._lines:
            self._pass += 1
        self._lines = lines
        if self._clock.now_s() - self._said_s > REPORT_S:
            self._said_s = self._clock.now_s()
            log.warning(
                "pslib: %s: converting, %s of pass %d of %s",
                self._source,
                counted(lines, "line"),
                self._pass,
                self._passes,
            )


def _rejected(entry: Path) -> tuple[int, int, str] | None:
    """Return the number of bad records left out of an entry, line and reason of the first; None of none."""
    told = (pq.read_metadata(entry).metadata or {}).get(REJECTED.encode())
    return tuple(json.loads(told)) if told else None


def _tell_rejected(source: Path, entry: Path) -> None:
    """Log, once in a process, that records of the text are left out: rows after them have other numbers."""
    if str(entry) in _told:
        return
    _told.add(str(entry))
    if rejected := _rejected(entry):
        count, line, reason = rejected
        log.warning(
            "pslib: %s: %s left out, see %s; the first: line %d: %s",
            source,
            counted(count, "bad record"),
            rejects_path(entry),
            line,
            reason,
        )


def _prune(newest: Path) -> None:
    """Remove entries that were not used for long, more while all are too large, and what is left of others.

    An entry that was used within a day stays: this process, or another, may open it again.
    """
    now_s, left, unused = newest.stat().st_mtime, 0, []
    for file in newest.parent.iterdir():
        with suppress(OSError):
            about, is_entry = file.stat(), _ENTRY.fullmatch(file.name)
            left += about.st_size if is_entry else 0
            if now_s - about.st_mtime <= DAY_S:
                continue
            if is_entry:
                unused.append((about.st_mtime, about.st_size, file))
            elif _UNFINISHED.fullmatch(file.name):
                file.unlink()
    for used_s, size, entry in sorted(unused):
        if now_s - used_s > KEPT_DAYS * DAY_S or left > KEPT_BYTES:
            entry.unlink(missing_ok=True)
            rejects_path(entry).unlink(missing_ok=True)
            left -= size
