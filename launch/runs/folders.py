"""Folders of runs: a new run gets one of its own, ``clicks-2`` after ``clicks``; none replaces another."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote

from launch.job.paths import from_here
from launch.job.preflight import RUN_FILES, hold_out, is_held, let_out_go
from launch.supervisor.discovery import can_go_on
from launch.supervisor.run_records import say
from pslib.errors import EXIT_DONE, ConfigurationError
from pslib.monitor.run_folder import NOTE, ended_run


@contextmanager
def folder_of_run(out: Path, overwrite: bool, resume: bool) -> Iterator[Path]:
    """Choose the folder of a run by its ``out``, and say which one where it is another.

    The folder of a new run is made and locked, so that of two launches at once each has its own. If it is
    empty at the end of the context, it is removed.

    Parameters
    ----------
    out : Path
        Folder that the job file or ``--out`` names.
    overwrite : bool
        True to take ``out`` in any case.
    resume : bool
        True for the newest run of that name that is not complete and has something to go on with; without
        one the newest that is not complete, else the newest.

    Raises
    ------
    ConfigurationError
        When the newest run of that name is still running, and a new one is to begin.
    """
    out = Path(os.path.abspath(out))
    taken = _taken(out)
    if overwrite or (resume and not taken):
        yield out
        return
    newest_first = sorted(taken.values(), key=_begun_s, reverse=True)
    if resume:
        yield _resumed(out, newest_first)
        return
    if taken and is_held(newest := newest_first[0]):
        raise ConfigurationError(
            f"out: a run goes on in {newest}: wait for it, stop it (pslib stop {quote(from_here(newest))}), "
            "or give another --out"
        )
    folder, made = _made(out, max(taken, default=0) + 1)
    if folder != out:
        before = f"{from_here(newest)} holds an earlier run" if taken else f"a run begins in {from_here(out)}"
        unfinished = taken and not _is_complete(newest) and can_go_on(newest)
        instead = "; --resume goes on with the earlier one, which is not complete" if unfinished else ""
        say(f"{before}: this one is {from_here(folder)}{instead}")
    try:
        yield folder
    finally:
        let_out_go(folder, made)


def _resumed(out: Path, newest_first: list[Path]) -> Path:
    """Choose the run to go on with; one that is running now is refused later."""
    unfinished = [one for one in newest_first if not _is_complete(one)]
    able = (one for one in unfinished if is_held(one) or can_go_on(one))
    found = next(able, (unfinished or newest_first)[0])
    if found != out:
        say(f"resuming the run in {from_here(found)}")
    return found


def _taken(out: Path) -> dict[int, Path]:
    """Return the folders of this name that hold runs, by their numbers; there may be gaps."""
    named = re.compile(rf"{re.escape(out.name)}(?:-([1-9]\d*))?")
    taken = {}
    with suppress(OSError, ValueError):  # there is no such folder; that of a run is checked later
        for folder in out.parent.iterdir():
            found = named.fullmatch(folder.name)
            if found and any(next(folder.glob(name), None) for name in RUN_FILES):
                taken[int(found[1] or 1)] = folder
    return taken


def _made(out: Path, first: int) -> tuple[Path, list[Path]]:
    """Make and lock the first folder from a number on that no other launch holds; return what is new, too."""
    number = first - 1
    while True:
        number += 1
        folder = out if number == 1 else out.parent / f"{out.name}-{number}"
        missing = [one for one in (folder, *folder.parents) if not os.path.exists(one)]
        try:
            folder.mkdir(0o700, parents=True, exist_ok=True)
            hold_out(folder, resume=False)
        except ConfigurationError:
            continue
        except (OSError, ValueError):  # reported where the folder is prepared, after all other checks
            pass
        return folder, missing


def _begun_s(folder: Path) -> float:
    """Return the time at which the last launch in a folder began; that of the folder where none has."""
    note = folder / "logs" / NOTE
    return (note if note.exists() else folder).stat().st_mtime


def _is_complete(folder: Path) -> bool:
    ended = ended_run(folder)
    return ended is not None and ended.exit_code == EXIT_DONE
