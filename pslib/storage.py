"""Storage: local paths, and URIs (``s3://``, ``gs://``, ``hdfs://``, ``file://``) through pyarrow.fs.

A URI may end with a query, as pyarrow reads it:
``s3://KEY:SECRET@bucket/folder?endpoint_override=127.0.0.1:9000&scheme=http&region=eu-central-1``.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from pslib.errors import ConfigurationError
from pslib.validation import came

if TYPE_CHECKING:
    from pyarrow import fs


_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
FILESYSTEMS_MAX = 64
"""Different object stores, or ways to reach one, whose connections are kept."""

_FILESYSTEMS: dict[tuple[int, str, str], tuple[fs.FileSystem, str]] = {}
"""File system of each store, and the prefix of a path there before the path of the URI."""
_PLAIN = re.compile(r"(/[\w.=-]+)*", re.ASCII)
_USER = re.compile(r"(?<=://)[^/@?]*@")


def is_uri(path: str) -> bool:
    """Return True for a URI, False for a local path."""
    return bool(_URI.match(path))


def place_of(path: str | os.PathLike[str]) -> str:
    """Return a URI unchanged, a local path made absolute.

    Raises
    ------
    ConfigurationError
        If it is no path, or an empty one, with which files would lie in the current folder.
    """
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else ""
    if not isinstance(text, str) or not text:
        raise ConfigurationError(f"path: expected the path of a file or folder, or a URI, got {came(path)}")
    return text if is_uri(text) else str(Path(text).absolute())


def local_problem(name: str, path: str | os.PathLike[str] | None) -> str | None:
    """Return the problem of a setting that must be a local folder and is a URI; None if it is valid."""
    if isinstance(path, str) and is_uri(path):
        return f"{name}: expected a local folder, got {shown(path)}; checkpoint.path may be a URI"
    return None


def check_local(name: str, path: str | os.PathLike[str] | None) -> None:
    """Refuse a URI where a local folder is needed: it would be created below the current one.

    Raises
    ------
    ConfigurationError
        If it is one.
    """
    if problem := local_problem(name, path):
        raise ConfigurationError(problem)


def open_uri(path: str) -> tuple[fs.FileSystem, str]:
    """File system and path inside it for a local path or a URI.

    Raises
    ------
    OSError, ValueError
        If the URI can't be understood, or pyarrow has no such file system here.
    """
    from pyarrow import fs  # 40 MB and 0.2 s, for those who open files alone

    if is_uri(path):
        return _open_far(path)
    return fs.LocalFileSystem(), path


def _open_far(uri: str) -> tuple[fs.FileSystem, str]:
    """The file system of the first URI of its store: one for each file would make connections of its own.

    To make one takes 0.8 ms for S3, so a path that needs no decoding is taken from the URI itself.
    """
    from pyarrow import fs

    head, _, query = uri.partition("?")
    scheme, rest = head.split("://", 1)
    host, slash, inside = rest.partition("/")
    place, inside = f"{scheme}://{host}", (slash + inside).rstrip("/")
    store = os.getpid(), place, query
    known = _FILESYSTEMS.get(store)
    if known and _PLAIN.fullmatch(inside):
        return known[0], known[1] + inside
    try:
        filesystem, path = fs.FileSystem.from_uri(uri)
    except ValueError as error:  # which quotes it, keys and all
        raise type(error)(str(error).replace(uri, shown(uri))) from None
    path, decoded = path.rstrip("/"), unquote(inside)
    if known is None and path.endswith(decoded):
        if len(_FILESYSTEMS) >= FILESYSTEMS_MAX:
            _FILESYSTEMS.clear()
        _FILESYSTEMS[store] = filesystem, path[: len(path) - len(decoded)]
    return known[0] if known else filesystem, path


def below(path: str, name: str) -> str:
    """Return the path of ``name`` in a folder; the query of a URI stays last."""
    head, mark, query = path.partition("?") if is_uri(path) else (path, "", "")
    return f"{head.rstrip('/')}/{name}{mark}{query}"


def parent_and_name(path: str) -> tuple[str, str]:
    """Return folder and last name of a path; the folder of a URI keeps its query."""
    head, mark, query = path.partition("?") if is_uri(path) else (path, "", "")
    parent, _, name = head.rstrip("/").rpartition("/")
    return f"{parent}{mark}{query}", name


def with_inner(path: str, inner: str, found: str) -> str:
    """Return the URI of ``found``, a path inside the file system, where ``path`` has ``inner``."""
    rest = found[len(inner) :].strip("/")
    return below(path, escaped(rest)) if rest else path


def escaped(name: str) -> str:
    """Return a name as a URI has it, in which ``%``, ``?``, ``#`` and a space have another meaning.

    Spark writes the folder ``time=2026-01-01 00%3A00%3A00`` of a partition by time.
    """
    return quote(name, safe="/=")


def real_place(path: str) -> str:
    """Return one name for a local file or folder under any spelling or link; a URI loses its last slash."""
    local = _local(path)
    return parent_and_name(below(path, "name"))[0] if local is None else os.path.realpath(local)


def file_identity(path: str) -> str | tuple[int, int]:
    """Return what is equal for all names of a file: spellings, links and hard links of a local one."""
    local = _local(path)
    with suppress(OSError):
        if local is not None:
            info = os.stat(local)
            return info.st_dev, info.st_ino
    return real_place(path)


def folders_of(files: Iterable[str]) -> set[str]:
    """Return the real paths of the folders of some files: as named, and as links lead to."""
    folders: set[str] = set()
    for file in files:
        local = _local(file)
        if local is None:
            folders.add(parent_and_name(file)[0])
            continue
        folders.add(os.path.dirname(os.path.abspath(local)))
        if os.path.islink(local):
            folders.add(os.path.dirname(os.path.realpath(local)))
    return {real_place(one) for one in folders}


def _local(path: str) -> str | None:
    """Return the local path of a path or ``file:`` URI; None for other URIs."""
    if not is_uri(path):
        return path
    return open_uri(path)[1] if path.lower().startswith("file:") else None


def unwritable(folder: Path) -> str | None:
    """Return the reason why no file can be written in a local folder, which is created if missing; else None.

    Folders that are made for the trial are gone afterwards.
    """
    missing: list[Path] = []
    try:
        missing += [one for one in (folder, *folder.parents) if not one.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, ValueError) as error:  # the latter of a zero byte
        return "it is a file" if os.path.isfile(folder) else getattr(error, "strerror", None) or str(error)
    finally:
        for one in missing:
            with suppress(OSError):
                one.rmdir()
    return None


def shown(path: str) -> str:
    """Return a path for messages, without the keys and secrets of a URI."""
    return _USER.sub("***@", path)
