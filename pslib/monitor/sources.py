"""Sources of a run's state: a cluster that runs, or the files of a run that has ended."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pslib.clock import Clock, SystemClock, utc_now_s, utc_text
from pslib.coordinator.events import EVENTS_KEPT
from pslib.errors import EXIT_DONE, ConfigurationError, PslibError, UnavailableError
from pslib.monitor.run_folder import (
    MONITOR,
    NOTE,
    SUMMARY,
    cluster_at,
    ended_run,
    read_record,
)
from pslib.monitor.run_state import FORMAT, run_state
from pslib.monitor.samples import Samples
from pslib.monitor.track import KEEP_S, Track, ended
from pslib.text import one_line

if TYPE_CHECKING:
    from pslib.transport import Keys

log = logging.getLogger(__name__)
POLL_S = 1.0
"""Interval of statuses: heartbeats come as often."""

DUMP_S = 15.0
"""Wait for the stacks of a process, which it sends with one of its next heartbeats."""

ANSWER_S = 3.0
"""Wait for the coordinator's first answer."""


class Watching(Protocol):
    """Part of `pslib.cluster.Watcher` that a `LiveRun` calls."""

    def status(self, timeout_s: float = ANSWER_S, *, details: bool = False) -> dict[str, Any]:
        """Return the status."""
        ...

    def events(self, after: int) -> dict[str, Any]:
        """Return the events after a number, and that of the last."""
        ...

    def stacks(self, role: str, rank: int, timeout_s: float = DUMP_S) -> str:
        """Return the stacks of a process."""
        ...

    def close(self) -> None:
        """Stop watching."""
        ...


class LiveRun:
    """Source of a running cluster: a thread asks its coordinator each second.

    Parameters
    ----------
    watcher : Watching
        Closed with this source.
    facts : mapping
        See `pslib.monitor.run_state.FACTS`.
    address : str
        That of the coordinator.
    folder : Path or None
        Folder of the run, whose files tell of its end when the coordinator has gone.
    keeps : bool
        True in the process that has the run: it writes ``monitor.json`` into the folder, if there is one,
        and does not wait for the first status.

    Raises
    ------
    PslibError
        If the coordinator does not answer, or refuses.
    """

    def __init__(
        self,
        watcher: Watching,
        facts: Mapping[str, Any] | None = None,
        address: str = "",
        folder: Path | None = None,
        keeps: bool = False,
    ) -> None:
        self._watcher, self._folder, self._keeps = watcher, folder, keeps
        self._clock: Clock = SystemClock()
        self._track = Track(facts or {}, address)
        self._events: list[dict[str, Any]] = []
        self._turn = threading.Condition()
        self._over, self._told = threading.Event(), False
        self._heard_s, self._kept_s = self._clock.now_s(), self._clock.now_s() - KEEP_S
        if not keeps:
            self._look()
        self._thread = threading.Thread(target=self._poll, name="pslib-monitor", daemon=True)
        self._thread.start()

    def state(self) -> dict[str, Any]:
        """Return the newest state."""
        return self._track.state

    def samples(self) -> dict[str, Any]:
        """Return the samples of the run so far; see `Samples.plain`."""
        with self._turn:
            return self._track.samples.plain()

    def changed(self, number: int, timeout_s: float) -> int:
        """Wait until there is a newer state than that with a number; return the number of the newest."""
        with self._turn:
            self._turn.wait_for(lambda: self._track.number > number or self._over.is_set(), timeout_s)
            return self._track.number

    def dump(self, role: str, rank: int) -> str:
        """Return the stacks of a process, or raise a PslibError in one line."""
        return self._watcher.stacks(role, rank, DUMP_S)

    def close(self) -> None:
        """Stop asking."""
        if self._over.is_set():
            return
        self._over.set()
        with self._turn:
            self._turn.notify_all()
        self._watcher.close()  # ends the thread's wait for an answer
        self._thread.join(5.0)

    def finish(self, status: Mapping[str, Any], error: str | None, done: bool) -> None:
        """Close, and write the last state with the last status of a run that is over, and its events."""
        self.close()
        with self._turn:
            self._track.take(dict(status), utc_now_s())
            self._track.end(error, done)
            self._turn.notify_all()
        if self._keeps and self._folder is not None:
            self._track.write(self._folder)

    def _poll(self) -> None:
        pause_s = 0.0 if self._keeps else POLL_S
        while not self._over.wait(pause_s):
            pause_s = POLL_S
            try:
                self._look()
            except Exception as error:  # a thread that ends would leave an old state as the present one
                if self._over.is_set():
                    return
                if not isinstance(error, PslibError) and not self._told:
                    self._told = True  # it may come each second
                    log.warning("no state of the run: %s: %s", type(error).__name__, one_line(error))
                self._miss()

    def _look(self) -> None:
        """Ask for a status and the events since the last, and take them."""
        status = self._watcher.status(ANSWER_S, details=True)
        status["event_log"] = self._events = self._news()
        with self._turn:
            self._track.take(status, utc_now_s())
            self._turn.notify_all()
        self._heard_s = self._clock.now_s()
        if self._keeps and self._folder is not None and self._heard_s - self._kept_s >= KEEP_S:
            self._kept_s = self._heard_s
            self._track.write(self._folder)

    def _news(self) -> list[dict[str, Any]]:
        after = self._events[-1]["number"] if self._events else 0
        answer = self._watcher.events(after)
        if answer["last"] < after:  # a coordinator without the journal of the one before
            self._events, answer = [], self._watcher.events(0)
        return [*self._events, *answer["events"]][-EVENTS_KEPT:]

    def _miss(self) -> None:
        """Note that the coordinator does not answer: it is silent, or the run is over."""
        end = None if self._folder is None or self._keeps else ended_run(self._folder)
        with self._turn:
            if end is not None and self._track.state["run"]["state"] == "running":
                self._track.end(end.error, end.exit_code == EXIT_DONE)
            elif self._track.state["run"]["state"] == "running":
                self._track.silent(self._clock.now_s() - self._heard_s, utc_now_s())
            self._turn.notify_all()


