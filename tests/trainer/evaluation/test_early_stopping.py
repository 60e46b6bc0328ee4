"""Responses of a fit to results on its validation data: lower rates, an early end, the best epoch."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import pslib
from pslib.batch import Batch
from pslib.data.dataset import ParquetData
from pslib.data.order import Order, default_lease_rows
from pslib.data.reader import LeaseReader
from pslib.errors import ConfigurationError
from pslib.metrics.metrics import EvalResult
from pslib.table.optimizers import FTRL, Adam
from pslib.trainer import Trainer
from pslib.trainer.evaluation.batch_norm_stats import MEASURED_ROWS
from pslib.trainer.evaluation.early_stopping import EarlyStopping, Plateau
from pslib.trainer.evaluation.early_stopping import followed as follow
from rec_models import DNN, LR
from tests.support.clusters import cluster_of
from tests.support.counting import SCHEMA, write_examples
from tests.support.training import examples_counted, one_trainer, trainer_on


def result(auc: float, logloss: float = 0.5) -> EvalResult:
    return EvalResult(examples=10, positives=5, auc=auc, logloss=logloss, calibration=1.0)


def followed(settings: EarlyStopping, *values: float) -> tuple[list[bool], Plateau]:
    plateau = Plateau(settings)
    return [plateau.seen(result(value)) for value in values if not plateau.is_over], plateau


# --- the rule

AUC_ALONE = EarlyStopping(metric="auc", patience=2, factor=1.0)


def test_rates_are_lowered_at_a_plateau_and_the_fit_ends_after_as_many_worse_epochs_again() -> None:
    values = (0.5, 0.4, 0.4, 0.45, 0.38, 0.39, 0.41, 0.4, 0.4, 0.2)
    plateau = Plateau(EarlyStopping(patience=2, factor=0.5))
    seen = [(plateau.seen(result(0.5, value)), plateau.rate) for value in values if not plateau.is_over]
    assert [better for better, _ in seen] == [True, True, False, False, True] + [False] * 4
    assert [rate for _, rate in seen] == [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25]
    assert plateau.best_epoch == 4


def test_without_lower_rates_a_fit_ends_at_its_first_plateau() -> None:
    better, plateau = followed(AUC_ALONE, 0.5, 0.6, 0.59, 0.61, 0.6, 0.6, 0.9)
    assert better == [True, True, False, True, False, False]
    assert (plateau.is_over, plateau.best_epoch, plateau.rate) == (True, 3, 1.0)


@pytest.mark.parametrize(("noise", "left"), [(0.005, 0.025), (0.01, 0.05), (0.02, 0.1)])
def test_a_noisy_metric_does_not_freeze_a_fit(noise: float, left: float) -> None:
    """Of 200 curves that fall to 0 with the sum of the rates, nine in ten are kept near it, and all end."""
    chosen = []
    for seed in range(200):
        rng, plateau, learnt, losses = np.random.default_rng(seed), Plateau(EarlyStopping()), 0.0, []
        while not plateau.is_over:
            learnt += plateau.rate
            losses.append(np.exp(-learnt / 5))
            plateau.seen(result(0.5, losses[-1] + noise * rng.standard_normal()))
            assert len(losses) < 100
        chosen.append(losses[plateau.best_epoch])
    assert np.quantile(chosen, 0.9) < left


def test_log_loss_is_better_where_it_is_less() -> None:
    plateau = Plateau(EarlyStopping())
    assert [plateau.seen(result(0.5, loss)) for loss in (0.5, 0.4, 0.45)] == [True, True, False]


def test_better_by_no_more_than_min_delta_is_not_better() -> None:
    settings = EarlyStopping(metric="auc", min_delta=0.0625)
    assert followed(settings, 0.5, 0.5625, 0.625)[0] == [True, False, True]


def test_a_result_that_is_not_defined_is_never_the_best() -> None:
    better, plateau = followed(AUC_ALONE, float("nan"), float("nan"))
    assert better == [False, False]
    assert plateau.is_over
    assert plateau.best_epoch == -1


def test_patience_zero_ends_no_fit_and_lowers_no_rate() -> None:
    _, plateau = followed(EarlyStopping(patience=0), *[0.5] * 20)
    assert (plateau.is_over, plateau.rate) == (False, 1.0)


def test_all_settings_that_are_wrong_are_named_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        EarlyStopping(metric="f1", patience=-1, factor=0.0, min_delta=float("nan"), restore=1)  # type: ignore[arg-type]
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "stopping.metric",
        "stopping.patience",
        "stopping.factor",
        "stopping.min_delta",
        "stopping.restore",
    ]


# --- in a fit


def test_a_fit_ends_with_the_parameters_of_its_best_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data = write_examples(tmp_path / "a.parquet", 40)
    results = iter([result(value) for value in (0.5, 0.7, 0.6, 0.65, 0.9)])
    monkeypatch.setattr(Trainer, "_evaluate", lambda self, data, **_: next(results))
    with one_trainer() as trainer:
        seen = trainer.fit(data, epochs=9, valid=data, stopping=AUC_ALONE, best=tmp_path / "best")
        assert [one.auc for one in seen] == [0.5, 0.7, 0.6, 0.65]
        assert examples_counted(trainer.cluster) == 2 * 40
    assert caplog.messages == [
        "pslib: stopped early after epoch 4 of 9: auc was not better for 2 epochs in a row "
        "(stopping.patience); best was epoch 2 with 0.7000, whose parameters are taken"
    ]


def test_a_fit_that_was_planned_so_long_does_not_say_that_it_stopped_early(
    caplog: pytest.LogCaptureFixture,
) -> None:
    results = map(result, (0.6, 0.5, 0.4))
    follow(AUC_ALONE, 3, lambda _rate, _to_come: next(results), print, print, None, 5)
    assert caplog.messages == []
    results = map(result, (0.6, 0.5, 0.4), (0.4, 0.5, 0.6))
    stopping = EarlyStopping(patience=1, restore=False)
    follow(stopping, 9, lambda _rate, _to_come: next(results), print, print, None, 5)
    assert caplog.messages[0].endswith(
        "logloss was not better for 2 epochs in a row, 1 of them at lower rates (stopping.patience); "
        "best was epoch 6 with 0.4000"
    )


def test_epochs_after_a_plateau_train_at_lower_rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_examples(tmp_path / "a.parquet", 40)
    results = iter([result(value) for value in (0.5, 0.4, 0.3)])
    monkeypatch.setattr(Trainer, "_evaluate", lambda self, data, **_: next(results))
    with cluster_of() as running:
        cluster = running.join()
        stopping = EarlyStopping(metric="auc", patience=1, factor=0.5, restore=False)
        trainer_on(cluster).fit(data, epochs=3, valid=data, stopping=stopping)
        assert examples_counted(cluster) == 40 + 40 + 20


def test_a_best_epoch_that_was_the_last_need_not_be_loaded() -> None:
    for values, loaded in (((0.5, 0.6), []), ((0.6, 0.5), ["best"])):
        results, saved, called = map(result, values), list[object](), list[object]()
        stopping = EarlyStopping(metric="auc", patience=9)
        one_epoch = lambda _rate, _to_come, made=results: next(made)  # noqa: E731
        follow(stopping, 2, one_epoch, saved.append, called.append, "best")
        assert called == loaded


def test_what_stopping_needs_is_asked_for_before_anything_trains(tmp_path: Path) -> None:
    data = write_examples(tmp_path / "a.parquet", 10)
    with cluster_of() as running:
        model = LR(SCHEMA, w_optimizer=FTRL())
        trainer = pslib.Trainer(model, running.join(), progress=False)
        with pytest.raises(ConfigurationError) as caught:
            trainer.fit(data, stopping=EarlyStopping())
    assert [problem.split(";")[0].split(":")[1].strip() for problem in caught.value.problems] == [
        "expected data to evaluate on after each epoch",
        "restore=True needs a folder for the best epoch",
        "factor",
    ]


def test_a_folder_for_a_best_epoch_that_nothing_asks_for_is_refused(tmp_path: Path) -> None:
    data = write_examples(tmp_path / "a.parquet", 10)
    with one_trainer() as trainer:
        for stopping in (None, EarlyStopping(restore=False)):
            with pytest.raises(ConfigurationError, match="best: expected a stopping that restores it"):
                trainer.fit(data, valid=data, stopping=stopping, best=tmp_path / "best")


# --- statistics


@pytest.mark.parametrize("consistency", ["async", "sync", "geo"])
def test_a_fit_ends_with_the_statistics_of_its_own_parameters(tmp_path: Path, consistency: str) -> None:
    data = ParquetData([str(write_examples(tmp_path / "a.parquet", 300))], SCHEMA)
    model = DNN(SCHEMA, dim=4, hidden=(6, 5), batch_norm=True, v_optimizer=Adam(0.01))
    with cluster_of(2) as running:
        cluster = running.join()
        trainer = pslib.Trainer(
            model, cluster, batch_rows=32, consistency=consistency, progress=False, seed=5, staleness=1
        )
        trainer.fit(tmp_path / "a.parquet", epochs=2)
        order = Order(5, [group.rows for group in data.row_groups], default_lease_rows(300, MEASURED_ROWS))
        reader = LeaseReader(data, SCHEMA, order, MEASURED_ROWS)
        batch = next(iter(reader.batches(0, 0)))
        reader.close()
        pulled = cluster.client.pull({"embedding": batch.keys}, dense=True).wait()
    dense = trainer._layout.views(pulled.dense)
    measured = model.measured(batch, pulled.rows["embedding"], dense)
    assert set(measured) == {f"mlp.{layer}.{one}" for layer in (0, 1) for one in ("mean", "inv_std")}
    for name, value in measured.items():
        assert np.any(dense[name] != (1 if name.endswith("inv_std") else 0))
        np.testing.assert_allclose(dense[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("groups", "expected"), [([64, 1], 32), ([1, 64], 32), ([20, 30], 30)])
def test_statistics_are_of_many_examples_whichever_row_group_is_drawn_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: list[int], expected: int
) -> None:
    monkeypatch.setattr("pslib.trainer.evaluation.batch_norm_stats.MEASURED_ROWS", 32)
    monkeypatch.setattr(
        "pslib.trainer.evaluation.batch_norm_stats.Order", partial(Order, window_rows=max(groups))
    )
    measured: list[int] = []

    class Counted(DNN):
        def measured(self, batch: Batch, *arguments: Any) -> dict[str, NDArray[Any]]:
            measured.append(len(batch))
            return super().measured(batch, *arguments)

    for i, rows in enumerate(groups):
        write_examples(tmp_path / f"{i}.parquet", rows, row_group_rows=rows)
    model = Counted(SCHEMA, dim=2, hidden=(3,), batch_norm=True)
    for seed in range(6):
        with cluster_of() as running:
            pslib.Trainer(model, running.join(), batch_rows=32, progress=False, seed=seed).fit(tmp_path)
    assert measured == [expected] * 6
