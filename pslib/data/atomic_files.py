"""Atomic output files: a file appears complete under its name, or not at all."""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pslib.errors import ConfigurationError
from pslib.process.platform import sync_file

NAME_SHOWN = 40
"""Characters of the final name kept in the temporary name; file systems limit the length of a name."""


def refuse_existing(*paths: Path, overwrite: bool) -> None:
    """Raise ConfigurationError for ``paths`` that cannot be files, or that exist, unless ``overwrite``."""
    if problems := [problem for path in paths if (problem := _problem(path, overwrite))]:
        raise ConfigurationError(*problems)


def real_file(path: Path) -> Path:
    """Target of a link, existing or not; any other path unchanged."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _problem(path: Path, overwrite: bool = True) -> str | None:
    """Reason why ``path`` cannot become a new file; None if it can."""
    try:
        kind = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):  # the folder is left for another check
        return None
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        return f"{path} can't be written: {getattr(error, 'strerror', None) or error}; give another name"
    if stat.S_ISREG(kind):
        return None if overwrite else f"{path} exists already: remove it, or overwrite it with --overwrite"
    what = "a folder" if stat.S_ISDIR(kind) else "a device, pipe or socket"
    return f"{path} is {what}: expected the name of a file"


@contextmanager
def atomic_output(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside ``path``; rename it on success, remove it on any error.

    Parameters
    ----------
    path : Path
        The final name; its folder is created if missing. An existing file is replaced at the end; of a link,
        the target is replaced.

    Yields
    ------
    Path
        The name to write to, in the same folder, hence on the same file system.

    Raises
    ------
    ConfigurationError
        If the folder can't be created or written to, or if ``path`` exists and is not a file.
    """
    if problem := _problem(path):
        raise ConfigurationError(problem)
    path = real_file(path)
    # Hidden, so that a reader of the folder skips a partial file.
    temporary = path.with_name(f".{path.name[:NAME_SHOWN]}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"can't make the folder {path.parent}: {error.strerror}") from error
    if not os.access(path.parent, os.W_OK):
        raise ConfigurationError(f"can't write in the folder {path.parent}: permission denied")
    try:
        yield temporary
        with temporary.open("rb") as written:
            sync_file(written.fileno())  # or, after a loss of power, an empty file has the name
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