class EndedRun:
    """Source of the files of a run, which another process may still write: a script without a launcher does.

    Parameters
    ----------
    folder : Path
    error : str or None
        Why the run counts as failed, where its files do not say it.

    Raises
    ------
    ConfigurationError
        If the folder has neither ``monitor.json`` nor ``summary.json`` of a run.
    """

    def __init__(self, folder: Path, error: str | None = None) -> None:
        self._folder, self._error = folder, error
        self._clock: Clock = SystemClock()
        self._turn, self._closed = threading.Condition(), False
        self._written: tuple[float, ...] = ()
        self._number = 0
        self._state: dict[str, Any] = {}
        self._samples = Samples()
        if not self._read():
            raise ConfigurationError(
                f"{folder}: expected the folder of a run, with {MONITOR} or {SUMMARY}, found neither"
            )

    def state(self) -> dict[str, Any]:
        """Return the last state."""
        return self._state

    def samples(self) -> dict[str, Any]:
        """Return the samples; see `Samples.plain`."""
        return self._samples.plain()

    def changed(self, number: int, timeout_s: float) -> int:
        """Wait until the files have changed; return the number of the newest state."""
        until_s = self._clock.now_s() + timeout_s
        with self._turn:
            while self._number <= number and not self._closed:
                left_s = until_s - self._clock.now_s()
                if self._read() or left_s <= 0:
                    break
                self._turn.wait(min(left_s, POLL_S))
            return self._number

    def dump(self, role: str, rank: int) -> str:
        """Refuse: the processes are gone, or out of reach.

        Raises
        ------
        UnavailableError
        """
        raise UnavailableError(
            f"{self._folder}: expected a run with a coordinator to ask for stacks, got files"
        )

    def close(self) -> None:
        """End all waits."""
        with self._turn:
            self._closed = True
            self._turn.notify_all()

    def _read(self) -> bool:
        """Read the files if they have changed; return whether there is a new state."""
        files = [self._folder / name for name in (MONITOR, SUMMARY)]
        written = tuple(_changed_s(file) for file in files)
        if written == self._written:
            return False
        self._written = written
        recorded, summary = map(read_record, files)
        state: Any = recorded.get("state")
        samples = recorded.get("samples")
        facts = {"name": self._folder.name, "folder": str(self._folder)}
        if not _is_like(state, run_state({})) or state["format"] != FORMAT:
            try:
                state = run_state(summary, facts=facts)
            except (TypeError, ValueError, LookupError, OverflowError):  # pslib has not written it
                return False
            if not summary:
                return False
        self._state, self._number = self._ended(state), self._number + 1
        self._samples = Samples.of(samples if isinstance(samples, dict) else {})
        return True

    def _ended(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return a state with the end of the run, where the files or the caller know it."""
        end = ended_run(self._folder)
        if end is None and not self._error:
            return state
        error, done = (self._error, False) if end is None else (end.error, end.exit_code == EXIT_DONE)
        return state | {"run": ended(state["run"], error, done)}


def _is_like(value: Any, pattern: Any) -> bool:
    """Return whether a value of a file can be read as the pattern can: where that is None, it may be any."""
    if isinstance(pattern, dict):
        known = isinstance(value, dict) and value.keys() >= pattern.keys()
        return known and all(_is_like(value[name], one) for name, one in pattern.items())
    if isinstance(pattern, list):
        return isinstance(value, list) and all(_is_like(one, first) for first in pattern[:1] for one in value)
    if isinstance(pattern, int | float):
        return value is None or isinstance(value, int | float)
    return pattern is None or isinstance(value, type(pattern))


def _changed_s(file: Path) -> float:
    with suppress(OSError):
        return file.stat().st_mtime
    return 0.0


def open_run(run: str, cluster_id: str | None = None, keys: Keys | str | None = None) -> LiveRun | EndedRun:
    """Open a run: the folder of one that runs or has ended, or the address of a coordinator.

    Parameters
    ----------
    run : str
        As for ``pslib doctor``.
    cluster_id : str or None
        For an address.
    keys : Keys, str or None
        As for `pslib.cluster.watch`.

    Raises
    ------
    ConfigurationError
        If there is no run.
    UnavailableError
        If nothing answers at an address, or the run's folder does not tell how it has ended.
    AccessError
        If the key is refused.
    """
    from pslib.cluster import watch

    folder = None if "://" in run else _folder_of(Path(run))
    if folder is not None and (ended_run(folder) or not (folder / "logs" / NOTE).exists()):
        if not folder.is_dir() or not any((folder / name).exists() for name in (MONITOR, SUMMARY)):
            cluster_at(run, cluster_id)  # its refusal says what is expected
        return EndedRun(folder)
    address, found_id = cluster_at(run, cluster_id)
    facts = {"name": folder.name if folder else found_id, "cluster_id": found_id}
    facts |= {"folder": str(folder)} if folder else {}
    watcher = watch(address, found_id, keys)
    try:
        return LiveRun(watcher, facts, address, folder)
    except UnavailableError as error:
        watcher.close()
        gone = f"the coordinator at {address} does not answer"
        if folder is None or not (folder / MONITOR).exists():
            raise UnavailableError(f"{run}: {gone}: {error}; look at its logs") from error
        at = utc_text((folder / MONITOR).stat().st_mtime)
        return EndedRun(folder, f"{gone}; this is its state of {at}")
    except BaseException:
        watcher.close()
        raise


def _folder_of(path: Path) -> Path:
    """Return the folder of a run, given that or the folder of its logs."""
    folder = path.absolute()
    return folder.parent if (folder / NOTE).exists() else folder
