"""Check for kernels older than their sources, as after a merge without a build."""

from __future__ import annotations

from pathlib import Path


def older_kernels(folder: Path) -> list[str]:
    """Names of the kernels in a folder that are older than their ``.pyx``; sources alone are none."""
    found = []
    for source in sorted(folder.rglob("*.pyx")):
        built = [path.stat().st_mtime for path in source.parent.glob(f"{source.stem}.*.so")]
        if built and max(built) < source.stat().st_mtime:
            found.append(source.stem)
    return found
