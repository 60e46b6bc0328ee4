"""Early stopping: lower learning rates on a plateau, stop, and restore the best epoch."""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar

from pslib.errors import ConfigurationError
from pslib.metrics.metrics import EvalResult
from pslib.metrics.ranking import RankResult
from pslib.settings import Setting, Settings
from pslib.table.optimizers import Optimizer, rate_problem
from pslib.table.tables import TableSpec
from pslib.text import counted

log = logging.getLogger(__name__)
Result = TypeVar("Result", EvalResult, RankResult, EvalResult | None)

METRICS = {"auc": 1.0, "logloss": -1.0}
"""Click metrics to watch, with the sign that makes larger better."""
RANKINGS = re.compile(r"(recall|mrr|ndcg)@([1-9][0-9]{0,6})")
"""Ranking metrics to watch."""


def place_of_metric(metric: str) -> int | None:
    """Return the k of a ranking metric; None for click metrics."""
    found = RANKINGS.fullmatch(metric)
    return int(found[2]) if found else None


def metric_problem(metric: str, ranked: bool) -> str | None:
    """Return the problem of a metric for a model that ranks items or predicts clicks; None if valid."""
    if ranked:
        fits, expected = place_of_metric(metric) is not None, "recall@K, mrr@K or ndcg@K for some number K"
    else:
        fits, expected = metric in METRICS, "one of auc, logloss"
    return None if fits else f"metric: expected {expected}, got {metric!r}"


def _figure(result: EvalResult | RankResult, metric: str) -> float:
    """Return a result's value of a metric, signed so that larger is better."""
    k = place_of_metric(metric)
    if k is None:
        return METRICS[metric] * float(getattr(result, metric))
    return float(getattr(result, metric.partition("@")[0])[k])


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyStopping(Settings):
    """Settings for the use of validation results. Each fit counts from the start.

    A plateau is ``patience`` epochs in a row without a better result: a single one may be noise. At a plateau
    the learning rates are multiplied by ``factor``, and the fit ends after as many more epochs without a
    better result; with ``factor`` 1 it ends at the plateau.

    Log loss is the default metric because AUC keeps rising while a model becomes overconfident: DeepFM on the
    Frappe log had 0.1497 and an AUC of 0.9846 at its best log loss, 0.1556 and 0.9851 at its best AUC
    (benchmarks/notebook/frappe.md).
    """

    AT = "stopping."

    metric: Annotated[
        str,
        Setting(
            "Metric that is watched: of clicks ``auc`` or ``logloss``, of a ranking ``recall@20`` and so on.",
            pattern="|".join([*METRICS, RANKINGS.pattern]),
            texts=f"one of {', '.join(METRICS)}, recall@K, mrr@K or ndcg@K for some number K",
        ),
    ] = "logloss"
    patience: Annotated[
        int,
        Setting(
            "Epochs in a row without a better result after which the rates are lowered; after as many more "
            "the fit ends. 0: neither.",
            ge=0,
            le=1 << 31,  # more epochs than any training has
            unit="epochs",
        ),
    ] = 2
    factor: Annotated[
        float,
        Setting(
            "The learning rates are multiplied by it when they are lowered; 1: they stay, and the fit ends "
            "instead.",
            gt=0,
            le=1,
        ),
    ] = 0.1
    min_delta: Annotated[float, Setting("A result is better when it is so by more than this.", ge=0)] = 0.0
    restore: Annotated[
        bool,
        Setting(
            "The fit ends with the parameters of the best epoch, which are saved after each epoch that is "
            "better; false: with those of its last."
        ),
    ] = True


def check_epochs(epochs: int) -> int:
    """Return epochs as a Python int; ConfigurationError below 1."""
    if epochs < 1:
        raise ConfigurationError(f"epochs: expected at least 1, got {epochs}")
    return int(epochs)


def check_stopping(
    stopping: EarlyStopping | None,
    valid: object,
    best: object,
    table: TableSpec,
    dense: Optimizer,
    ranked: bool = False,
) -> None:
    """Check that the settings of early stopping are complete and consistent.

    Parameters
    ----------
    stopping : EarlyStopping or None
    valid, best : path or None
        As given to `Trainer.fit`.
    table : TableSpec
        Its parts' optimizers must support changed rates.
    dense : Optimizer
    ranked : bool
        True if the results are rankings.

    Raises
    ------
    ConfigurationError
        All problems at once.
    """
    if best is not None and not (stopping and stopping.restore):
        raise ConfigurationError("best: expected a stopping that restores it; give stopping=EarlyStopping()")
    if stopping is None:
        return
    problem = metric_problem(stopping.metric, ranked)
    problems = [f"stopping.{problem}"] if problem else []
    if valid is None:
        problems.append("stopping: expected data to evaluate on after each epoch; give valid=PATH")
    if stopping.restore and best is None:
        problems.append(
            "stopping: restore=True needs a folder for the best epoch; give best=PATH or restore=False"
        )
    if stopping.factor < 1:
        optimizers = [("dense_optimizer", dense), *((f"part {p.name}", p.optimizer) for p in table.parts)]
        problems += [
            f"stopping: factor: {name}: {problem}; give factor=1.0"
            for name, optimizer in optimizers
            if (problem := rate_problem([optimizer]))
        ]
    if problems:
        raise ConfigurationError(*problems)


