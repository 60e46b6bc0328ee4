"""Output files that exist whole or not at all."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pslib.errors import ConfigurationError

__all__ = ["atomic_output", "refuse_existing"]


def refuse_existing(*paths: Path, overwrite: bool) -> None:
    """Raise ConfigurationError naming each of ``paths`` that exists, unless ``overwrite``."""
    problems = [
        f"{path} exists already: remove it, or overwrite it with --overwrite"
        for path in paths
        if path.exists()
    ]
    if problems and not overwrite:
        raise ConfigurationError(*problems)


@contextmanager
def atomic_output(path: Path) -> Iterator[Path]:
    """Give a temporary name beside ``path``; rename it on success, remove it on any error.

    Parameters
    ----------
    path : Path
        The final name; its folder is made where it is missing. What stood there is replaced at the end.

    Yields
    ------
    Path
        The name to write to, in the same folder, hence on the same file system.

    Raises
    ------
    ConfigurationError
        When the folder can't be made or written to.
    """
    # Hidden, so that a reader of the folder passes over a half-written file.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"can't make the folder {path.parent}: {error.strerror}") from error
    if not os.access(path.parent, os.W_OK):
        raise ConfigurationError(f"can't write in the folder {path.parent}: permission denied")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
