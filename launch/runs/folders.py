"""Folders of runs: a new run gets one of its own, ``clicks-2`` after ``clicks``; none replaces another."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

from launch.job.paths import from_here
from launch.job.preflight import RUN_FILES, is_held
from launch.supervisor.discovery import NOTE, ended_run
from launch.supervisor.run_records import say
from pslib.errors import EXIT_DONE, ConfigurationError


def folder_of_run(out: Path, overwrite: bool, resume: bool) -> Path:
    """Choose the folder of a run by its ``out``, and say which one where it is another.

    Parameters
    ----------
    out : Path
        Folder that the job file or ``--out`` names.
    overwrite : bool
        True to take ``out`` in any case.
    resume : bool
        True for the newest run of that name that is not complete, else the newest one.

    Raises
    ------
    ConfigurationError
        When the newest run of that name is still running, and a new one is to begin.
    """
    taken = list(_taken(out))
    if overwrite or not taken:
        return out
    newest_first = sorted(taken, key=_begun_s, reverse=True)
    if resume:
        unfinished = (one for one in newest_first if not _is_complete(one))
        found = next(unfinished, newest_first[0])
        if found != out:
            say(f"resuming the run in {from_here(found)}")
        return found
    newest = newest_first[0]
    if is_held(newest):
        raise ConfigurationError(
            f"out: a run goes on in {newest}: wait for it, stop it (pslib stop {quote(from_here(newest))}), "
            "or give another --out"
        )
    free = _numbered(out, len(taken) + 1)
    say(f"{from_here(newest)} holds an earlier run: this one is {from_here(free)}")
    return free


def _taken(out: Path) -> Iterator[Path]:
    """Yield the folders of this name that hold runs, up to the first number that is free."""
    for number in itertools.count(1):
        folder = _numbered(out, number)
        if not any(next(folder.glob(name), None) for name in RUN_FILES):
            return
        yield folder


def _numbered(out: Path, number: int) -> Path:
    return out if number == 1 else out.with_name(f"{out.name}-{number}")


def _begun_s(folder: Path) -> float:
    """Return the time at which the last launch in a folder began; that of the folder where none has."""
    note = folder / "logs" / NOTE
    return (note if note.exists() else folder).stat().st_mtime


def _is_complete(folder: Path) -> bool:
    ended = ended_run(folder)
    return ended is not None and ended.exit_code == EXIT_DONE
