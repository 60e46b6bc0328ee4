"""Status of a running job, and the differences between two statuses."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslib.metrics.metrics import LOGIT_BINS, LogitBins
from pslib.wire.counters import TABLE_COUNTERS


def _no_bins() -> NDArray[np.int64]:
    return np.zeros(LOGIT_BINS, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Status:
    """Cumulative counters of a run; missing ones are zero."""

    phase: str = "waiting"
    model: str | None = None
    error: str | None = None
    saved: str | None = None
    """Last complete checkpoint."""
    epoch: int = 0
    epochs: int = 0
    examples_total: int = 0
    examples: int = 0
    """Examples of the whole training, including earlier runs that it continues."""
    examples_before: int = 0
    """Examples of these that were trained before this run."""
    loss_sum: float = 0.0
    loss_examples: int = 0
    """Number of examples in that sum; finished batches are counted before trainers report their loss."""
    staleness_sum: float = 0.0
    staleness_count: int = 0
    staleness_max: int = 0
    between_sum: int = 0
    between_count: int = 0
    between_max: int = 0
    pushes_sent: int = 0
    pushes_applied: int = 0
    updates_sent: int = 0
    updates_applied: int = 0
    rows: int = 0
    memory_bytes: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    servers: int = 0
    trainers: int = 0
    parameters: int = 0
    bins_positive: NDArray[np.int64] = field(default_factory=_no_bins)
    bins_negative: NDArray[np.int64] = field(default_factory=_no_bins)
    results: Sequence[Mapping[str, Any]] = ()
    results_before: int = 0
    """Number of results before these."""
    table: Mapping[str, int] = field(default_factory=dict)
    """`TABLE_COUNTERS`: composition of memory, and counts of admission, promotion and eviction."""

    @staticmethod
    def of(given: Mapping[str, Any]) -> Status:
        """Parse a status as passed to `RunRecorder.observe`; unknown names are ignored."""
        known = {f.name for f in fields(Status)}
        values = {name: value for name, value in given.items() if name in known and value is not None}
        for name in ("bins_positive", "bins_negative"):
            if len(values.get(name, ())):
                values[name] = np.asarray(values[name]).astype(np.int64)
            else:
                values.pop(name, None)
        values.setdefault("loss_examples", values.get("examples", 0))
        values["table"] = {name: int(given.get(name, 0)) for name in TABLE_COUNTERS}
        return Status(**values)

    @property
    def examples_own(self) -> int:
        """Examples trained by this run, from which speeds are computed."""
        return self.examples - self.examples_before

    @property
    def staleness_mean(self) -> float:
        """Mean number of batches by which a row was stale when its gradient arrived; 0 before the first."""
        return self.staleness_sum / self.staleness_count if self.staleness_count else 0.0

    @property
    def pushes_between_mean(self) -> float:
        """Mean number of pushes, of all trainers, between a batch's pull and its push; 0 before the first."""
        return self.between_sum / self.between_count if self.between_count else 0.0


@dataclass(frozen=True, slots=True)
class Window:
    """Differences between two observations.

    Attributes
    ----------
    seconds : float
        Seconds since the start, at the later observation.
    loss : float
        Mean log loss of the examples between them; nan if there is none.
    auc_recent, calibration : float
        Predict-then-train AUC and calibration of the last `RECENT_LOOKS` windows.
    examples_per_s : float
        Speed between them.
    """

    seconds: float
    loss: float
    auc_recent: float
    calibration: float
    examples_per_s: float


NO_WINDOW = Window(0.0, math.nan, math.nan, math.nan, 0.0)
RECENT_LOOKS = 10  # the AUC of one window, often a second, is too noisy to read


class WindowMeter:
    """Meter of the windows between successive statuses of a run."""

    def __init__(self) -> None:
        self._before, self._before_s, self._most_examples = self._last = Status(), 0.0, 0
        self._recent: deque[Status] = deque([Status()], maxlen=RECENT_LOOKS)

    def start(self, status: Status, now_s: float) -> None:
        """Begin a window here: what came before is of none."""
        self._before, self._before_s, self._most_examples = status, now_s, status.examples_own

    def look(self, status: Status, now_s: float, joined: bool = False) -> Window:
        """Return the window that ends here; the next one begins. With ``joined`` the last one is part of it.

        Examples that are trained again do not count as speed.
        """
        if joined:
            self._before, self._before_s, self._most_examples = self._last
            self._recent.pop()
        self._last = self._before, self._before_s, self._most_examples
        before, oldest = self._before, self._recent[0]
        examples = max(0, status.examples_own - self._most_examples)
        self._most_examples += examples
        summed = status.loss_examples - before.loss_examples
        passed_s = now_s - self._before_s
        self._recent.append(status)
        self._before, self._before_s = status, now_s
        bins = bins_of(
            status.bins_positive - oldest.bins_positive, status.bins_negative - oldest.bins_negative
        )
        return Window(
            seconds=now_s,
            loss=(status.loss_sum - before.loss_sum) / summed if summed > 0 else math.nan,
            auc_recent=bins.auc(),
            calibration=bins.calibration(),
            examples_per_s=examples / passed_s if passed_s > 0 else 0.0,
        )


def bins_of(positives: NDArray[np.int64], negatives: NDArray[np.int64]) -> LogitBins:
    """Return histograms of logits, or differences of cumulative ones, as bins; empty ones if undefined."""
    # One trainer's counters may fall when another takes over its lease: the difference is then undefined.
    if min(positives.min(), negatives.min()) < 0:
        return LogitBins()
    return LogitBins(positives.astype(np.uint64), negatives.astype(np.uint64))
