"""One look at a running job, and what happened between two looks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslib.metrics.metrics import LOGIT_BINS, LogitBins
from pslib.wire.counters import TABLE_COUNTERS

__all__ = ["Status", "Window", "auc_of"]


def _no_bins() -> NDArray[np.int64]:
    return np.zeros(LOGIT_BINS, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Status:
    """One look at the cumulative counters of a run; what is missing is zero."""

    phase: str = "waiting"
    job: str = ""
    error: str | None = None
    epoch: int = 0
    epochs: int = 0
    examples_total: int = 0
    examples: int = 0
    """Of the whole training, where it goes on with that of an earlier run."""
    examples_before: int = 0
    """How many of them are of before this run."""
    loss_sum: float = 0.0
    loss_examples: int = 0
    """How many examples that sum is of: what is done is known before trainers report it."""
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
    """How many there were before them."""
    table: Mapping[str, int] = field(default_factory=dict)
    """`TABLE_COUNTERS`: of what memory consists, and what admission, promotion and eviction have done."""

    @staticmethod
    def of(given: Mapping[str, Any]) -> Status:
        """Read a status as `RunRecorder.observe` gets it; unknown names are passed over."""
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
        """Examples that this run has trained: speeds are of them."""
        return self.examples - self.examples_before

    @property
    def staleness_mean(self) -> float:
        """Mean number of batches that a row was behind when its gradient arrived; 0 before the first."""
        return self.staleness_sum / self.staleness_count if self.staleness_count else 0.0

    @property
    def pushes_between_mean(self) -> float:
        """Mean number of pushes, of all trainers, between a batch's pull and its push; 0 before the first."""
        return self.between_sum / self.between_count if self.between_count else 0.0


@dataclass(frozen=True, slots=True)
class Window:
    """What happened between two looks.

    Attributes
    ----------
    seconds : float
        Since the start, at the later look.
    loss : float
        Mean log loss of the examples between them; nan when there is none.
    auc_recent : float
        Predict-then-train AUC of about the last ten seconds.
    examples_per_s : float
        Speed between them.
    """

    seconds: float
    loss: float
    auc_recent: float
    examples_per_s: float


def auc_of(positives: NDArray[np.int64], negatives: NDArray[np.int64]) -> float:
    """AUC of two histograms of logits, which may be differences of cumulative ones; nan where undefined."""
    # One trainer's counters may fall when another takes over its lease: such a difference says nothing.
    if min(positives.min(), negatives.min()) < 0:
        return math.nan
    return LogitBins(positives.astype(np.uint64), negatives.astype(np.uint64)).auc()
