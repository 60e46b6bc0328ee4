"""The manifest: written last, it commits a checkpoint; without it the other files are nothing.

Grammar and reasons stand in docs/design/checkpoint.md.
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
from typing import Any

import pyarrow as pa
from pyarrow import fs

from cython_ext.wire.checksums import crc32
from pslib.checkpoint.rows import table_in
from pslib.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointFullError,
    CheckpointIncompatibleError,
)
from pslib.storage import open_uri, place_of, shown
from pslib.table.descriptions import table_differences
from pslib.table.tables import TableSpec

__all__ = [
    "BLOCK_BYTES",
    "FORMAT_VERSION",
    "GONE",
    "GONE_SCHEMA",
    "INCOMPLETE_NAME",
    "MANIFEST_NAME",
    "OWN_FILE",
    "ROWS",
    "Manifest",
    "ManifestFile",
    "commit",
    "discard",
    "manifest_bytes",
    "open_place",
    "other_tables",
    "read_manifest",
    "sync",
    "unwritten",
]


log = logging.getLogger("pslib")
FORMAT_VERSION = 4
"""A checkpoint says the lowest that reads it: 1 knows no policies, 2 no checksums of blocks, 3 no cuts."""
BLOCK_BYTES = 1 << 23
"""A checksum each: small enough to say where a file is damaged, 1.4 MB of manifest for a terabyte of rows."""
ROWS = "rows"
GONE = "gone"
GONE_SCHEMA = pa.schema([pa.field("key", pa.uint64(), nullable=False)])
"""Of the file with keys whose rows have left since the checkpoint before an increment."""
MANIFEST_NAME = "manifest.json"
INCOMPLETE_NAME = "manifest.incomplete.json"
"""Of a checkpoint whose files lie on several machines: renamed, it is that of files brought together."""
_CRC = re.compile(rb'^ "manifest_crc32": "([0-9a-f]{8})"', re.MULTILINE)
_NO_CRC = b"00000000"
_TABLE_V1 = frozenset({"name", "seed", "parts"})
OWN_FILE = re.compile(r"\w+\.[0-9a-f]{8}-\d{3,}-\d+(\.counts|\.filters|\.gone)?\.arrow")
"""Names that servers give: nothing else in the folder is ours to remove."""
_NUMBERED = re.compile(r"checkpoint-\d{6,}")
"""Folders that saves make; any other is the user's."""
_ASIDE = re.compile(r"\.manifest(\.incomplete)?\.json\.([0-9a-f]{8}\.)?new|manifest\.incomplete\.json")
"""Manifests that make no checkpoint: of who has died or stands still, or of files in several folders."""


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """One data file beside the manifest, with its CRC-32 (zlib's).

    ``table`` is "" for dense blocks; ``kind`` is "rows", "counts", "filters" or "gone"; ``blocks`` are
    CRC-32s of each `BLOCK_BYTES` of the file, or nothing in formats 1 and 2.
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
        if not all(isinstance(number, int) for number in (self.bytes, self.crc32, self.rows, *self.blocks)):
            raise ValueError(f"file {self.name!r}: bytes, crc32, rows and blocks must be whole numbers")
        if not isinstance(self.name, str) or not re.fullmatch(r"[\w.-]+", self.name):
            raise ValueError(f"file name {self.name!r}")
        if self.kind not in (ROWS, "counts", "filters", GONE):
            raise ValueError(f"file {self.name!r}: unknown kind {self.kind!r}")

    def to_dict(self) -> dict[str, Any]:
        """Plain form; the kind of files that there always were is left out."""
        usual = {"kind": ROWS, "blocks": ()}
        plain = {key: value for key, value in asdict(self).items() if value != usual.get(key)}
        return plain | ({"blocks": list(self.blocks)} if self.blocks else {})


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint holds.

    Attributes
    ----------
    tables : list of dict
        `TableSpec.to_dict` of every table.
    dense : dict
        ``length``, ``optimizer`` and ``parameters`` (name, shape, in the order of the vector).
    files : list of ManifestFile
        All data files.
    servers : int
        How many servers wrote it; any number may read it.
    about : dict
        The model, schema and settings of the run, for people and for `pslib eval`.
    saved_utc : str
        When, for people.
    format_version : int
        Of the oldest pslib that reads it; 0 finds it out.
    cut : dict
        Of a checkpoint of a training that went on: ``token`` of its files, and ``table``, which says which
        jobs were done and how far each lease of the one under way was.
    increment : dict
        ``of`` (folder) and ``token`` of the checkpoint that it follows, ``depth`` in its chain. Empty: it is
        full.
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


def open_place(path: str) -> tuple[fs.FileSystem, str]:
    """File system and path inside it for a local path or a URI (``s3://``, ``gs://``, ``hdfs://``).

    Raises
    ------
    CheckpointError
        When the URI can't be understood.
    """
    try:
        return open_uri(place_of(path))
    except (OSError, ValueError) as error:
        reason = str(error).replace(path, shown(path))
        raise CheckpointError(f"checkpoint path {shown(path)!r}: {reason}") from error


def unwritten(text: str, error: Exception) -> CheckpointError:
    """The error of a write that the system has refused: one of its own where somebody may make space."""
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return CheckpointFullError(text) if full else CheckpointError(text)


def discard(path: str, token: str) -> None:
    """Remove the files of a save that has failed, which has a token of its own: they take space.

    What a manifest names stays: a save may fail although its manifest is there, or is to be put together.
    """
    filesystem, root = open_place(path)
    try:
        keep = _named_in(filesystem, root)
        _remove(filesystem, root, re.compile(rf"\w+\.{token}-.*\.arrow"), keep)
        if isinstance(filesystem, fs.LocalFileSystem) and _NUMBERED.fullmatch(os.path.basename(root)):
            with contextlib.suppress(OSError):  # it holds something else
                os.rmdir(root)
    except FileNotFoundError:  # no server has come so far
        return
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("pslib: checkpoint %s: can't remove what a save has left: %s", shown(path), error)


def _named_in(filesystem: fs.FileSystem, root: str) -> set[str]:
    """Names of files in the manifests of a folder, complete or not."""
    names: set[str] = set()
    for manifest in (MANIFEST_NAME, INCOMPLETE_NAME):
        if filesystem.get_file_info(f"{root}/{manifest}").type != fs.FileType.NotFound:
            with filesystem.open_input_stream(f"{root}/{manifest}") as stream:
                names.update(entry["name"] for entry in json.loads(stream.read())["files"])
    return names


def commit(path: str, manifest: Manifest) -> None:
    """Write the manifest of files that are already there; then remove those of an older checkpoint.

    The manifest is written aside and moved over the old one where the file system can move, so that at every
    moment there is one complete checkpoint or none. Who has stood still while another one saved to the same
    place finds its files, or what it has written aside, removed, and leaves the other's checkpoint as it is.

    Raises
    ------
    CheckpointError
        When the place can't be written, or another save has replaced this one meanwhile; or when files are
        not there: servers on other machines have written them to folders of their own. What is needed to put
        them together is left as `INCOMPLETE_NAME`.
    """
    filesystem, root = open_place(path)
    local = isinstance(filesystem, fs.LocalFileSystem)
    scattered = _missing(root, manifest.files) if local else []  # an object store is one for all
    data = _bytes_of(manifest)
    if scattered:
        _put(filesystem, root, path, INCOMPLETE_NAME, data, ())
        raise CheckpointError(_scattered(path, scattered, len(manifest.files)))
    _put(filesystem, root, path, MANIFEST_NAME, data, manifest.files)
    try:
        _remove(filesystem, root, _ASIDE)  # of who stands still now: it can't be moved over this one later
        if manifest_bytes(path) != data:
            raise CheckpointError(_replaced(path, MANIFEST_NAME))  # the other's files are not an older one's
        _remove(filesystem, root, OWN_FILE, {entry.name for entry in manifest.files})
    except OSError as error:  # the new checkpoint is there; old files only take space
        log.warning("pslib: checkpoint %s: can't remove files of an older one: %s", shown(path), error)


def _put(
    filesystem: fs.FileSystem, root: str, path: str, name: str, data: bytes, files: Sequence[ManifestFile]
) -> None:
    """Write a manifest whole or not at all, if its ``files`` are still there at the last moment."""
    local, aside = isinstance(filesystem, fs.LocalFileSystem), f"{root}/.{name}.{secrets.token_hex(4)}.new"
    try:
        if local:
            _write(filesystem, aside, data)
            sync(filesystem, aside, root)
        _check_there(filesystem, root, path, files)
        if local:
            filesystem.move(aside, f"{root}/{name}")
            sync(filesystem, root)
        else:
            _write(filesystem, f"{root}/{name}", data)
    except OSError as error:
        if local and isinstance(error, FileNotFoundError) and os.path.isdir(root):  # what was written aside
            raise CheckpointError(_replaced(path, name)) from error
        text = f"checkpoint {shown(path)}: can't write the manifest: {error}"
        raise unwritten(text, error) from error


def _write(filesystem: fs.FileSystem, file: str, data: bytes) -> None:
    with filesystem.open_output_stream(file) as stream:
        stream.write(data)


def _missing(root: str, files: Sequence[ManifestFile]) -> list[str]:
    """Names of the files that are not in a folder.

    Each is looked for by its name, new to this machine: NFS may show a folder's list of a minute ago.
    """
    return [entry.name for entry in files if not os.path.exists(f"{root}/{entry.name}")]


def _check_there(filesystem: fs.FileSystem, root: str, path: str, files: Sequence[ManifestFile]) -> None:
    """See that files which were there still are: a later save removes them. Object stores list them once."""
    if isinstance(filesystem, fs.LocalFileSystem):
        gone = _missing(root, files)
    else:
        there = {info.base_name for info in filesystem.get_file_info(fs.FileSelector(root))}
        gone = [entry.name for entry in files if entry.name not in there]
    if gone:
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
    for name in ("cut", "increment"):  # formats below 4 do not know them
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


def _remove(filesystem: fs.FileSystem, root: str, ours: re.Pattern[str], keep: Container[str] = ()) -> None:
    for info in filesystem.get_file_info(fs.FileSelector(root)):
        is_ours = info.type == fs.FileType.File and ours.fullmatch(info.base_name)
        if is_ours and info.base_name not in keep:
            filesystem.delete_file(info.path)


def sync(filesystem: fs.FileSystem, *paths: str) -> None:
    """Wait until local files or folders are on the disk; object stores do that by themselves."""
    if isinstance(filesystem, fs.LocalFileSystem):
        for path in paths:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def manifest_bytes(path: str) -> bytes:
    """The manifest's file as it is.

    Raises
    ------
    CheckpointError
        When there is none at ``path``.
    """
    filesystem, root = open_place(path)
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
        When there is none at ``path``.
    CheckpointCorruptError
        When it is not what `commit` writes.
    CheckpointIncompatibleError
        When it was written by a newer pslib.
    """
    data = manifest_bytes(path)
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
        plain["files"] = [ManifestFile(**entry) for entry in plain["files"]]
        return Manifest(**_known(plain))
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointCorruptError(
            f"{shown(path)}: {MANIFEST_NAME} is damaged ({type(error).__name__}: {error})"
        ) from error


def _known(plain: Mapping[str, Any]) -> dict[str, Any]:
    names = {one.name for one in fields(Manifest)}
    if unknown := sorted(set(plain) - names):
        raise ValueError(f"unknown entry {unknown[0]!r}")
    return dict(plain)


READERS = 16
"""Of which each waits for one file: a footer on S3 takes two answers of 20 to 100 ms each."""


def other_tables(path: str, files: Sequence[ManifestFile], known: str) -> list[dict[str, Any]]:
    """Descriptions, in plain form, of all tables but ``known`` that written files hold, before the manifest.

    Whatever tables clients have made, also since the image was begun: files say themselves what is in them.
    One that is not there is on another machine, which `pslib.checkpoint.manifest.commit` tells; it is passed
    over.

    Raises
    ------
    CheckpointError
        When a file can't be read, or files describe one table, also ``known``, in different ways.
    """
    filesystem, root = open_place(path)

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
    # One of a server, whose shard threads have the same tables: each file costs two answers of a store.
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
    """What names of one server's files have in common: TOKEN-SERVER of table.TOKEN-SERVER-SHARD.arrow."""
    return name.rsplit("-", 1)[0].rsplit(".", 1)[-1]
