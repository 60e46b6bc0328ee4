"""Callbacks of a trainer: when they are called, with what, and how they stop a fit of several trainers."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pslib
from pslib.errors import ConfigurationError
from pslib.recorder.callback import METHODS
from pslib.trainer.evaluation.early_stopping import EarlyStopping
from rec_models import TwoTower
from tests.support.clusters import cluster_of
from tests.support.counting import CountingModel, write_examples
from tests.support.counting_trainers import (
    QUICK,
    StopError,
    counted_examples,
    counting,
    counts_in,
    slowly,
    stop_in,
)
from tests.support.training import examples_counted, one_trainer, trainer_on

examples = pytest.fixture(counted_examples, scope="module")


class Diary(pslib.Callback):
    """Notes what it is called with."""

    def __init__(self, stop_after: int = 99) -> None:
        self.notes: list[tuple[Any, ...]] = []
        self.stop_after = stop_after

    def on_epoch_end(self, trainer: Any, epoch: int, result: Any) -> None:
        self.notes.append(("epoch", epoch, result))

    def on_evaluate(self, trainer: Any, name: str, result: Any) -> None:
        self.notes.append(("evaluate", name, result))

    def on_checkpoint(self, trainer: Any, path: str) -> None:
        self.notes.append(("checkpoint", path))

    def should_stop(self, trainer: Any) -> bool:
        return len([note for note in self.notes if note[0] == "epoch"]) >= self.stop_after


class Raises(pslib.Callback):
    def on_epoch_end(self, trainer: Any, epoch: int, result: Any) -> None:
        raise StopError("mine")


def wait_a_while(happened: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 1.0
    while not happened() and time.monotonic() < end_s:
        time.sleep(0.01)


# --- when


def test_each_epoch_evaluation_and_checkpoint_is_told_in_its_order(tmp_path: Path) -> None:
    path, diary = write_examples(tmp_path / "a.parquet", 40), Diary()
    with one_trainer(callbacks=[diary]) as trainer:
        first, second = trainer.fit(path, epochs=2, valid=path)
        place = trainer.save(tmp_path / "saved")
        tested = trainer.evaluate(path, name="test")
    assert diary.notes == [
        ("evaluate", "valid", first),
        ("epoch", 1, first),
        ("evaluate", "valid", second),
        ("epoch", 2, second),
        ("checkpoint", place),
        ("evaluate", "test", tested),
    ]


def test_an_epoch_without_validation_data_ends_without_a_result(tmp_path: Path) -> None:
    path, diary = write_examples(tmp_path / "a.parquet", 40), Diary()
    with one_trainer(callbacks=[diary]) as trainer:
        assert trainer.fit(path, epochs=2) == []
        assert examples_counted(trainer.cluster) == 80
    assert diary.notes == [("epoch", 1, None), ("epoch", 2, None)]


def test_a_fit_that_ranks_tells_of_its_epochs_and_can_be_stopped() -> None:
    clicks, diary = {"user": np.arange(40) % 4, "item": np.arange(40) % 5}, Diary(stop_after=2)
    model = TwoTower(pslib.Schema(label=None, sparse=["user", "item"]), item=("item",), dim=4, out=4)
    with pslib.connect() as cluster:
        trainer = pslib.Trainer(model, cluster, batch_rows=8, progress=False, callbacks=[diary])
        found = trainer.fit_and_rank(clicks, clicks, epochs=5, at=(1,))
    assert len(found) == 2
    assert [note[:2] for note in diary.notes] == [
        ("evaluate", "valid"), ("epoch", 1), ("evaluate", "valid"), ("epoch", 2)
    ]  # fmt: skip


def test_callbacks_are_called_in_the_order_in_which_they_are_given(tmp_path: Path) -> None:
    path, seen = write_examples(tmp_path / "a.parquet", 40), []

    class Named(pslib.Callback):
        def __init__(self, name: str) -> None:
            self.name = name

        def on_epoch_end(self, trainer: Any, epoch: int, result: Any) -> None:
            seen.append(self.name)

    with one_trainer(callbacks=[Named("a"), Named("b")]) as trainer:
        trainer.fit(path)
    assert seen == ["a", "b"]


def test_a_callback_can_save_and_evaluate(tmp_path: Path) -> None:
    path, found = write_examples(tmp_path / "a.parquet", 40), []

    class Saves(pslib.Callback):
        def on_epoch_end(self, trainer: pslib.Trainer, epoch: int, result: Any) -> None:
            found.append((trainer.evaluate(path, name="train").examples, trainer.save(tmp_path / f"{epoch}")))

    with one_trainer(callbacks=[Saves()]) as trainer:
        trainer.fit(path, epochs=2)
    assert found == [(40, str(tmp_path / "1")), (40, str(tmp_path / "2"))]


def test_a_checkpoint_of_a_fit_is_told_before_the_next_batch_and_once(examples: str, tmp_path: Path) -> None:
    diary, known = Diary(), []

    def look(batch: Any, rows: Any) -> None:
        slowly(batch, rows)
        known.append(len(diary.notes))
        late = len(known) > 30
        if late and not diary.notes:  # a cut may wait for this batch
            wait_a_while(lambda: bool(trainer._cuts.written))

    every = pslib.CheckpointSettings(tmp_path / "saved", every_batches=10, keep_last=9)
    with cluster_of(timing=QUICK) as running:
        trainer = counting(running.join(), look, checkpoint=every, callbacks=[diary])
        trainer.fit(examples)
    told = [note[1] for note in diary.notes if note[0] == "checkpoint"]
    assert told == sorted(str(one.parent) for one in (tmp_path / "saved").glob("*/manifest.json"))
    assert known[-1] >= 1


def test_of_several_trainers_the_one_that_has_written_a_checkpoint_is_told(
    examples: str, tmp_path: Path
) -> None:
    def script(cluster: pslib.Cluster) -> list[tuple[Any, ...]]:
        diary = Diary()
        counting(cluster, callbacks=[diary]).save(tmp_path / "saved")
        return diary.notes

    with cluster_of(trainers=2, timing=QUICK) as running:
        told = running.results(script, script)
    assert [note for notes in told for note in notes] == [("checkpoint", str(tmp_path / "saved"))]


def test_a_script_that_goes_on_tells_of_the_epochs_before_with_their_results(
    examples: str, tmp_path: Path
) -> None:
    def trained(diary: Diary, on_step: Any = None, load: bool = False) -> list[tuple[Any, ...]]:
        every = pslib.CheckpointSettings(tmp_path / "saved", every_batches=20)
        with cluster_of(timing=QUICK) as running:
            trainer = counting(running.join(), on_step, checkpoint=every, callbacks=[diary])
            if load:
                trainer.load(tmp_path / "saved")
            trainer.fit(examples, epochs=3, valid=examples)
        return [note for note in diary.notes if note[0] == "epoch"]

    diary = Diary()
    with pytest.raises(StopError):  # calls: fit, evaluate, vote, and the fit that is stopped
        trained(diary, stop_in(4, 100, tmp_path / "saved"))
    (first,) = [note for note in diary.notes if note[0] == "epoch"]
    again = trained(Diary(), load=True)
    assert again[0] == first
    assert [note[1] for note in again] == [1, 2, 3]


# --- stopping


def test_a_callback_ends_a_fit_after_an_epoch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_examples(tmp_path / "a.parquet", 40)
    with one_trainer(callbacks=[Diary(stop_after=2)]) as trainer:
        assert len(trainer.fit(path, epochs=9, valid=path)) == 2
        assert examples_counted(trainer.cluster) == 80
        assert trainer.cluster.status()["epochs"] == 9, "so many were planned"
    assert caplog.messages == ["pslib: stopped after epoch 2 of 9: should_stop of Diary (trainer 0)"]


def test_a_fit_that_is_over_is_not_said_to_have_stopped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_examples(tmp_path / "a.parquet", 40)
    with one_trainer(callbacks=[Diary(stop_after=2)]) as trainer:
        trainer.fit(path, epochs=2)
    assert caplog.messages == []


def test_a_fit_that_a_callback_stops_ends_with_its_best_epoch_too(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 40)
    stopping = EarlyStopping(metric="auc", patience=9, factor=1.0)
    with one_trainer(callbacks=[Diary(stop_after=3)]) as trainer:
        trainer.fit(path, epochs=9, valid=path, stopping=stopping, best=tmp_path / "best")
        assert examples_counted(trainer.cluster) == 40, "all results are equal: the first one is the best"


@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("stops", [0, 1, 2])
def test_all_trainers_stop_at_the_same_epoch_whichever_of_them_asks(
    examples: str, mode: str, stops: int
) -> None:
    def script(cluster: pslib.Cluster) -> tuple[int, int]:
        diary = Diary(stop_after=2 if cluster.rank == stops else 99)
        trainer = counting(cluster, slowly, consistency=mode, callbacks=[diary])
        trainer.fit(examples, epochs=5)
        return trainer._epochs, len(diary.notes)

    with cluster_of(trainers=3, timing=QUICK) as running:
        assert running.results(script, script, script) == [(2, 2)] * 3


def test_a_trainer_that_leaves_instead_of_voting_is_not_waited_for(examples: str) -> None:
    class Ends(Diary):
        def on_epoch_end(self, trainer: Any, epoch: int, result: Any) -> None:
            raise StopError

    def script(cluster: pslib.Cluster) -> int:
        trainer = counting(cluster, slowly, callbacks=[Ends() if cluster.rank == 1 else Diary()])
        trainer.fit(examples, epochs=2)
        return trainer._epochs

    with cluster_of(trainers=2, timing=QUICK) as running:
        other, failed = running.run(script, script)
    assert isinstance(failed, StopError)
    assert other == 2, other


@pytest.mark.parametrize("fails", [0, 1])
def test_an_error_in_should_stop_ends_the_fit_for_all_who_may_then_train_on_together(
    examples: str, fails: int
) -> None:
    class Fails(Diary):
        def should_stop(self, trainer: Any) -> bool:
            if trainer._epochs == 1:
                raise StopError
            return super().should_stop(trainer)

    def script(cluster: pslib.Cluster) -> list[int]:
        mine = cluster.rank == fails
        trainer = counting(cluster, slowly, callbacks=[Fails() if mine else Diary()])
        with pytest.raises(StopError) if mine else nullcontext():
            trainer.fit(examples, epochs=3)
        ended = trainer._epochs
        trainer.fit(examples, epochs=2)
        return [ended, trainer._epochs]

    with cluster_of(trainers=2, timing=QUICK) as running:
        assert running.results(script, script) == [[1, 3], [1, 3]]


def test_should_stop_is_asked_after_each_epoch_but_the_last_and_not_at_a_plateau(tmp_path: Path) -> None:
    path, asked = write_examples(tmp_path / "a.parquet", 40), list[int]()

    class Asked(pslib.Callback):
        def should_stop(self, trainer: Any) -> bool:
            asked.append(trainer._epochs)
            return False

    with one_trainer(callbacks=[Asked()]) as trainer:
        trainer.fit(path, epochs=3)
        trainer.fit(path, epochs=9, valid=path, stopping=EarlyStopping(patience=1, factor=1.0, restore=False))
    assert asked == [1, 2, 4]


# --- errors


@pytest.mark.parametrize("call", ["evaluate", "save"])
def test_a_call_of_all_trainers_within_on_checkpoint_is_refused_and_the_fit_is_whole(
    examples: str, tmp_path: Path, call: str
) -> None:
    refused: list[str] = []

    class Calls(pslib.Callback):
        def on_checkpoint(self, trainer: Any, path: str) -> None:
            with pytest.raises(ConfigurationError) as caught:
                getattr(trainer, call)(examples)
            refused.append(str(caught.value))

    every = pslib.CheckpointSettings(tmp_path / "saved", every_batches=10)
    with cluster_of(timing=QUICK) as running:
        trainer = counting(running.join(), slowly, checkpoint=every, callbacks=[Calls()])
        trainer.fit(examples)
        assert set(counts_in(trainer)[0].values()) == {1.0}
    assert set(refused) == {
        f"{call}: expected no call of a Trainer in on_checkpoint: only one trainer is in it, maybe within a "
        "fit; make the call after fit, or in on_epoch_end"
    }


def test_an_error_in_a_callback_ends_the_fit_as_it_is_and_another_fit_goes_on(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 40)
    with one_trainer(callbacks=[Raises()]) as trainer:
        for epochs in (1, 2):
            with pytest.raises(StopError, match="mine") as caught:
                trainer.fit(path, epochs=3)
            assert caught.traceback[-1].name == "on_epoch_end"
            assert examples_counted(trainer.cluster) == 40 * epochs
            assert trainer._epochs == epochs
        assert trainer.evaluate(path).examples == 40


def test_an_error_between_two_batches_ends_the_fit(examples: str, tmp_path: Path) -> None:
    class Fails(pslib.Callback):
        def on_checkpoint(self, trainer: Any, path: str) -> None:
            raise StopError("upload")

    every = pslib.CheckpointSettings(tmp_path / "saved", every_batches=10)
    with cluster_of(timing=QUICK) as running:
        trainer = counting(running.join(), slowly, checkpoint=every, callbacks=[Fails()])
        with pytest.raises(StopError, match="upload"):
            trainer.fit(examples, epochs=2)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("on_epoch_ends", "did you mean 'on_epoch_end'?"),
        ("on_checkpoint_saved", "did you mean 'on_checkpoint'?"),
        ("should_stopp", "did you mean 'should_stop'?"),
        ("on_fire", f"a callback has {', '.join(METHODS)}"),
    ],
)
def test_a_method_that_no_trainer_calls_is_told_with_the_nearest_name(name: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^Mine.{name}: no trainer calls it; {re.escape(told)}$"):
        type("Mine", (pslib.Callback,), {name: lambda *_: None, "helper": lambda self: None})


def test_a_method_with_other_parameters_is_told_when_the_class_is_made() -> None:
    line = "Mine.on_epoch_end: expected the parameters (self, trainer, epoch, result), got (self, epoch)"
    with pytest.raises(ConfigurationError, match=f"^{re.escape(line)}$"):
        type("Mine", (pslib.Callback,), {"on_epoch_end": lambda self, epoch: None})
    with pytest.raises(ConfigurationError, match=r"^Mine.on_evaluate: expected a method .*, got 7$"):
        type("Mine", (pslib.Callback,), {"on_evaluate": 7})


@pytest.mark.parametrize("given", [Diary(), [print], Diary])
def test_what_is_no_callback_is_refused_in_a_line(given: Any) -> None:
    with (
        cluster_of() as running,
        pytest.raises(ConfigurationError, match=r"callbacks: expected a list of Callback"),
    ):
        trainer_on(running.join(), CountingModel(), callbacks=given)


def test_callbacks_that_a_call_is_given_are_told_where_they_belong(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 40)
    with one_trainer() as trainer, pytest.raises(ConfigurationError, match=r"Trainer\(\.\.\., callbacks="):
        trainer.fit(path, callbacks=[Diary()])  # type: ignore[call-arg]
