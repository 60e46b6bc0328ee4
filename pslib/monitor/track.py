"""Track of a run: its state now and its samples so far, made of the statuses that its coordinator gives."""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pslib.data.atomic_files import atomic_output
from pslib.errors import ConfigurationError
from pslib.monitor.run_folder import MONITOR
from pslib.monitor.run_state import basis_of, run_state
from pslib.monitor.samples import Samples

RATES_S = 10.0
"""Time over which rates are taken: some heartbeats of each process, which come every one or two seconds."""

KEEP_S = 10.0
"""Interval of writes of ``monitor.json``."""


def ended(run: Mapping[str, Any], error: str | None, done: bool) -> dict[str, Any]:
    """Return the ``run`` of a state as that of a run that is over."""
    return {**run, "state": "ended" if done else "failed", "error": error, "eta_s": None}


class Track:
    """State and samples of a run.

    Parameters
    ----------
    facts : mapping
        See `pslib.monitor.run_state.FACTS`.
    address : str
        That of the coordinator.

    Attributes
    ----------
    state : dict
        The newest state; replaced by each newer one, never changed.
    number : int
        Number of states so far.
    samples : Samples
    """

    def __init__(self, facts: Mapping[str, Any], address: str = "") -> None:
        version = getattr(sys.modules["pslib"], "__version__", None)
        self._facts, self._address = {"pslib": version, **facts}, address
        self._status: dict[str, Any] = {}
        self._before: deque[dict[str, Any]] = deque()
        self.number, self.samples = 0, Samples()
        self.state = run_state({}, facts=self._facts, address=address)

    def take(self, status: Mapping[str, Any], now_s: float) -> None:
        """Take a status; one without details, as the last of a run may be, leaves those of the one before.

        Parameters
        ----------
        status : mapping
        now_s : float
            Unix time.
        """
        self._status = self._status | dict(status)
        before = self._before
        seconds = float(self._status.get("seconds", 0.0))
        if before and seconds < before[-1]["seconds"]:  # a resumed run
            before.clear()
        while len(before) > 1 and seconds - before[1]["seconds"] >= RATES_S:
            before.popleft()
        then = before[0] if before else None
        state = run_state(self._status, then, now_s, facts=self._facts, address=self._address)
        before.append({"seconds": seconds, **basis_of(self._status)})
        self._replace(state)
        self.samples.add(state)

    def silent(self, silent_s: float, now_s: float) -> None:
        """Note that the coordinator has not answered for some seconds."""
        first, *others = self.state["processes"]
        first = first | {"silent_s": silent_s, "state": "lost"}
        self._replace(self.state | {"now_s": now_s, "processes": [first, *others]})

    def end(self, error: str | None, done: bool) -> None:
        """Mark the run as over: a launcher knows more of the end than its coordinator.

        Its speed is then that of the whole training.
        """
        run, status = self.state["run"], self._status
        fit_s = float(status.get("fit_seconds", 0.0))
        own = int(status.get("examples", 0)) - int(status.get("examples_before", 0))
        run = run | {"examples_per_s": own / fit_s if fit_s else run["examples_per_s"]}
        gone = [
            one | {"silent_s": None, "state": "left" if done and one["state"] == "live" else one["state"]}
            for one in self.state["processes"]
        ]
        self._replace(self.state | {"run": ended(run, error or run["error"], done), "processes": gone})

    def _replace(self, state: dict[str, Any]) -> None:
        self.state = state
        self.number += 1

    def write(self, folder: Path) -> None:
        """Write ``monitor.json`` into a run's folder; a full disk does not end the run.

        It is readable by its owner alone, and complete at any moment.
        """
        text = json.dumps({"state": self.state, "samples": self.samples.plain()})
        with suppress(OSError, ConfigurationError), atomic_output(folder / MONITOR) as draft:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