class Plateau:
    """Plateau detector over the results of a fit; all trainers see the same results and decide alike.

    Parameters
    ----------
    settings : EarlyStopping
    """

    def __init__(self, settings: EarlyStopping) -> None:
        self.settings = settings
        self.best_epoch = -1
        """Index of the best epoch, from 0; -1: none yet."""
        self.rate = 1.0
        """Current factor of the learning rates."""
        self._best, self._epochs, self._worse = -math.inf, 0, 0
        self._worse_max = settings.patience * (1 if settings.factor == 1 else 2)

    def seen(self, result: EvalResult | RankResult) -> bool:
        """Record the result of the next epoch; return whether it is the best so far."""
        value = _figure(result, self.settings.metric)
        better = value > self._best + self.settings.min_delta  # False for nan
        if better:
            self._best, self.best_epoch, self._worse = value, self._epochs, 0
        else:
            self._worse += 1
            if self._worse == self.settings.patience:
                self.rate *= self.settings.factor
        self._epochs += 1
        return better

    @property
    def is_over(self) -> bool:
        """True if the fit ends now."""
        return 0 < self._worse_max <= self._worse

    def ended(self, before: int, epochs: int) -> str:
        """Describe why the fit, begun after ``before`` epochs with ``epochs`` planned, ends now."""
        metric, patience = self.settings.metric, self.settings.patience
        line = f"stopped early after epoch {before + self._epochs} of {before + epochs}: {metric} was not "
        line += f"better for {counted(self._worse_max, 'epoch')} in a row"
        line += f", {patience} of them at lower rates" * (self._worse_max > patience) + " (stopping.patience)"
        if self.best_epoch < 0:
            return f"{line}, and never defined"
        figure = self._best * METRICS.get(metric, 1.0)
        taken = ", whose parameters are taken" if self.settings.restore else ""
        return f"{line}; best was epoch {before + self.best_epoch + 1} with {figure:.4f}{taken}"


def followed(
    settings: EarlyStopping | None,
    epochs: int,
    one_epoch: Callable[[float, int], Result],
    save: Callable[[str | os.PathLike[str]], object],
    load: Callable[[str | os.PathLike[str]], object],
    best: str | os.PathLike[str] | None,
    before: int = 0,
    stopped: Callable[[], str] = str,
) -> list[Result]:
    """Train epoch by epoch until the results or a callback stop the fit; return the results.

    Parameters
    ----------
    settings : EarlyStopping or None
        None: the results have no effect.
    epochs : int
        Maximum number of epochs.
    one_epoch : callable
        Trains one epoch at this factor of the learning rates, and evaluates; also gets how many epochs may
        follow.
    save, load : callable
        Save and load a checkpoint at a path.
    best : path or None
        Path of the best epoch's checkpoint.
    before : int
        Epochs trained before this fit.
    stopped : callable
        Asked after each epoch but the last: what stops the fit, or an empty text.
    """
    plateau = Plateau(settings) if settings else None
    results, kept = list[Result](), best if settings and settings.restore else None
    why = ""
    while len(results) < epochs and not why:
        result = one_epoch(plateau.rate if plateau else 1.0, epochs - 1 - len(results))
        results.append(result)
        if plateau and result is not None and plateau.seen(result) and kept is not None:
            save(kept)
        if len(results) < epochs:
            why = _why_over(plateau, stopped, before, epochs, len(results))
    if why:
        log.warning("pslib: %s", why)
    if kept is not None and plateau and 0 <= plateau.best_epoch < len(results) - 1:
        load(kept)
    return results


def _why_over(
    plateau: Plateau | None, stopped: Callable[[], str], before: int, epochs: int, done: int
) -> str:
    """Describe why a fit ends before its last epoch; empty if it goes on."""
    if plateau and plateau.is_over:
        return plateau.ended(before, epochs)
    by = stopped()
    return f"stopped after epoch {before + done} of {before + epochs}: should_stop of {by}" if by else ""
