"""TensorBoard event files: the figures of ``metrics.jsonl``, written through tensorboardX.

The recorder writes each record, as it calls any callback. ``SummaryWriter`` has a thread of its own, for
which the recorder would wait forever once the disk is full. Steps are examples of the whole training, so a
resumed run continues its curves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from socket import gethostname
from typing import Any

from pslib.clock import utc_now_s
from pslib.errors import ConfigurationError
from pslib.recorder.callback import Callback
from pslib.recorder.records import EVALUATION, FIGURES, RANKINGS

EVENT_FOLDER = "tensorboard"
"""Folder below that of the run."""
VERSION = "brain.Event:2"
"""Version record by which TensorBoard recognises an event file."""
OF_TRAINING = ("loss", "auc", "calibration", "examples_per_s")
NO_CURVES = ("seconds", "epoch", "epochs", "examples", "examples_before", "examples_total")


def check_event_files() -> None:
    """Check that event files can be written, before a run begins.

    Raises
    ------
    ConfigurationError
        If tensorboardX is not installed.
    """
    try:
        import tensorboardX  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            "tensorboard: tensorboardX is not installed; `pip install tensorboardX` brings it"
        ) from error


class TensorBoard(Callback):
    """Callback that writes an event file of each part of a run; other files in its folder are kept."""

    def __init__(self) -> None:
        self.name = EVENT_FOLDER
        self._start_s, self._step = 0.0, 0
        self._records: Any = None

    def on_run_begin(self, trainer: Any, info: Mapping[str, Any]) -> None:
        """Begin a file below the run's folder.

        Raises
        ------
        OSError
            If the file can't be written.
        """
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.record_writer import RecordWriter

        folder = Path(info["folder"]) / EVENT_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        self._start_s, self._step = utc_now_s(), 0
        self.name = str(folder.resolve() / f"events.out.tfevents.{self._start_s:.6f}.{gethostname()}")
        self._records = RecordWriter(self.name)
        self._records.write(Event(wall_time=self._start_s, file_version=VERSION).SerializeToString())

    def on_progress(self, trainer: Any, record: Mapping[str, Any]) -> None:
        """Write the figures of a record; examples that are trained again do not move a curve back.

        Raises
        ------
        OSError
            If the file can't be written.
        """
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import Summary

        self._step = max(self._step, record["examples"])
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in curves(record)]
        wall_s = self._start_s + float(record["seconds"])
        event = Event(wall_time=wall_s, step=self._step, summary=Summary(value=values))
        try:
            self._records.write(event.SerializeToString())
            self._records.flush()
        except OSError:
            with suppress(OSError):  # closing it can't write the rest
                self._records.close()
            raise

    def on_run_end(self, trainer: Any, summary: Mapping[str, Any]) -> None:
        """Close the file."""
        self._records.close()


def curves(line: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield tags and values of the figures in a line."""
    if line["event"] == EVALUATION:
        group = "/".join(part for part in (line["name"], line["label"]) if part)
        at = "" if line["k"] is None else f"@{line['k']}"
        figures = {f"{group}/{name}{at}": line[name] for name in (*FIGURES, *RANKINGS)}
    else:
        groups = {name: "train" if name in OF_TRAINING else "cluster" for name in line}
        figures = {f"{groups[name]}/{name}": value for name, value in line.items() if name not in NO_CURVES}
    for tag, value in figures.items():
        if isinstance(value, int | float):
            yield tag, float(value)
