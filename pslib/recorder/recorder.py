"""Run recorder: derives progress lines, summary and chart from cumulative counters.

It keeps no counters of its own. A window is the difference of two observations, so a late or missing
observation loses nothing.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from pslib.clock import Clock, utc_now_s
from pslib.coordinator.results import fresh_results
from pslib.data.atomic_files import atomic_output
from pslib.process.machine import process_began_s
from pslib.recorder.callback import Callback, RunCallbacks
from pslib.recorder.display import Display, display_for, result_text
from pslib.recorder.environment import environment
from pslib.recorder.history import EVERY_S, History, history_of
from pslib.recorder.picture import picture
from pslib.recorder.records import PROGRESS, Record, evaluation_records
from pslib.recorder.status import NO_WINDOW, Status, WindowMeter, bins_of
from pslib.text import json_value, short

log = logging.getLogger(__name__)

ENDS = ("done", "failed")
"""Final phases: the next call is `RunRecorder.finish`, which shows them with the last figures."""


class RunRecorder:
    """Record a run and display its progress.

    Parameters
    ----------
    out : Path or None
        Folder for ``metrics.jsonl`` (overwritten), ``summary.json`` and ``run.png``; None writes no file.
    clock : Clock
        Seconds count from the construction of the recorder.
    progress : bool
        Show a bar on ``stream``, or a line every 10 s if it is not a terminal.
    stream : text file, optional
        Default: standard error.
    earlier : sequence of Path
        ``metrics.jsonl`` of earlier launches of the run, for ``run.png``.
    callbacks : sequence of Callback
        Their methods of a run are called.
    about : mapping
        Facts of the run that the caller knows, for `Callback.on_run_begin`.
    trainer : callable
        Returns what the callbacks get as ``trainer``.

    Notes
    -----
    ``metrics.jsonl`` has one flat JSON object per line with the columns of `Record`, null where one is
    undefined: progress, at most one a second and at the end of each epoch, and each evaluation. Lines of
    progress also have phase, epochs, examples_total, examples_before of an earlier run that this one
    continues, staleness, pushes, bytes, rows and `TABLE_COUNTERS`.

    Examples
    --------
    >>> recorder = RunRecorder(None, SystemClock(), progress=False)  # doctest: +SKIP
    >>> recorder.observe({"phase": "training", "examples": 1_000, "loss_sum": 500.0})  # doctest: +SKIP
    >>> recorder.finish({"seed": 1})["examples"]  # doctest: +SKIP
    1000
    """

    def __init__(
        self,
        out: Path | None,
        clock: Clock,
        *,
        progress: bool = True,
        stream: IO[str] | None = None,
        earlier: Sequence[Path] = (),
        callbacks: Sequence[Callback] = (),
        about: Mapping[str, Any] | None = None,
        trainer: Callable[[], Any] = lambda: None,
    ) -> None:
        self._out, self._earlier = out, earlier
        self._clock = clock
        self._stream = stream if stream is not None else sys.stderr
        self._start_s = clock.now_s()
        self._status = Status()
        self._line_status, self._line_s = Status(), 0.0
        self._meter, self._window = WindowMeter(), NO_WINDOW
        self._training_s = 0.0
        self._seen_s, self._observed = 0.0, False
        self._results_seen = 0
        self._history, self._kept_s = History(), -math.inf
        self._lines: IO[str] | None = None
        self._callbacks, self._ended = RunCallbacks(callbacks, trainer), False
        self._events_told: set[object] = set()
        self._process_began_s = process_began_s()
        self.written: dict[str, Any] | None = None
        """Content of ``summary.json``, once it is written."""
        if out is not None:
            out.mkdir(0o700, parents=True, exist_ok=True)
            self._lines = (out / "metrics.jsonl").open("w", encoding="utf-8")
        self._display: Display | None = display_for(self._stream, self._history) if progress else None
        known: dict[str, Any] = {"name": None, "run_id": None, "settings": {}, **(about or {})}
        self._callbacks.call("on_run_begin", {**known, "folder": None if out is None else str(out)})

    def __enter__(self) -> RunRecorder:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def observe(self, status: Mapping[str, Any]) -> None:
        """Observe a run; call it about twice a second.

        Parameters
        ----------
        status : mapping
            Cumulative counters since the run began: phase, model, epoch, epochs, examples_total, examples
            (these four of the whole training), examples_before (of these, trained by an earlier run),
            loss_sum, loss_examples (number of examples in that sum; default: examples), bins_positive and
            bins_negative (512 counts of `LogitBins`), staleness_sum, staleness_count, staleness_max,
            between_sum, between_count, between_max, pushes_sent, pushes_applied, updates_sent,
            updates_applied, rows, memory_bytes, bytes_sent, bytes_received, servers, trainers, parameters,
            `TABLE_COUNTERS`, results (a growing list, or its end: results_before is the number left out),
            error. A missing counter is zero. A counter that falls is ignored until it grows again; if
            examples fall they are trained again, and do not count as speed.
        """
        now_s = self._clock.now_s() - self._start_s
        before, self._status = self._status, Status.of(status)
        if before.phase == "training":
            self._training_s += now_s - self._seen_s
        self._seen_s = now_s
        epoch_ends = self._observed and self._status.epoch > before.epoch
        if now_s - self._line_s >= EVERY_S or epoch_ends:
            self._write_progress(now_s)
        self._take_results(now_s)
        if self._callbacks:
            self._tell_events(before, status)
        self._observed = True
        if self._display and status.get("phase") not in ENDS:
            self._display.show(self._status, self._window, now_s)

    def finish(self, summary: Mapping[str, Any]) -> dict[str, Any]:
        """End the run: write the last line, ``summary.json`` and ``run.png``, and close the bar.

        Parameters
        ----------
        summary : mapping
            Figures of the caller, such as ``seed``; they override those of the last observation.

        Returns
        -------
        dict
            Content of ``summary.json`` (None for an undefined figure).
        """
        now_s = self._clock.now_s() - self._start_s
        if self._status.phase == "training":
            self._training_s += now_s - self._seen_s
            self._seen_s = now_s
        told = bool(len(self._history)) and self._line_s == self._seen_s
        self._status = replace(self._status, phase=str(summary.get("phase", self._status.phase)))
        if not told or self._line_status.phase != self._status.phase:
            self._write_progress(now_s)
        if self._display:
            error = None if "error" in summary else self._status.error  # the caller has reported it
            self._display.show(replace(self._status, error=error), self._window, now_s)
        whole: dict[str, Any] = json_value({**self._summary(now_s), **summary})
        self._close_files()
        try:
            if self._out is not None:
                with atomic_output(self._out / "summary.json") as path:
                    path.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
                self.written = whole
                self._draw(self._out / "run.png", whole)
        finally:  # a full disk ends no tracker
            self._end(whole)
        return whole

    def close(self) -> None:
        """Close the bar and ``metrics.jsonl``; `finish` does so too; idempotent."""
        self._close_files()
        self._end({"phase": self._status.phase})

    def _close_files(self) -> None:
        if self._display:
            self._display.close()
            self._display = None
        if self._lines:
            self._lines.close()
            self._lines = None

    def _end(self, summary: Mapping[str, Any]) -> None:
        if not self._ended:
            self._ended = True
            self._callbacks.call("on_run_end", summary)

    def _write(self, line: Mapping[str, Any]) -> None:
        plain = json_value(line)
        if self._lines and not _is_written(self._lines, plain):
            self._lines = None
        self._callbacks.call("on_progress", plain)

    def _tell_events(self, before: Status, status: Mapping[str, Any]) -> None:
        """Call back for what has happened since the last look: epochs and checkpoints are seen here.

        A resumed coordinator still knows the events of earlier processes, which are not told again.
        """
        now, found = self._status, list[dict[str, Any]]()
        for one in status.get("events", ()):
            event = dict(one) if isinstance(one, Mapping) else {"kind": "note", "text": one}
            if "number" in event:
                key, old = event["number"], event.get("at_s", math.inf) < self._process_began_s
            else:  # a line has no time: those of the first look are the old ones
                key, old = event["text"], not self._observed
            if not (old or key in self._events_told or event["kind"] in ("epoch", "saved")):
                found.append(event)
            self._events_told.add(key)
        if self._observed and now.epoch > before.epoch:
            loss, auc = short(self._window.loss), short(self._window.auc_recent)
            text = f"epoch {now.epoch} of {max(now.epochs, now.epoch)} is done: loss {loss}, AUC {auc}"
            found.append({"kind": "epoch", "epoch": now.epoch, "text": text})
        if self._observed and now.saved and now.saved != before.saved:
            found.append({"kind": "saved", "path": now.saved, "text": f"saved {now.saved}"})
        for event in found:
            plain = {"at_s": utc_now_s(), "role": None, "rank": None, **event}
            self._callbacks.call("on_event", json_value(plain))

    def _write_progress(self, now_s: float) -> None:
        status, window = self._status, self._meter.look(self._status, now_s)
        record = Record(
            event=PROGRESS,
            seconds=round(now_s, 3),
            epoch=status.epoch,
            examples=status.examples,
            examples_per_s=round(window.examples_per_s, 1),
            loss=window.loss,
            auc=window.auc_recent,
            calibration=window.calibration,
        )
        self._write({**record.plain(), **_cluster_figures(status)})
        if now_s - self._kept_s >= self._history.every_s / 2:
            self._history.add(record)
            self._kept_s = now_s
        # Trainers report losses about as often as lines come: a line between two reports shows the last one.
        if not math.isfinite(window.loss):
            window = replace(window, loss=self._window.loss)
        # The last line may come right after the one before: a speed over so little says nothing.
        if self._line_s and now_s - self._line_s < EVERY_S / 2:
            window = replace(window, examples_per_s=self._window.examples_per_s)
        self._window = window
        self._line_status, self._line_s = status, now_s

    def _take_results(self, now_s: float) -> None:
        status = self._status
        fresh, self._results_seen = fresh_results(status.results, status.results_before, self._results_seen)
        for result in fresh:
            for record in evaluation_records(
                result,
                seconds=round(now_s, 3),
                epoch=status.epoch,
                examples=status.examples,
                loss=self._window.loss,
            ):
                self._history.add(record)
                self._write(record.plain())
            if self._display and "at" not in result:  # the launcher tells of rankings
                self._display.say(result_text(result))

    def _summary(self, now_s: float) -> dict[str, Any]:
        status = self._status
        result: Mapping[str, Any] = next((one for one in reversed(status.results) if "auc" in one), {})
        return {
            "job": None,
            "model": status.model,
            "phase": status.phase,
            "auc": result.get("auc"),
            "logloss": result.get("logloss"),
            "calibration": result.get("calibration"),
            "auc_progressive": bins_of(status.bins_positive, status.bins_negative).auc(),
            "examples": status.examples,
            "examples_before": status.examples_before,
            "seconds": round(now_s, 3),
            "training_seconds": round(self._training_s, 3),
            "examples_per_s": status.examples_own / self._training_s if self._training_s else 0.0,
            "epochs": status.epoch,  # epochs trained: a fit may have stopped early
            "servers": status.servers,
            "trainers": status.trainers,
            "rows": status.rows,
            "parameters": status.parameters,
            "memory_bytes": status.memory_bytes,
            **status.table,
            "pushes_sent": status.pushes_sent,
            "pushes_applied": status.pushes_applied,
            "updates_sent": status.updates_sent,
            "updates_applied": status.updates_applied,
            "bytes_sent": status.bytes_sent,
            "bytes_received": status.bytes_received,
            "staleness_mean": status.staleness_mean,
            "staleness_max": status.staleness_max,
            "pushes_between_mean": status.pushes_between_mean,
            "pushes_between_max": status.between_max,
            "seed": None,
            "error": status.error,
            "environment": environment(),
        }

    def _draw(self, path: Path, summary: Mapping[str, Any]) -> None:
        launches = [*map(history_of, self._earlier), self._history]
        try:
            figure = picture([one.records for one in launches], summary)
            with atomic_output(path) as temporary:
                figure.savefig(temporary, format="png")
        except ImportError:
            self._stream.write(
                "no run.png: matplotlib is not installed; `pip install matplotlib` brings it\n"
            )
        except Exception as error:  # whatever a broken matplotlib raises: the run is done
            line = f"{type(error).__name__}: {error}".splitlines()[0]
            self._stream.write(f"no run.png: {line}; `pip install --force-reinstall matplotlib`\n")


def _cluster_figures(status: Status) -> dict[str, Any]:
    """Return the columns of a progress line that are of the whole cluster."""
    return {
        "phase": status.phase,
        "epochs": status.epochs,
        "examples_before": status.examples_before,
        "examples_total": status.examples_total,
        "staleness_mean": status.staleness_mean,
        "staleness_max": status.staleness_max,
        "pushes_between_mean": status.pushes_between_mean,
        "pushes_between_max": status.between_max,
        "pushes_sent": status.pushes_sent,
        "pushes_applied": status.pushes_applied,
        "updates_sent": status.updates_sent,
        "updates_applied": status.updates_applied,
        "rows": status.rows,
        "memory_bytes": status.memory_bytes,
        **status.table,
        "bytes_sent": status.bytes_sent,
        "bytes_received": status.bytes_received,
        "servers": status.servers,
        "trainers": status.trainers,
        **({"error": status.error} if status.error else {}),
    }


def _is_written(file: IO[str], line: Mapping[str, Any]) -> bool:
    """Write a line, or log that the file ends: a full disk must not stop the training."""
    try:
        file.write(json.dumps(line) + "\n")
        file.flush()
    except OSError as error:
        log.warning("pslib: %s: %s; it ends here, the run goes on", file.name, error.strerror or error)
        with suppress(OSError):  # closing it can't write the rest
            file.close()
        return False
    return True
