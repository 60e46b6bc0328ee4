"""Checkpoints: Arrow IPC files that pandas, Polars or DuckDB open, and a manifest that commits them."""

from pslib.checkpoint.files import load_shard, save_shard
from pslib.checkpoint.manifest import MANIFEST_NAME, Manifest, ManifestFile, commit, read_manifest

__all__ = [
    "MANIFEST_NAME",
    "Manifest",
    "ManifestFile",
    "commit",
    "load_shard",
    "read_manifest",
    "save_shard",
]
