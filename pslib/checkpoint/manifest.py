"""The manifest: written last, it commits a checkpoint; without it the other files are nothing.

Grammar and reasons stand in README.md beside this file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from pyarrow import fs

from pslib.errors import CheckpointCorruptError, CheckpointError, CheckpointIncompatibleError

__all__ = [
    "FORMAT_VERSION",
    "MANIFEST_NAME",
    "Manifest",
    "ManifestFile",
    "commit",
    "open_place",
    "read_manifest",
]

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """One data file: its name beside the manifest, size, CRC-32 (zlib) and rows; ``table`` is "" for dense."""

    name: str
    table: str
    bytes: int
    crc32: int
    rows: int


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
    """

    tables: list[dict[str, Any]]
    dense: dict[str, Any]
    files: list[ManifestFile]
    servers: int
    about: dict[str, Any] = field(default_factory=dict)
    saved_utc: str = ""
    format_version: int = FORMAT_VERSION


def open_place(path: str) -> tuple[fs.FileSystem, str]:
    """File system and path inside it for a local path or a URI (``s3://``, ``gs://``, ``hdfs://``).

    Raises
    ------
    CheckpointError
        When the URI can't be understood.
    """
    try:
        if "://" in path:
            return fs.FileSystem.from_uri(path)
        return fs.LocalFileSystem(), str(Path(path).absolute())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"checkpoint path {path!r}: {error}") from error


def commit(path: str, manifest: Manifest) -> None:
    """Write the manifest of files that are already there; then remove files of an older checkpoint at ``path``.

    The manifest is written aside and moved over the old one where the file system can move, so that at every
    moment there is one complete checkpoint or none.

    Raises
    ------
    CheckpointError
        When the place can't be written.
    """
    filesystem, root = open_place(path)
    text = json.dumps(asdict(manifest), indent=1, sort_keys=True)
    try:
        target, aside = f"{root}/{MANIFEST_NAME}", f"{root}/.{MANIFEST_NAME}.new"
        local = isinstance(filesystem, fs.LocalFileSystem)
        with filesystem.open_output_stream(aside if local else target) as stream:
            stream.write(text.encode())
        if local:
            filesystem.move(aside, target)
        keep = {entry.name for entry in manifest.files} | {MANIFEST_NAME}
        for info in filesystem.get_file_info(fs.FileSelector(root)):
            if (
                info.type == fs.FileType.File
                and info.base_name.endswith(".arrow")
                and info.base_name not in keep
            ):
                filesystem.delete_file(info.path)
    except OSError as error:
        raise CheckpointError(f"checkpoint {path}: can't write the manifest: {error}") from error


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
    filesystem, root = open_place(path)
    try:
        with filesystem.open_input_stream(f"{root}/{MANIFEST_NAME}") as stream:
            data = stream.read()
    except OSError as error:
        raise CheckpointError(
            f"{path}: no {MANIFEST_NAME} there ({type(error).__name__}); a checkpoint is a folder with a manifest"
        ) from error
    try:
        plain = json.loads(data)
        version = plain["format_version"]
        if version > FORMAT_VERSION:
            raise CheckpointIncompatibleError(
                f"{path}: written in format {version}; this pslib reads up to {FORMAT_VERSION}: install a newer one"
            )
        plain["files"] = [ManifestFile(**entry) for entry in plain["files"]]
        return Manifest(**_known(plain))
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointCorruptError(
            f"{path}/{MANIFEST_NAME}: damaged ({type(error).__name__}: {error})"
        ) from error


def _known(plain: Mapping[str, Any]) -> dict[str, Any]:
    names = {one.name for one in fields(Manifest)}
    if unknown := sorted(set(plain) - names):
        raise ValueError(f"unknown entry {unknown[0]!r}")
    return dict(plain)
