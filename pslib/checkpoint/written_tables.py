"""Which tables the files of a checkpoint hold, before there is a manifest that says so."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from pslib.checkpoint.manifest import ROWS, ManifestFile, open_place
from pslib.checkpoint.rows import table_in
from pslib.errors import CheckpointError
from pslib.places import shown
from pslib.table.descriptions import table_differences
from pslib.table.tables import TableSpec

__all__ = ["other_tables"]

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
