"""Progress display of a run: on a terminal, in a notebook, or in a log."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from importlib import import_module
from typing import IO, Any, Protocol

from pslib.recorder.history import History
from pslib.recorder.status import Status, Window
from pslib.recorder.svg_charts import chart, panels
from pslib.text import behind_text, counted, epoch_text, short

_SPEAKS_OF_TRAINING = ("training", "done", "failed", "preempted", "interrupted")
PLAIN_EVERY_S = 10.0  # if stderr is a file or a pipe, as in a batch job
NOTEBOOK_EVERY_S = 1.0
RECORDS_A_SECOND = 1000  # a drawing of 4,000 takes 56 ms, once in 4 s then


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


def _figures(status: Status, window: Window, eta_s: float | None) -> list[str]:
    """Return the figures of a run, always the same ones in the same order; a dash is one that is undefined.

    While a run waits, evaluates or saves, it trains nothing: no speed then, and no loss, whatever the last
    second's window holds of the training before it. Models that rank have no AUC: they predict no clicks.
    """
    trains = status.phase in _SPEAKS_OF_TRAINING
    limit = status.table.get("memory_limit_bytes", 0)
    room = f" in {status.memory_bytes / 1e6:,.0f} of {limit / 1e6:,.0f} MB" if limit else ""
    return [
        f"{window.examples_per_s:,.0f}/s" if trains and window.examples_per_s else "-/s",
        f"ETA {duration_text(eta_s)}",
        f"loss {short(window.loss if trains else None)}",
        f"AUC {short(window.auc_recent)}",
        f"staleness {status.staleness_mean:.1f}",
        f"{counted(status.rows, 'row')}{room}"
        if status.rows
        else "- rows",  # servers tell of them a bit later
        f"{status.bytes_sent / 1e6:,.0f} MB out",
        f"{status.bytes_received / 1e6:,.0f} MB in",
    ]


def duration_text(seconds: float | None) -> str:
    """Format seconds as ``1:02:03`` or ``2:03``; a dash if undefined."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class _Eta:
    """Time to the end of the training, at the mean speed since this run began to train."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None

    def seconds(self, status: Status, now_s: float) -> float | None:
        """Return the seconds left; None if unknown."""
        if not status.examples_own:
            return None
        if self._first is None:
            self._first = now_s, status.examples
        passed_s, examples = now_s - self._first[0], status.examples - self._first[1]
        left = status.examples_total - status.examples
        return left * passed_s / examples if examples > 0 and left > 0 else None


def _phase_text(status: Status) -> str:
    text = status.phase
    if status.phase == "training" and status.epochs:
        text += f" {epoch_text(status.epoch, status.epochs)}"
    return f"{text}: {status.error}" if status.error else text


def resumed_text(status: Status) -> str:
    """Describe where a run that continues an earlier one begins; empty for one that does not."""
    before, planned = status.examples_before, status.examples_total
    if not before:
        return ""
    an_epoch = planned // status.epochs if status.epochs else 0
    if not an_epoch:
        return f"resumed at example {before:,}"
    return f"resumed at example {before % an_epoch:,} of epoch {before // an_epoch + 1}"


class _Resumption:
    """Line on where a resumed run begins, given once."""

    def __init__(self) -> None:
        self._told = False

    def news(self, status: Status) -> str:
        """Return the line as the training begins, empty at all other times."""
        if self._told or status.phase != "training":
            return ""
        self._told = True
        return resumed_text(status)


class _Block:
    """Block on a terminal that is drawn again in place: a bar, and below it the figures."""

    def __init__(self, stream: IO[str]) -> None:
        from rich.console import Console
        from rich.live import Live

        self._eta, self._resumption = _Eta(), _Resumption()
        # Lines of others appear above the block; a script's, if they come to this terminal at all.
        self._live = Live(
            console=Console(file=stream, soft_wrap=True),
            auto_refresh=False,
            redirect_stdout=sys.stdout.isatty(),
        )
        self._live.start()

    def show(self, status: Status, window: Window, now_s: float) -> None:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        if text := self._resumption.news(status):
            self.say(text)
        total = max(status.examples_total, status.examples, 1)
        line = Table.grid(padding=(0, 1), expand=True)
        line.add_column(no_wrap=True)
        line.add_column(ratio=1)
        line.add_column(no_wrap=True)
        done = f"{status.examples / total:4.0%}  {status.examples:,}/{total:,}  {duration_text(now_s)}"
        line.add_row(Text(_phase_text(status)), ProgressBar(total, status.examples), done)
        figures = _figures(status, window, self._eta.seconds(status, now_s))
        self._live.update(Group(line, Text("  ".join(figures), style="dim")), refresh=True)

    def say(self, text: str) -> None:
        self._live.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        self._live.stop()


class _PlainLines:
    """Log lines: one every 10 s, and one at each change of phase, with its speed when a training ends."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._eta, self._resumption = _Eta(), _Resumption()
        self._phase = ""
        self._said_s = -math.inf
        self._told = 0  # examples at the last line with a speed

    def show(self, status: Status, window: Window, now_s: float) -> None:
        if text := self._resumption.news(status):
            self.say(text)
        phase, eta_s = _phase_text(status), self._eta.seconds(status, now_s)
        if phase == self._phase and now_s - self._said_s < PLAIN_EVERY_S:
            return
        ends = self._phase.startswith("training") and status.phase not in _SPEAKS_OF_TRAINING
        before, self._phase, self._said_s = self._phase, phase, now_s
        if ends and status.examples > self._told:
            ended = phase if phase.startswith("epoch") else f"{before} is done"
            self._say(ended, replace(status, phase="training"), window, eta_s, now_s)
            if ended != phase:
                self.say(f"[{now_s:6.1f} s] {phase}")
        else:
            self._say(phase, status, window, eta_s, now_s)

    def _say(self, phase: str, status: Status, window: Window, eta_s: float | None, now_s: float) -> None:
        text = f"[{now_s:6.1f} s] {phase}"
        self._told = status.examples if window.examples_per_s else 0
        if status.examples:
            total = counted(max(status.examples_total, status.examples), "example")
            text += ", ".join(["", f"{status.examples:,} of {total}", *_figures(status, window, eta_s)])
        self.say(text)

    def say(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class _Notebook:
    """Block below the cell of a notebook that trains: figures and charts, drawn again in place.

    The recorder's thread draws it. Each cell that trains has a block of its own, which keeps its last state
    in the notebook's file; where no HTML is shown it is a line of text.
    """

    def __init__(self, stream: IO[str], history: History, shell: Any) -> None:
        self._stream, self._history, self._shell = stream, history, shell
        self._eta, self._resumption = _Eta(), _Resumption()
        self._cell: Any = None
        self._block: Any = None
        self._phase, self._drawn_s = "", -math.inf

    def show(self, status: Status, window: Window, now_s: float) -> None:
        if text := self._resumption.news(status):
            self.say(text)
        phase, eta_s = _phase_text(status), self._eta.seconds(status, now_s)
        if status.phase == "training" and self._shell.execution_count != self._cell:
            self._cell, self._block, self._drawn_s = self._shell.execution_count, None, -math.inf
        if self._cell is None or (phase == self._phase and now_s - self._drawn_s < self._every_s(status)):
            return
        self._phase, self._drawn_s = phase, now_s
        figures = _figures(status, window, eta_s)
        total = max(status.examples_total, status.examples, 1)
        done = f"{phase}: {status.examples:,} of {counted(total, 'example')} in {duration_text(now_s)}"
        self._draw(
            {"text/plain": ", ".join([done, *figures]), "text/html": self._html(status, done, figures)}
        )

    def _every_s(self, status: Status) -> float:
        """Return the interval of drawing: a long history takes longer, and a run that waits is drawn once."""
        if status.phase != "training":
            return math.inf
        return max(NOTEBOOK_EVERY_S, len(self._history) / RECORDS_A_SECOND)

    def _html(self, status: Status, done: str, figures: Sequence[str]) -> str:
        total = max(status.examples_total, status.examples, 1)
        charts = "".join(
            f'<div style="flex:1 1 300px;max-width:480px">{chart(title, curves)}</div>'
            for title, curves in panels([("training", self._history.records)]).items()
        )
        cells = "".join(f"<td>{escape(figure)}</td>" for figure in figures)
        return (
            f'<div>{escape(done)} <progress max="{total}" value="{status.examples}"></progress></div>'
            f'<table><tr>{cells}</tr></table><div style="display:flex;flex-wrap:wrap">{charts}</div>'
        )

    def _draw(self, bundle: Mapping[str, str]) -> None:
        if self._block is None:
            display = import_module("IPython.display").display  # types that not every machine has
            self._block = display(bundle, raw=True, display_id=True)
        else:
            self._block.update(bundle, raw=True)

    def say(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Do nothing: the block stays."""


def notebook_shell() -> Any:
    """Return IPython's shell if this process is the kernel of a notebook; None elsewhere."""
    known = sys.modules.get("IPython")  # a kernel has imported it
    shell = known.get_ipython() if known else None
    return shell if getattr(shell, "kernel", None) is not None else None


def is_terminal(stream: IO[str]) -> bool:
    """Return True if lines of a stream can be overwritten: it is a terminal, and no dumb one."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def display_for(stream: IO[str], history: History) -> Display:
    """Choose a block for a terminal, one with charts of the history for a notebook, log lines otherwise."""
    if stream is sys.stderr and (shell := notebook_shell()):
        return _Notebook(stream, history, shell)
    return _Block(stream) if is_terminal(stream) else _PlainLines(stream)
