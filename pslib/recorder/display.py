"""Progress display of a run, on a terminal or in a log."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import IO, Any, Protocol

from tqdm import tqdm

from pslib.recorder.status import Status, Window
from pslib.text import behind_text, counted, epoch_text

_SPEAKS_OF_TRAINING = ("training", "done", "failed", "preempted", "interrupted")
PLAIN_EVERY_S = 10.0  # if stderr is a file or a pipe, as in a batch job


class Display(Protocol):
    """Protocol of a progress display."""

    def show(self, status: Status, window: Window, now_s: float) -> None:
        """Show the state of the run at ``now_s`` seconds after its start."""
        ...

    def say(self, text: str) -> None:
        """Write one permanent line."""
        ...

    def close(self) -> None:
        """Leave the terminal in order."""
        ...


def result_text(result: Mapping[str, Any]) -> str:
    """Format one evaluation as a line for people."""
    parts = [f"{result.get('name') or result.get('kind', 'evaluation')}"]
    if "label" in result:
        parts[0] += f" of {result['label']}"
    parts[0] += behind_text(result)
    names = (("auc", "AUC"), ("logloss", "log loss"), ("calibration", "calibration"))
    figures = [f"{said} {short(result.get(name))}" for name, said in names]
    return f"{parts[0]}: {', '.join(figures)} on {counted(int(result.get('examples', 0)), 'example')}"


def short(value: float | None) -> str:
    """Format with four decimals; a dash if undefined."""
    return f"{value:.4f}" if value is not None and math.isfinite(value) else "-"


def _figures_text(status: Status, window: Window) -> str:
    # While a run waits, evaluates or saves, it trains nothing: no speed then, and no loss, whatever the last
    # second's window holds of the training before it.
    trains = status.phase in _SPEAKS_OF_TRAINING
    now = f"{window.examples_per_s:,.0f}/s, " if trains and window.examples_per_s else ""
    now += f"loss {window.loss:.4f}, " if trains and math.isfinite(window.loss) else ""
    # Models that rank have none ever: they predict no clicks.
    now += f"AUC {window.auc_recent:.4f}, " if math.isfinite(window.auc_recent) else ""
    limit = status.table.get("memory_limit_bytes", 0)
    room = f" in {status.memory_bytes / 1e6:,.0f} of {limit / 1e6:,.0f} MB" if limit else ""
    # Servers tell of their rows once a second: none yet says nothing of what the trainers have trained.
    rows = f"{counted(status.rows, 'row')}{room}, " if status.rows else ""
    return (
        f"{now}staleness {status.staleness_mean:.1f}, {rows}"
        f"{status.bytes_sent / 1e6:,.0f} MB out, {status.bytes_received / 1e6:,.0f} MB in"
    )


def _phase_text(status: Status) -> str:
    text = status.phase
    if status.phase == "training" and status.epochs:
        text += f" {epoch_text(status.epoch, status.epochs)}"
    return f"{text}: {status.error}" if status.error else text


_BAR_FORMAT = "{desc} {percentage:3.0f}%|{bar}| {n:,}/{total:,} [{elapsed}<{remaining}{postfix}]"


class _QuietBar(tqdm):  # type: ignore[type-arg]
    monitor_interval = 0  # no monitor thread: updates come twice a second anyway


class _Bar:
    """Progress bar on a terminal."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._bar: _QuietBar | None = None

    def show(self, status: Status, window: Window, now_s: float) -> None:
        total = max(status.examples_total, status.examples, 1)
        if self._bar is None:
            self._bar = _QuietBar(total=total, file=self._stream, dynamic_ncols=True, bar_format=_BAR_FORMAT)
        self._bar.total = total
        self._bar.n = status.examples
        self._bar.set_description_str(_phase_text(status), refresh=False)
        self._bar.set_postfix_str(_figures_text(status, window), refresh=False)
        self._bar.refresh()

    def say(self, text: str) -> None:
        _QuietBar.write(text, file=self._stream)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


class _PlainLines:
    """Log lines: one every 10 s, and one at each change of phase."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._phase = ""
        self._said_s = -math.inf

    def show(self, status: Status, window: Window, now_s: float) -> None:
        phase = _phase_text(status)
        if phase == self._phase and now_s - self._said_s < PLAIN_EVERY_S:
            return
        self._phase, self._said_s = phase, now_s
        text = f"[{now_s:6.1f} s] {phase}"
        if status.examples:
            total = counted(max(status.examples_total, status.examples), "example")
            text += f", {status.examples:,} of {total}, {_figures_text(status, window)}"
        self.say(text)

    def say(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


def is_terminal(stream: IO[str]) -> bool:
    """Return True if lines of a stream can be overwritten: it is a terminal, and no dumb one."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def display_for(stream: IO[str]) -> Display:
    """Choose a progress bar for a terminal, log lines otherwise."""
    return _Bar(stream) if is_terminal(stream) else _PlainLines(stream)
