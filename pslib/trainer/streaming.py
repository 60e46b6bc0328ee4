"""Streaming training: files that arrive in a folder are predicted, then trained on, once.

Each window of files is three collective calls: ``window`` finds the files (one trainer looks, the outcome
tells the others), ``evaluate`` predicts them with the parameters so far, ``fit`` trains on them. The contents
of a window are recorded like those of any other call: a training resumed from a checkpoint, or from logs,
finds its done windows among the skipped calls, and need not open their files again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pslib.client.client import Client
from pslib.data.column_types import KeyKinds
from pslib.data.dataset import ParquetData, RowGroup
from pslib.data.file_watch import FileWatch, StreamSettings
from pslib.errors import ConfigurationError
from pslib.metrics.metrics import EvalResult
from pslib.schema import Schema
from pslib.table.tables import text_hash
from pslib.trainer.call_log import Calls
from pslib.trainer.collective import Job, JobSpec
from pslib.trainer.progress import Progress
from pslib.wire.fields import json_array

WINDOW_LEASE = np.zeros(1, np.uint32)


@dataclass(frozen=True, slots=True)
class StreamWindow:
    """A window of files that were predicted and then trained on.

    Attributes
    ----------
    files : tuple of str
        Names of the files below the folder.
    rows : int
        Examples in the files.
    result : EvalResult or None
        Metrics of the predictions made before training on the files; None for files without rows.
    """

    files: tuple[str, ...]
    rows: int
    result: EvalResult | None


class WindowJobs:
    """Search for the windows of a stream, together with all other trainers.

    Parameters
    ----------
    client : Client
    progress : Progress
    calls : Calls
    schema : Schema
        Schema that files must fit.
    arrivals : FileWatch
    settings : StreamSettings
    key_kinds : dict, optional
        As for `ParquetData`: kinds that windows must agree with. Updated with the kinds of each window.

    Raises
    ------
    ConfigurationError
        If the schema has no label to predict.
    """

    def __init__(
        self,
        client: Client,
        progress: Progress,
        calls: Calls,
        schema: Schema,
        arrivals: FileWatch,
        settings: StreamSettings,
        key_kinds: KeyKinds | None = None,
    ) -> None:
        if schema.label is None:
            raise ConfigurationError(
                "fit_stream: expected a schema with a label: each window is predicted before it is learnt; "
                "call fit and rank"
            )
        self._client, self._progress, self._calls = client, progress, calls
        self._schema, self._arrivals, self._settings = schema, arrivals, settings
        self._key_kinds: KeyKinds = {} if key_kinds is None else key_kinds

    def next(self, done: Collection[str]) -> tuple[tuple[str, ...], ParquetData | None]:
        """Return the next window's file names (none at the stream's end) and data (None without rows).

        Raises
        ------
        DataError
            If a file does not fit: the error names it, and the stream ends.
        """
        with self._calls.cluster.calling("fit_stream"):
            names, words = self._window(done)
        return names, self._data(names, words) if any(map(sum, words["rows"])) else None

    def _window(self, done: Collection[str]) -> tuple[tuple[str, ...], dict[str, Any]]:
        spec = JobSpec("window", text_hash("window", str(self._settings)), {}, WINDOW_LEASE)
        job = self._calls.open(self._client, self._progress, spec)
        for lease in job.leases():
            job.end(lease, {"words": json_array(self._found(job, done))}).wait()
        words = job.outcome()
        names = tuple(words["files"])
        told = words.get("key_kinds", {})  # older records have none
        self._key_kinds.update((name, (kind, column, file)) for name, (kind, column, file) in told.items())
        return names, words

    def _found(self, job: Job, done: Collection[str]) -> dict[str, Any]:
        """Wait for files and inspect them."""
        clock = self._client.endpoint.clock
        waits_since_s = clock.now_s()
        names, stopped = self._arrivals.look(done)
        while not (names or stopped or clock.now_s() - waits_since_s >= self._settings.idle_s):
            clock.sleep_s(self._settings.poll_s)
            job.confirm()
            names, stopped = self._arrivals.look(done)
        if not names:
            return {"files": [], "rows": [], "fingerprint": 0}
        places = [self._arrivals.place(name) for name in names]
        kinds = dict(self._key_kinds)
        data = ParquetData(places, self._schema, may_be_empty=True, key_kinds=kinds)
        rows = [[group.rows for group in data.row_groups if group.file == place] for place in places]
        return {"files": names, "rows": rows, "fingerprint": data.fingerprint, "key_kinds": kinds}

    def _data(self, names: tuple[str, ...], words: dict[str, Any]) -> ParquetData:
        """Return the window's data as it was found: files are opened only by the reading trainer."""
        groups = []
        for name, counts in zip(names, words["rows"], strict=True):
            first = 0
            for i, rows in enumerate(counts):
                groups.append(RowGroup(self._arrivals.place(name), i, rows, first))
                first += rows
        return ParquetData.known(self._schema, groups, int(words["fingerprint"]), self._key_kinds)


def windows(
    jobs: WindowJobs,
    done: list[str],
    predict: Callable[..., EvalResult],
    train: Callable[[ParquetData], object],
) -> Iterator[StreamWindow]:
    """Predict and train window by window, until the stream is over.

    Parameters
    ----------
    jobs : WindowJobs
    done : list of str
        Names of files that were trained on; the names of a window are appended when it is done.
    predict, train : callable
        Called with data; ``predict`` also with the ``name`` of its result.
    """
    while True:
        names, data = jobs.next(frozenset(done))
        if not names:
            return
        result = None
        if data is not None:
            result = predict(data, name="window")
            train(data)
        done += names
        yield StreamWindow(names, data.rows if data else 0, result)
