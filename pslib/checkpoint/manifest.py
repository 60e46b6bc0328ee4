"""Checkpoint manifest: written last, it commits the checkpoint; files without a manifest are ignored.

docs/design/checkpoint.md has the grammar and the reasons.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import secrets
from collections.abc import Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields
from socket import gethostname
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import fs

from cython_ext.wire.checksums import crc32
from pslib.checkpoint.admission_counts import kind_of_counts
from pslib.checkpoint.rows import table_in
from pslib.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointFullError,
    CheckpointIncompatibleError,
    ConfigurationError,
)
from pslib.process.platform import sync_file
from pslib.storage import open_uri, place_of, shown
from pslib.table.descriptions import table_differences
from pslib.table.optimizers import optimizer_from_dict
from pslib.table.tables import TableSpec

log = logging.getLogger(__name__)
FORMAT_VERSION = 4
"""Format; a manifest names the lowest that reads it: 1 lacks policies, 2 block checksums, 3 cuts."""
BLOCK_BYTES = 1 << 23
"""Block of one checksum: small enough to locate damage; 1.4 MB of manifest per terabyte of rows."""
ROWS = "rows"
GONE = "gone"
GONE_SCHEMA = pa.schema([pa.field("key", pa.uint64(), nullable=False)])
"""Schema of the file with keys of rows removed since the predecessor of an increment."""
MANIFEST_NAME = "manifest.json"
INCOMPLETE_NAME = "manifest.incomplete.json"
"""Manifest of a checkpoint whose files are on several machines; rename it once the files are collected."""
_CRC = re.compile(rb'^ "manifest_crc32": "([0-9a-f]{8})"', re.MULTILINE)
_NO_CRC = b"00000000"
_TABLE_V1 = frozenset({"name", "seed", "parts"})
OWN_FILE = re.compile(r"\w+\.[0-9a-f]{8}-\d{3,}-\d+(\.counts|\.filters|\.gone)?\.arrow")
"""File names given by servers; other files in the folder are never removed."""
_NUMBERED = re.compile(r"checkpoint-\d{6,}")
"""Folders that saves make; all others belong to the user."""
_ASIDE = re.compile(r"\.manifest(\.incomplete)?\.json\.([0-9a-f]{8}\.)?new|manifest\.incomplete\.json")
"""Uncommitted manifests: of failed or suspended saves, or of files in several folders."""


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """Data file of a checkpoint, with its CRC-32 (zlib's).

    ``table`` is "" for dense blocks; ``kind`` is "rows", "counts", "filters" or "gone"; ``blocks`` are
    CRC-32s of each `BLOCK_BYTES` of the file, empty in formats 1 and 2.
    """

    name: str
    table: str
    bytes: int
    crc32: int
    rows: int
    kind: str = ROWS
    blocks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "blocks", tuple(self.blocks))
        if not isinstance(self.name, str) or not re.fullmatch(r"[\w.-]*[\w-][\w.-]*", self.name):
            raise ValueError(f"file name {self.name!r}")
        if not all(
            type(one) is int and one >= 0 for one in (self.bytes, self.crc32, self.rows, *self.blocks)
        ):
            raise ValueError(
                f"file {self.name!r}: bytes, crc32, rows and blocks must be whole numbers from 0 on"
            )
        if not isinstance(self.table, str):
            raise ValueError(f"file {self.name!r}: table {self.table!r}")
        if self.kind not in (ROWS, "counts", "filters", GONE):
            raise ValueError(f"file {self.name!r}: unknown kind {self.kind!r}")

    def to_dict(self) -> dict[str, Any]:
        """Plain form; omits the default kind of file."""
        usual = {"kind": ROWS, "blocks": ()}
        plain = {key: value for key, value in asdict(self).items() if value != usual.get(key)}
        return plain | ({"blocks": list(self.blocks)} if self.blocks else {})


@dataclass(frozen=True, slots=True)
class Manifest:
    """Content of a checkpoint.

    Attributes
    ----------
    tables : list of dict
        `TableSpec.to_dict` of every table.
    dense : dict
        ``length``, ``optimizer`` and ``parameters`` (name, shape, in the order of the vector).
    files : list of ManifestFile
        All data files.
    servers : int
        Number of servers that wrote it; any number may read it.
    about : dict
        The model, schema and settings of the run, for people and for `pslib eval`.
    saved_utc : str
        Time of the save, for people.
    format_version : int
        Lowest format that reads it; 0 determines it.
    cut : dict
        For a checkpoint taken during training: ``token`` of its files, and ``table`` with the finished jobs
        and the progress of each lease of the current job.
    increment : dict
        ``of`` (folder) and ``token`` of its predecessor, ``depth`` in its chain. Empty: a full checkpoint.
    """

    tables: list[dict[str, Any]]
    dense: dict[str, Any]
    files: list[ManifestFile]
    servers: int
    about: dict[str, Any] = field(default_factory=dict)
    saved_utc: str = ""
    format_version: int = 0
    cut: dict[str, Any] = field(default_factory=dict)
    increment: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.format_version == 0:
            plain = all(set(table) <= _TABLE_V1 for table in self.tables)
            blocks = any(entry.blocks for entry in self.files)
            version = FORMAT_VERSION if self.cut or self.increment else 3 if blocks else 1 if plain else 2
            object.__setattr__(self, "format_version", version)

    @property
    def specs(self) -> dict[str, TableSpec]:
        """Descriptions of the tables by name."""
        return {spec.name: spec for spec in map(TableSpec.from_dict, self.tables)}

    @property
    def dense_length(self) -> int:
        """Number of dense parameters."""
        return int(self.dense["length"])

    def files_of(self, table: str, kind: str = ROWS) -> list[ManifestFile]:
        """Files of one kind of a table; of dense blocks for table ""."""
        return [entry for entry in self.files if (entry.table, entry.kind) == (table, kind)]


class Folder(NamedTuple):
    """Folder of checkpoint files: file system, and path inside it."""

    filesystem: fs.FileSystem
    root: str

    @property
    def is_local(self) -> bool:
        """True for a folder of this machine; False for one of an object store."""
        return isinstance(self.filesystem, fs.LocalFileSystem)

    def has(self, name: str) -> bool:
        """Return True if there is a file or folder of this name."""
        return bool(self.filesystem.get_file_info(f"{self.root}/{name}").type != fs.FileType.NotFound)

    def entries(self, allow_not_found: bool = False) -> list[fs.FileInfo]:
        """List the files and folders in it; empty, if allowed, where it is missing."""
        selector = fs.FileSelector(self.root, allow_not_found=allow_not_found)
        return list(self.filesystem.get_file_info(selector))


def open_folder(path: str) -> Folder:
    """Open a local path or a URI (``s3://``, ``gs://``, ``hdfs://``).

    Raises
    ------
    CheckpointError
        If the URI is invalid.
    """
    try:
        return Folder(*open_uri(place_of(path)))
    except (OSError, ValueError) as error:
        reason = str(error).replace(path, shown(path))
        raise CheckpointError(f"checkpoint path {shown(path)!r}: {reason}") from error


def unwritten(text: str, error: Exception) -> CheckpointError:
    """Error of a failed write; a distinct class if freeing space can help."""
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return CheckpointFullError(text) if full else CheckpointError(text)


def discard(path: str, token: str) -> None:
    """Remove the files of a failed save, identified by its token, to free space.

    Files named by a manifest stay: a save may fail although its manifest is written, or is to be completed
    from several machines.
    """
    folder = open_folder(path)
    try:
        keep = _named_in(folder)
        _remove(folder, re.compile(rf"\w+\.{token}-.*\.arrow"), keep)
        if folder.is_local and _NUMBERED.fullmatch(os.path.basename(folder.root)):
            with contextlib.suppress(OSError):  # it holds other files
                os.rmdir(folder.root)
    except FileNotFoundError:  # no server has begun to write
        return
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("pslib: checkpoint %s: can't remove what a save has left: %s", shown(path), error)


def _named_in(folder: Folder) -> set[str]:
    """Names of files in the manifests of a folder, complete or not."""
    names: set[str] = set()
    for manifest in (MANIFEST_NAME, INCOMPLETE_NAME):
        if folder.has(manifest):
            with folder.filesystem.open_input_stream(f"{folder.root}/{manifest}") as stream:
                names.update(entry["name"] for entry in json.loads(stream.read())["files"])
    return names


def commit(path: str, manifest: Manifest) -> None:
    """Write the manifest of files already written; then remove the files of an older checkpoint.

    The manifest is written under a temporary name and renamed over the old one where the file system can
    rename, so there is one complete checkpoint or none at every moment. A save that was suspended while
    another save wrote to the same path finds its files or its temporary manifest removed, and leaves the
    other checkpoint as it is.

    Raises
    ------
    CheckpointError
        If the path can't be written, or another save has replaced this one; if `read_manifest` would refuse
        the manifest; or if files are missing because servers on other machines wrote them to their own
        folders. The manifest needed to combine them is left as `INCOMPLETE_NAME`.
    """
    folder = open_folder(path)
    scattered = _missing(folder, manifest.files) if folder.is_local else []  # all share an object store
    data = _bytes_of(manifest)
    try:
        _parsed(data, path)
    except CheckpointCorruptError as error:  # what no reader takes replaces no checkpoint
        raise CheckpointError(f"not committed: expected what a load takes, got {error}") from error
    if scattered:
        _put(folder, path, INCOMPLETE_NAME, data, ())
        raise CheckpointError(_scattered(path, scattered, len(manifest.files)))
    _put(folder, path, MANIFEST_NAME, data, manifest.files)
    try:
        _remove(folder, _ASIDE)  # of a suspended save: it can't be renamed over this one later
        if manifest_bytes(path) != data:
            raise CheckpointError(_replaced(path, MANIFEST_NAME))  # not files of an older one
        _remove(folder, OWN_FILE, {entry.name for entry in manifest.files})
    except OSError as error:  # the new checkpoint is complete; old files only take space
        log.warning("pslib: checkpoint %s: can't remove files of an older one: %s", shown(path), error)


def _put(folder: Folder, path: str, name: str, data: bytes, files: Sequence[ManifestFile]) -> None:
    """Write a manifest atomically, if its ``files`` still exist at the last moment."""
    filesystem, root = folder
    aside = f"{root}/.{name}.{secrets.token_hex(4)}.new"
    try:
        if folder.is_local:
            _write(filesystem, aside, data)
            sync(filesystem, aside, root)
        _check_there(folder, path, files)
        if folder.is_local:
            filesystem.move(aside, f"{root}/{name}")
            sync(filesystem, root)
        else:
            _write(filesystem, f"{root}/{name}", data)
    except OSError as error:
        if folder.is_local and isinstance(error, FileNotFoundError) and os.path.isdir(root):  # the ``aside``
            raise CheckpointError(_replaced(path, name)) from error
        text = f"checkpoint {shown(path)}: can't write the manifest: {error}"
        raise unwritten(text, error) from error


def _write(filesystem: fs.FileSystem, file: str, data: bytes) -> None:
    with filesystem.open_output_stream(file) as stream:
        stream.write(data)


def _missing(folder: Folder, files: Sequence[ManifestFile]) -> list[str]:
    """Names of the files missing from a folder.

    An object store is listed once. In a local folder each file is looked up by its name, not yet cached on
    this machine: NFS may serve a folder listing that is a minute old.
    """
    if folder.is_local:
        return [entry.name for entry in files if not os.path.exists(f"{folder.root}/{entry.name}")]
    there = {info.base_name for info in folder.entries()}
    return [entry.name for entry in files if entry.name not in there]


def _check_there(folder: Folder, path: str, files: Sequence[ManifestFile]) -> None:
    """Check that files still exist: a later save would have removed them."""
    if gone := _missing(folder, files):
        raise CheckpointError(_replaced(path, gone[0]))


def _replaced(path: str, name: str) -> str:
    return (
        f"checkpoint {shown(path)}: expected {name} as this save has written it, but another save "
        "to the same place has replaced it meanwhile; what is there is that one's: give each a folder"
    )


def _scattered(path: str, missing: Sequence[str], files: int) -> str:
    return (
        f"checkpoint {shown(path)}: {len(missing)} of its {files} files are not there as {gethostname()} "
        f"sees that folder ({missing[0]}): servers write where they run, so give one that all machines "
        "share, or s3://...; nothing is lost: bring the files from the other machines here and rename "
        f"{INCOMPLETE_NAME} to {MANIFEST_NAME} (or another run has saved to this folder meanwhile: give each "
        "its own)"
    )


def _bytes_of(manifest: Manifest) -> bytes:
    files = [entry.to_dict() for entry in manifest.files]
    plain = asdict(manifest) | {"files": files, "manifest_crc32": _NO_CRC.decode()}
    for name in ("cut", "increment"):  # formats below 4 lack them
        if not plain[name]:
            del plain[name]
    text = (json.dumps(plain, indent=1, sort_keys=True) + "\n").encode()
    return _CRC.sub(b' "manifest_crc32": "%08x"' % crc32(text), text, count=1)


def _crc_fits(data: bytes) -> bool:
    found = _CRC.search(data)
    if not found:
        return False
    start, stop = found.span(1)
    return b"%08x" % crc32(data[:start] + _NO_CRC + data[stop:]) == found[1]


def _remove(folder: Folder, ours: re.Pattern[str], keep: Container[str] = ()) -> None:
    for info in folder.entries():
        is_ours = info.type == fs.FileType.File and ours.fullmatch(info.base_name)
        if is_ours and info.base_name not in keep:
            folder.filesystem.delete_file(info.path)


def sync(filesystem: fs.FileSystem, *paths: str) -> None:
    """Sync local files or folders to the disk; object stores do so themselves."""
    if isinstance(filesystem, fs.LocalFileSystem):
        for path in paths:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                sync_file(descriptor)
            finally:
                os.close(descriptor)


def manifest_bytes(path: str) -> bytes:
    """Read the manifest file's bytes.

    Raises
    ------
    CheckpointError
        If there is none at ``path``.
    """
    filesystem, root = open_folder(path)
    try:
        with filesystem.open_input_stream(f"{root}/{MANIFEST_NAME}") as stream:
            data: bytes = stream.read()
    except OSError as error:
        raise CheckpointError(
            f"{shown(path)}: no {MANIFEST_NAME} there ({type(error).__name__}); a checkpoint is a folder "
            "with one"
        ) from error
    return data


def read_manifest(path: str) -> Manifest:
    """Read and check a manifest.

    Raises
    ------
    CheckpointError
        If there is none at ``path``.
    CheckpointCorruptError
        If it is not valid output of `commit`.
    CheckpointIncompatibleError
        If a newer pslib wrote it.
    """
    return _parsed(manifest_bytes(path), path)


def _parsed(data: bytes, path: str) -> Manifest:
    """Parse and check the bytes of a manifest; errors as for `read_manifest`."""
    from pslib.checkpoint.manifest_entries import check_entries  # pydantic, which no worker needs: 67 ms

    try:
        plain = json.loads(data)
        version = plain["format_version"]
        if version > FORMAT_VERSION:
            raise CheckpointIncompatibleError(
                f"{shown(path)}: format {version} is newer than this pslib's {FORMAT_VERSION}; install a "
                "newer one"
            )
        if not _crc_fits(data):
            raise ValueError("its bytes do not fit its CRC")
        del plain["manifest_crc32"]
        check_entries(data)
        plain["files"] = [ManifestFile(**entry) for entry in plain["files"]]
        manifest = Manifest(**_known(plain))
        _check_files(manifest)
        return manifest
    except (ValueError, KeyError, TypeError, ConfigurationError) as error:
        problem = "; ".join(str(error).splitlines())
        raise CheckpointCorruptError(
            f"{shown(path)}: {MANIFEST_NAME} is damaged ({type(error).__name__}: {problem})"
        ) from error


def _known(plain: Mapping[str, Any]) -> dict[str, Any]:
    names = {one.name for one in fields(Manifest)}
    if unknown := sorted(set(plain) - names):
        raise ValueError(f"unknown entry {unknown[0]!r}")
    return dict(plain)


def _check_files(manifest: Manifest) -> None:
    """Check that each file is one that a table, or the dense parameters, of this manifest may have."""
    kinds = {}
    for spec in map(TableSpec.from_dict, manifest.tables):
        kinds[spec.name] = {ROWS, GONE, kind_of_counts(spec)}
    names = [entry.name for entry in manifest.files]
    if len(set(names)) < len(names):
        raise ValueError("a file is named twice")
    for entry in manifest.files:
        if entry.kind not in (kinds.get(entry.table, ()) if entry.table else (ROWS,)):
            raise ValueError(f"{entry.name}: no table here has such a file ({entry.table!r}, {entry.kind})")
    length, dense = manifest.dense["length"], [entry.bytes for entry in manifest.files if not entry.table]
    if dense and not length:  # a shard without dense parameters would pass over what else it holds
        raise ValueError("a file of dense parameters, of which there are none")
    if 4 * length > sum(dense):
        raise ValueError(
            f"dense parameters missing: {length} of them do not fit in files of {sum(dense)} bytes"
        )
    if length:
        optimizer_from_dict(manifest.dense["optimizer"])


READERS = 16
"""Threads, each waiting for one file: a footer on S3 takes two replies of 20 to 100 ms each."""


def other_tables(path: str, files: Sequence[ManifestFile], known: str) -> list[dict[str, Any]]:
    """Descriptions, in plain form, of all tables but ``known`` in written files, before the manifest.

    Covers tables created by clients since the image began, as each file describes its table. A missing file
    is on another machine and is skipped; `pslib.checkpoint.manifest.commit` reports it.

    Raises
    ------
    CheckpointError
        If a file can't be read, or files describe one table, including ``known`` ones, differently.
    """
    filesystem, root = open_folder(path)

    def described(one: ManifestFile) -> dict[str, Any] | None:
        try:
            with filesystem.open_input_file(f"{root}/{one.name}") as file:
                return table_in(pa.ipc.open_file(file).schema)
        except FileNotFoundError:
            return None
        except (OSError, pa.ArrowException) as error:
            raise CheckpointError(
                f"checkpoint {shown(path)}: can't read {one.table!r} back: {error}"
            ) from error

    found: dict[str, dict[str, Any]] = {}
    # One file per server, whose shard threads have the same tables: each file costs two replies of a store.
    servers = {(one.table, _server_of(one.name)): one for one in files if one.kind == ROWS and one.table}
    of_rows = list(servers.values())
    with ThreadPoolExecutor(READERS, thread_name_prefix="reads tables back") as pool:
        for one, plain in zip(of_rows, pool.map(described, of_rows), strict=True):
            if plain is None:
                continue
            first = found.setdefault(one.table, plain)
            if plain != first:
                differences = table_differences(TableSpec.from_dict(first), TableSpec.from_dict(plain))
                raise CheckpointError(
                    f"checkpoint {shown(path)}: servers have different tables {one.table!r}, and no load "
                    f"could take both: {differences} in {one.name}; older checkpoints are as they were: go "
                    "on with the last one in a new cluster"
                )
    return [found[table] for table in sorted(found) if table != known]


def _server_of(name: str) -> str:
    """Common stem of one server's files: TOKEN-SERVER of table.TOKEN-SERVER-SHARD.arrow."""
    return name.rsplit("-", 1)[0].rsplit(".", 1)[-1]
