"""Output files that exist whole or not at all."""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pslib.errors import ConfigurationError

__all__ = ["atomic_output", "real_file", "refuse_existing"]

NAME_SHOWN = 40
"""Letters of a file's name in that of its draft, which may not be longer than a file system takes."""


def refuse_existing(*paths: Path, overwrite: bool) -> None:
    """Raise ConfigurationError naming ``paths`` that can be no file, or that exist, unless ``overwrite``."""
    if problems := [problem for path in paths if (problem := _problem(path, overwrite))]:
        raise ConfigurationError(*problems)


def real_file(path: Path) -> Path:
    """Where a link leads to, whether something is there or not; a path that is no link as it is."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _problem(path: Path, overwrite: bool = True) -> str | None:
    """Why a path can't become that of a new file; None where it can."""
    try:
        kind = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):  # the folder is somebody else's to look at
        return None
    except (OSError, ValueError) as error:  # the latter of a zero byte
        return f"{path} can't be written: {getattr(error, 'strerror', None) or error}; give another name"
    if stat.S_ISREG(kind):
        return None if overwrite else f"{path} exists already: remove it, or overwrite it with --overwrite"
    what = "a folder" if stat.S_ISDIR(kind) else "a device, pipe or socket"
    return f"{path} is {what}: expected the name of a file"


@contextmanager
def atomic_output(path: Path) -> Iterator[Path]:
    """Give a temporary name beside ``path``; rename it on success, remove it on any error.

    Parameters
    ----------
    path : Path
        The final name; its folder is made where it is missing. A file that stood there is replaced at the
        end, where a link leads to in its own place.

    Yields
    ------
    Path
        The name to write to, in the same folder, hence on the same file system.

    Raises
    ------
    ConfigurationError
        When the folder can't be made or written to, or what stands at ``path`` is no file.
    """
    if problem := _problem(path):
        raise ConfigurationError(problem)
    path = real_file(path)
    # Hidden, so that a reader of the folder passes over a half-written file.
    temporary = path.with_name(f".{path.name[:NAME_SHOWN]}.{uuid.uuid4().hex[:8]}.tmp")
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
