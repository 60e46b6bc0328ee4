"""Checkpoint folders: list checkpoints, find the newest complete one, follow increments, prune old ones.

A save that keeps the last n writes ``checkpoint-000001``, ``checkpoint-000002``, ... below the given folder.
They are ordered by number, so clocks do not matter.

An increment names its predecessor, a checkpoint in a sibling folder, and the predecessor's token. Every save
makes a new token, so a replaced link of a chain is detected.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pyarrow import fs

from pslib.checkpoint.manifest import (
    INCOMPLETE_NAME,
    MANIFEST_NAME,
    OWN_FILE,
    Manifest,
    open_folder,
    read_manifest,
)
from pslib.errors import CheckpointCorruptError, CheckpointError, ConfigurationError
from pslib.storage import below, is_uri, parent_and_name, place_of, shown, with_inner
from pslib.suggestions import nearest_path
from pslib.text import listed

log = logging.getLogger(__name__)
_NUMBERED = re.compile(r"checkpoint-(\d{6,})")
LEVELS = 3
"""Depth searched by `list_checkpoints`: runs/first/checkpoint/checkpoint-000001."""
UNFINISHED = "checkpoint-unfinished"
"""Folder in that of a run: checkpoints of a training that goes on or was interrupted."""
OF_RUNS = ("checkpoint", UNFINISHED)
"""Folders of checkpoints in that of a run: of a finished training, and of one that goes on."""
LINKS_MAX = 1001
KEEP_LAST_MAX = 1_000_000
"""Upper limit of ``keep_last``; 0 keeps all."""


@dataclass(frozen=True, slots=True)
class Base:
    """Predecessor of an increment: folder, token, increments before it."""

    name: str
    token: str
    depth: int


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """Checkpoint found in a folder, complete or not.

    Attributes
    ----------
    path : str
        Folder or URI.
    state : {"complete", "incomplete", "damaged"}
        Incomplete: no manifest, because a save is in progress or has failed. Damaged: the manifest can't be
        read, or a file is missing or has another size.
    bytes : int
        Bytes of all files.
    manifest : Manifest or None
    problem : str
        The problem, one line.
    """

    path: str
    state: str
    bytes: int
    manifest: Manifest | None = None
    problem: str = ""

    @property
    def rows(self) -> dict[str, int]:
        """Rows of each table."""
        if self.manifest is None:
            return {}
        found = {str(table["name"]): 0 for table in self.manifest.tables}
        for entry in self.manifest.files:
            if entry.table and entry.kind == "rows":
                found[entry.table] = found.get(entry.table, 0) + entry.rows
        return found


@dataclass(frozen=True, slots=True)
class Link:
    """Checkpoint of a chain."""

    path: str
    manifest: Manifest


def list_checkpoints(path: str) -> list[CheckpointInfo]:
    """List checkpoints at ``path`` and up to three levels below it, ordered by name.

    Raises
    ------
    CheckpointError
        If the folder is missing or can't be read.
    """
    place = place_of(path)
    filesystem, root = open_folder(place)
    try:
        if filesystem.get_file_info(root).type != fs.FileType.Directory:
            near = "" if is_uri(place) else nearest_path(path)
            mended = f"did you mean {near}?" if near else "expected one with checkpoints below it"
            raise CheckpointError(f"{shown(path)}: no such folder; {mended}")
        folders = dict(_walk(filesystem, root, LEVELS))
    except OSError as error:
        raise CheckpointError(f"{shown(path)}: expected a folder with checkpoints: {error}") from error
    return [_examine(with_inner(place, root, inner), folders[inner]) for inner in sorted(folders)]


def _walk(filesystem: fs.FileSystem, folder: str, levels: int) -> Iterator[tuple[str, dict[str, int]]]:
    """Folders with checkpoint files, and the sizes of these files."""
    sizes = {}
    for info in filesystem.get_file_info(fs.FileSelector(folder)):
        name = info.base_name
        if info.type == fs.FileType.File and (name == MANIFEST_NAME or OWN_FILE.fullmatch(name)):
            sizes[name] = info.size
        elif info.type == fs.FileType.Directory and levels:
            yield from _walk(filesystem, info.path, levels - 1)
    if sizes:
        yield folder, sizes


def _examine(path: str, sizes: dict[str, int]) -> CheckpointInfo:
    total = sum(sizes.values())
    if MANIFEST_NAME not in sizes:
        return CheckpointInfo(path, "incomplete", total, None, f"no {MANIFEST_NAME}: a save goes on or died")
    try:
        manifest = read_manifest(path)
    except CheckpointError as error:
        return CheckpointInfo(path, "damaged", total, None, str(error))
    for entry in manifest.files:
        if sizes.get(entry.name) != entry.bytes:
            came = f"has {sizes[entry.name]} of {entry.bytes} bytes" if entry.name in sizes else "is missing"
            return CheckpointInfo(path, "damaged", total, manifest, f"{entry.name} {came}")
    try:
        chain_of(path)
    except CheckpointError as error:
        return CheckpointInfo(path, "damaged", total, manifest, str(error))
    return CheckpointInfo(path, "complete", total, manifest)


def chain_of(path: str) -> list[Link]:
    """Return the chain of ``path``: the full checkpoint, then the increments up to ``path``, in order.

    Raises
    ------
    CheckpointError
        If a link is missing.
    CheckpointCorruptError
        If a link is not the checkpoint that the next one follows.
    """
    place = place_of(path)
    links = [Link(place, read_manifest(place))]
    while increment := links[0].manifest.increment:
        if len(links) > LINKS_MAX:
            raise CheckpointCorruptError(f"{shown(path)}: more than {LINKS_MAX} increments follow each other")
        before = below(parent_and_name(links[0].path)[0], str(increment["of"]))
        link = Link(before, read_manifest(before))
        if link.manifest.cut.get("token") != increment["token"]:
            raise CheckpointCorruptError(
                f"{shown(links[0].path)}: an increment of {increment['of']}, where another checkpoint stands "
                "than the one that it was made after"
            )
        _check_same_tables(link, links[0])
        links.insert(0, link)
    return links


def _check_same_tables(before: Link, link: Link) -> None:
    tables = {table["name"]: table for table in before.manifest.tables}
    for table in link.manifest.tables:
        if table != tables.get(table["name"], table):
            raise CheckpointCorruptError(
                f"{shown(link.path)}: an increment whose table {table['name']!r} is not described as in "
                f"{shown(before.path)}"
            )


def _numbered(folder: str) -> Iterator[tuple[int, str]]:
    """Number and path of each ``checkpoint-N`` in a folder, newest first, complete or not."""
    names = {info.base_name for info in open_folder(folder).entries(allow_not_found=True)}
    found = [(int(match[1]), match[0]) for match in map(_NUMBERED.fullmatch, names) if match]
    for number, name in sorted(found, reverse=True):
        yield number, below(folder, name)


def newest(path: str) -> str:
    """``path`` if it is a checkpoint, else the newest complete one of a folder of numbered checkpoints.

    Raises
    ------
    CheckpointError
        If there is none.
    """
    place = place_of(path)
    if not is_uri(place) and Path(place).is_file():
        raise CheckpointError(f"{shown(path)}: expected a checkpoint, or the folder of a run, got a file")
    try:
        if open_folder(place).has(MANIFEST_NAME):
            return place
        for _number, one in _numbered(place):
            if open_folder(one).has(MANIFEST_NAME):
                return one
        of_a_run = open_folder(place).has(f"checkpoint/{MANIFEST_NAME}")
    except OSError as error:
        raise CheckpointError(f"{shown(path)}: can't be read: {error}") from error
    if of_a_run:
        mended = f"did you mean {shown(below(path, 'checkpoint'))}?"
    else:
        mended = _elsewhere(place, path) or (
            "a checkpoint is a folder with one, or give a folder of checkpoint-000001, checkpoint-000002, ..."
        )
    raise CheckpointError(f"{shown(path)}: no {MANIFEST_NAME} there; {mended}")


def newest_of_run(path: str) -> str:
    """Return the newest checkpoint of a run's folder: of the finished training, else of one that goes on.

    A path that is no run's folder is returned as it is.
    """
    place = place_of(path)
    for name in OF_RUNS:
        with suppress(OSError, CheckpointError):
            if not open_folder(place).has(MANIFEST_NAME):
                return newest(below(place, name))
    return place


def _elsewhere(place: str, given: str) -> str:
    """Hint for a local path without a manifest: it is incomplete, holds runs, or another name is meant.

    ``given`` is the path as the user wrote it.
    """
    path = Path(place)
    if not is_uri(place) and (path / INCOMPLETE_NAME).exists():
        return f"its files are on several machines: bring them here, then rename {INCOMPLETE_NAME} to that"
    if of_runs := [] if is_uri(place) else sorted(path.glob(f"*/checkpoint/{MANIFEST_NAME}")):
        return f"those of the runs in it are {listed(str(one.parent) for one in of_runs)}"
    if is_uri(place) or path.exists():
        return ""
    near = nearest_path(given)
    return f"no such folder; did you mean {near}?" if near else "no such folder"


def base_in(folder: str, increments: int) -> Base | None:
    """Newest checkpoint of a folder if an increment may follow it; None: the next one is full."""
    try:
        path = newest(folder)
        manifest = read_manifest(path)
    except CheckpointError:
        return None
    token, depth = str(manifest.cut.get("token", "")), int(manifest.increment.get("depth", 0))
    if not token or depth >= increments:
        return None
    return Base(parent_and_name(path)[1], token, depth)


def next_place(folder: str) -> str:
    """Path of the next numbered checkpoint in a folder; the number of a failed save is not reused.

    Raises
    ------
    CheckpointError
        If the folder can't be read, or is a checkpoint itself, which a load would find first.
    """
    try:
        if open_folder(folder).has(MANIFEST_NAME):
            raise CheckpointError(
                f"checkpoint {shown(folder)}: expected a folder for numbered checkpoints, it is one itself; "
                "with keep_last give another folder"
            )
        last = next(_numbered(folder), (0, ""))[0]
    except OSError as error:
        raise CheckpointError(f"checkpoint {shown(folder)}: can't read the folder: {error}") from error
    return below(folder, f"checkpoint-{last + 1:06d}")


def check_keep_last(keep_last: int) -> None:
    """Raise ConfigurationError unless it is a number of checkpoints, or 0 for a replaced checkpoint."""
    if not isinstance(keep_last, int) or not 0 <= keep_last <= KEEP_LAST_MAX:
        raise ConfigurationError(
            f"keep_last: expected a whole number in 0..{KEEP_LAST_MAX}, got {keep_last!r}"
        )


def prune(folder: str, keep_last: int) -> list[str]:
    """Remove all but the newest ``keep_last`` complete numbered checkpoints; return the removed paths.

    The predecessors of an increment, direct or not, stay as long as the increment. Only files named by a
    manifest are removed, the manifest first, so a crash leaves no folder that passes for a
    checkpoint. Folders without a readable manifest, and files that no manifest names, stay. If the manifest
    of an increment's predecessor can't be read at the moment, all older checkpoints stay, since its own
    predecessor is unknown.
    """
    gone, kept, needed = [], 0, ""
    try:
        for _number, path in _numbered(folder):
            try:
                manifest = read_manifest(path)
            except CheckpointError as error:
                if parent_and_name(path)[1] != needed:
                    continue
                log.warning("pslib: no older checkpoint than %s is removed: %s", shown(path), error)
                break
            kept += 1
            if kept <= keep_last or parent_and_name(path)[1] == needed:
                needed = str(manifest.increment.get("of", ""))  # each follows the one before it
                continue
            _remove(path, manifest)
            gone.append(path)
    except OSError as error:  # the new checkpoint is complete; old ones only take space
        log.warning("pslib: checkpoint %s: can't remove an older one: %s", shown(folder), error)
    return gone


def _remove(path: str, manifest: Manifest) -> None:
    folder = open_folder(path)
    filesystem, root = folder
    filesystem.delete_file(f"{root}/{MANIFEST_NAME}")
    for entry in manifest.files:
        if folder.has(entry.name):
            filesystem.delete_file(f"{root}/{entry.name}")
    if folder.entries(allow_not_found=True):
        return
    if folder.is_local:
        os.rmdir(root)
    else:
        filesystem.delete_dir(root)
