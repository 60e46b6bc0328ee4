"""History of a trainer: records of what it trains and evaluates, as batches end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from pslib.clock import Clock
from pslib.metrics.metrics import EvalResult
from pslib.metrics.ranking import RankResult
from pslib.recorder.history import History
from pslib.recorder.records import PROGRESS, RANKINGS, Record, evaluation_records
from pslib.recorder.status import WindowMeter
from pslib.trainer.progress import Progress


class TrainingHistory:
    """Recorder of a trainer's history: progress at an interval and at the end of each epoch, evaluations.

    Parameters
    ----------
    progress : Progress
        Counters of what is trained.
    clock : Clock
        Seconds count from now on.
    """

    def __init__(self, progress: Progress, clock: Clock) -> None:
        self.history = History()
        self._progress, self._clock = progress, clock
        self._start_s = clock.now_s()
        self._meter, self._last_s = WindowMeter(), 0.0
        self._within = False  # the last record is within the epoch of the next batch
        self._counted = self._examples = self._epoch = 0
        self._loss: float | None = None

    def begin(self, epoch: int, examples_before: int) -> None:
        """Begin a fit after ``epoch`` epochs, of whose examples an earlier run has trained some."""
        status, self._epoch = self._progress.status(), epoch
        self._counted, self._last_s = status.examples, self._now_s
        self._examples += examples_before
        self._meter.start(status, self._last_s)
        self._within = False

    def before_batch(self, epoch: int) -> None:
        """Record what is trained, if a new epoch begins with the next batch or the interval is over."""
        now_s = self._now_s
        if epoch > self._epoch:
            self._epoch = epoch
            self._record(now_s, ends=True)
        elif now_s - self._last_s >= self.history.every_s:
            self._record(now_s)

    def end(self, epoch: int) -> None:
        """Record the end of a fit, after ``epoch`` epochs."""
        self._epoch = epoch
        self._record(self._now_s, ends=True)

    def fail(self) -> None:
        """Record what was trained of a fit that ends early."""
        self._record(self._now_s, ends=True)

    def evaluated(self, result: EvalResult | RankResult, about: Mapping[str, str | int]) -> None:
        """Record an evaluation; ``about`` has its name, label, epoch or files where there are any."""
        figures = asdict(result)
        if isinstance(result, RankResult):
            figures |= {"at": list(result.recall)}
            figures |= {name: list(figures[name].values()) for name in RANKINGS}
        kind = "rank" if isinstance(result, RankResult) else "evaluate"
        for record in evaluation_records(
            {"kind": kind, **figures, **about},
            seconds=self._now_s,
            epoch=self._epoch,
            examples=self._examples,
            loss=self._loss,
        ):
            self.history.add(record)

    @property
    def _now_s(self) -> float:
        return self._clock.now_s() - self._start_s

    def _record(self, now_s: float, ends: bool = False) -> None:
        """Record a window. A short one at the end of an epoch joins the last one: it has too few examples."""
        status = self._progress.status()
        if status.examples == self._counted:  # this trainer had no part in it
            return
        self._examples += status.examples - self._counted
        joined = ends and self._within and now_s - self._last_s < self.history.every_s / 2
        self._counted, self._last_s, self._within = status.examples, now_s, not ends
        window = self._meter.look(status, now_s, joined)
        self._loss = window.loss
        self.history.add(
            Record(
                event=PROGRESS,
                seconds=now_s,
                epoch=self._epoch,
                examples=self._examples,
                examples_per_s=window.examples_per_s,
                loss=window.loss,
                auc=window.auc_recent,
                calibration=window.calibration,
            ),
            replaces=joined,
        )
