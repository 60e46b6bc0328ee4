"""Checkpoints: Arrow IPC files readable by pandas, Polars and DuckDB, committed by a manifest."""

from pslib.checkpoint.compatibility import LoadOptions, check_fits, check_model
from pslib.checkpoint.erase import Forgotten, forget_rows, held_rows
from pslib.checkpoint.files import check_shard, load_shard, mapped_rows
from pslib.checkpoint.folders import (
    CheckpointInfo,
    chain_of,
    check_keep_last,
    list_checkpoints,
    newest,
    newest_of_run,
    next_place,
    prune,
)
from pslib.checkpoint.image_files import ImageWriter
from pslib.checkpoint.manifest import (
    MANIFEST_NAME,
    Manifest,
    ManifestFile,
    commit,
    discard,
    manifest_bytes,
    other_tables,
    read_manifest,
)

__all__ = [
    "MANIFEST_NAME",
    "CheckpointInfo",
    "Forgotten",
    "ImageWriter",
    "LoadOptions",
    "Manifest",
    "ManifestFile",
    "chain_of",
    "check_fits",
    "check_keep_last",
    "check_model",
    "check_shard",
    "commit",
    "discard",
    "forget_rows",
    "held_rows",
    "list_checkpoints",
    "load_shard",
    "manifest_bytes",
    "mapped_rows",
    "newest",
    "newest_of_run",
    "next_place",
    "other_tables",
    "prune",
    "read_manifest",
]
