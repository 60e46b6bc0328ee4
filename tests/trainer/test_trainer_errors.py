"""Failures end training with one error, soon, and leave no thread."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pslib
from pslib import Schema
from pslib.errors import ConfigurationError, DataError, ServerLostError, UnavailableError
from rec_models import LR, DeepFM
from tests.support.clusters import Trainers, cluster_of, own_threads, threads_of_pslib
from tests.support.counting import CountingModel, write_examples
from tests.support.training import UNHURRIED, at_step, one_trainer, trainer_on, within

# --- errors


@pytest.mark.parametrize("last_step", [1, 20, 40])
def test_an_error_in_the_model_ends_fit_with_it_and_leaves_no_thread(tmp_path: Path, last_step: int) -> None:
    """At the first step the reader is ahead; at the last one it waits for leases that never end."""
    path = write_examples(tmp_path / "a.parquet", 200)

    def fail() -> None:
        time.sleep(0.1)
        raise ZeroDivisionError("a bug in the model")

    with one_trainer(CountingModel(at_step(last_step, fail))) as trainer:
        idle = own_threads()
        error = within(3.0, lambda: trainer.fit(path))
        assert isinstance(error, ZeroDivisionError)
        assert own_threads() == idle


def test_ctrl_c_in_fit_unwinds_cleanly(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 200)
    before = threads_of_pslib()

    def look(batch, rows) -> None:
        raise KeyboardInterrupt

    def script() -> None:
        with pslib.connect(servers=2) as cluster:
            trainer_on(cluster, CountingModel(look)).fit(path)

    assert isinstance(within(5.0, script), KeyboardInterrupt)
    assert own_threads(but=before) == []  # one of an earlier test may end meanwhile


def test_a_bad_value_in_the_data_ends_fit_with_its_place(tmp_path: Path) -> None:
    labels = np.zeros(200, np.int64)
    labels[150] = 2
    path = write_examples(tmp_path / "a.parquet", 200, labels=labels)
    with one_trainer() as trainer:
        idle = own_threads()
        error = within(3.0, lambda: trainer.fit(path))
        assert own_threads() == idle
    assert isinstance(error, DataError)
    assert "row 150" in str(error)
    assert "'label'" in str(error)


def test_a_bad_value_in_the_data_ends_evaluate_too(tmp_path: Path) -> None:
    labels = np.zeros(50, np.int64)
    labels[3] = 2
    path = write_examples(tmp_path / "a.parquet", 50, labels=labels)
    with cluster_of() as running:
        assert isinstance(within(3.0, lambda: trainer_on(running.join()).evaluate(path)), DataError)


def test_keys_of_another_type_than_those_that_were_trained_are_refused(tmp_path: Path) -> None:
    """They would be untrained keys: figures of a model that has learnt nothing."""
    trained = write_examples(tmp_path / "a.parquet", 50)
    table = pq.read_table(trained)
    texts = table.set_column(2, "id", table["id"].cast(pa.string()))
    pq.write_table(texts, tmp_path / "b.parquet")
    with one_trainer() as trainer:
        trainer.fit(trained)
        for refused in (
            lambda: trainer.evaluate(tmp_path / "b.parquet"),
            lambda: trainer.fit(trained, valid=tmp_path / "b.parquet"),
            lambda: trainer.fit(tmp_path / "b.parquet"),
        ):
            with pytest.raises(DataError, match=r"b.parquet: column 'id' is string, but integer in .*a"):
                refused()
        assert trainer.evaluate(trained).examples == 50


def fit_with(running: Trainers, path: Path, spoil: Callable[[], None]) -> BaseException:
    """The error of a fit during which something is spoilt at the fifth step."""
    trainer = trainer_on(running.join(), CountingModel(at_step(5, spoil)))
    idle = own_threads()
    error = within(8.0, lambda: trainer.fit(path))
    assert set(own_threads()) <= set(idle)
    return error


BUG = "a bug in the server"


def raising(*_arguments: object) -> None:
    raise ZeroDivisionError(BUG)


def test_an_error_in_a_shard_ends_fit_with_it(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 400)
    with cluster_of(2) as running:
        error = fit_with(
            running,
            path,  # every push asks this, whichever way it is served
            lambda: setattr(running.embedded.servers[0]._threads[0].shard.marks, "fresh", raising),
        )
    assert isinstance(error, UnavailableError)
    assert BUG in str(error)


@pytest.mark.parametrize(
    ("about", "kill", "said"),
    [
        ({}, lambda at: setattr(at.servers[1]._session, "receive", raising), ["server [01] at memory:", BUG]),
        ({"shard_threads": 2}, lambda at: at.servers[1]._threads[1].put(raising), [BUG]),
        ({"timing": UNHURRIED}, lambda at: setattr(at.coordinator.session, "tick", raising), ["coordinator"]),
    ],
    ids=["server", "shard", "coordinator"],
)
def test_a_thread_that_dies_ends_fit_naming_its_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, about: dict[str, Any], kill: Any, said: list[str]
) -> None:
    path = write_examples(tmp_path / "a.parquet", 4000)
    with cluster_of(2, **about) as running:
        error = fit_with(running, path, lambda: kill(running.embedded))
    assert isinstance(error, UnavailableError)
    assert all(re.search(words, str(error)) for words in said)
    assert "has died" in caplog.text


def test_a_server_that_falls_silent_ends_fit_naming_it_and_what_was_lost(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 4000)
    with cluster_of(2, timing=UNHURRIED) as running:

        def kill() -> None:
            running.embedded.servers[0]._member.stop_heartbeats()
            running.embedded.servers[0]._link.close()

        error = fit_with(running, path, kill)
        server = running.embedded.servers[0]
    assert isinstance(error, ServerLostError)
    assert f"server {server.rank} at {server.address}" in str(error)
    assert "rows" in str(error)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("cache", {"age_batches": 8}, r"cache: expected a CacheSettings, as in pslib\.CacheSettings"),
        ("wire", "bfloat16", r"wire: expected a WireFormat, as in pslib\.WireFormat"),
        ("schedule", "cosine", r"schedule: expected a Schedule, as in pslib\.Cosine"),
        ("damping", True, r"damping: expected a number in 0\.\.1000, got True"),
        ("ssp_bound", 4, "ssp_bound: expected consistency 'ssp' with it, got 'async'; else leave it out"),
        ("geo_every_batches", 5, "geo_every_batches: expected consistency 'geo' with it"),
        ("geo_rows", 99, "geo_rows: expected consistency 'geo' with it"),
    ],
)
def test_a_setting_of_another_class_or_consistency_is_told_with_what_to_write(name, value, expected):
    from pslib.trainer.settings import TrainerSettings

    with pytest.raises(ConfigurationError, match=expected):
        TrainerSettings(**{name: value})


def test_a_model_that_is_none_is_refused_with_how_to_write_it() -> None:
    with cluster_of() as running:
        cluster = running.join()
        with pytest.raises(ConfigurationError, match=r"model: expected a model, .*got the class LR"):
            pslib.Trainer(LR, cluster)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match=r"model: expected a model, .*got a Cluster"):
            pslib.Trainer(cluster, LR(Schema(label="y", sparse=["a"])))  # type: ignore[arg-type]


def test_a_model_of_more_dense_parameters_than_can_be_set_up_is_refused_before_memory_is_taken() -> None:
    model = DeepFM(Schema(label="label", sparse=["id"]), hidden=(65536, 65536))
    with (
        pslib.connect() as cluster,
        pytest.raises(ConfigurationError, match=r"dense parameters take 17\.2 GB"),
    ):
        pslib.Trainer(model, cluster)
