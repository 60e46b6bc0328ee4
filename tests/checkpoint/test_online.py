"""Checkpoints of a training that goes on: a consistent cut, and a training that goes on from it exactly."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pslib
from pslib.batch import Batch
from pslib.checkpoint import Manifest, commit, discard, newest, read_manifest
from pslib.checkpoint.verification import verify_checkpoint
from pslib.data.synthetic.generator import Generated, GeneratorConfig, generate, generated_schema
from pslib.errors import CheckpointError, CheckpointFullError, ConfigurationError
from pslib.table.optimizers import Adagrad, Adam
from pslib.trainer.checkpoints import online, save_load
from pslib.trainer.collective import Job
from rec_models.deepfm import DeepFM
from tests.support.checkpoints import content_of
from tests.support.clusters import Trainers, cluster_of
from tests.support.counting_trainers import (
    QUICK,
    ROWS,
    StopError,
    counted_examples,
    counting,
    counts_in,
    saved_in,
    slowly,
    stop_after,
)
from tests.support.waiting import wait_until

EXACT = GeneratorConfig(
    train_rows=900, test_rows=100, seed=3, vocabularies=(7, 60, 300), dense_fields=2, row_group_rows=250
)
examples = pytest.fixture(counted_examples, scope="module")


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Generated:
    return generate(tmp_path_factory.mktemp("exact"), EXACT)


@pytest.mark.parametrize("mode", ["async", "ssp", "geo", "sync"])
def test_every_example_counts_once_when_a_training_goes_on_from_its_last_cut(
    examples: str, tmp_path: Path, mode: str
) -> None:
    every = pslib.CheckpointSettings(tmp_path / "saved", every_batches=20, keep_last=2)
    settings: dict[str, Any] = {"consistency": mode, "checkpoint": every}

    def interrupted(cluster: pslib.Cluster) -> None:
        counting(cluster, stop_after(60, tmp_path / "saved"), **settings).fit(examples, epochs=2)

    with cluster_of(2, trainers=2, timing=QUICK) as running:
        ends = running.run(interrupted, interrupted)
        assert all(isinstance(end, BaseException) for end in ends), ends
        assert any(isinstance(end, StopError) for end in ends), ends
    table = saved_in(tmp_path / "saved")["cut"]["table"]
    assert 0 < sum(stop - first for first, stop in table["leases"]["done"]) < table["leases"]["count"]

    def again(cluster: pslib.Cluster) -> tuple[dict[int, float], float]:
        trainer = counting(cluster, **settings)
        trainer.load(tmp_path / "saved")
        trainer.fit(examples, epochs=2)
        return counts_in(trainer)

    with cluster_of(3, trainers=2, partition_bits=8, timing=QUICK) as running:
        for end in running.results(again, again):
            assert set(end[0].values()) == {1.0 if mode == "sync" else 2.0}  # a step is a mean there
            assert end[1] == (2 * ROWS if mode in ("async", "ssp") else pytest.approx(ROWS, rel=0.3))


def exact(running: Trainers, on_step: Any = None, **settings: Any) -> pslib.Trainer:
    model = DeepFM(
        generated_schema(EXACT), dim=5, hidden=(6,), dropout=0.2, w_optimizer=Adam(), v_optimizer=Adagrad()
    )
    if on_step:
        plain, steps = model.stepper, Counter[str]()

        def stepper(run: Any) -> Any:
            made = plain(run)
            inner = made.loss_and_gradients

            def counted(*arguments: Any) -> Any:
                steps["n"] += 1
                time.sleep(0.01)
                if steps["n"] > on_step:
                    raise StopError
                return inner(*arguments)

            made.loss_and_gradients = counted
            return made

        object.__setattr__(model, "stepper", stepper)
    return pslib.Trainer(
        model,
        running.join(),
        batch_rows=32,
        lease_rows=128,
        staleness=0,
        dense_optimizer=Adam(0.005),
        seed=2,
        table=replace(model.table(), storage="bfloat16"),
        progress=False,
        **settings,
    )


def script(trainer: pslib.Trainer, data: Generated) -> list[Any]:
    results = trainer.fit(data.train_path, epochs=3, valid=data.test_path)
    return [*results, trainer.evaluate(data.test_path)]


@pytest.mark.parametrize("incremental", [0, 3])
def test_a_training_that_goes_on_ends_with_the_bits_of_one_that_was_never_interrupted(
    generated: Generated, tmp_path: Path, incremental: int
) -> None:
    """Also on other numbers of servers and partitions, twice interrupted, with stochastic rounding."""
    with cluster_of(1) as running:
        trainer = exact(running)
        expected = script(trainer, generated)
        trainer.save(tmp_path / "expected")
    every = pslib.CheckpointSettings(tmp_path / "cuts", every_batches=6, incremental=incremental)
    for servers, bits, stop in ((1, 7, 40), (4, 6, 25), (3, 8, None)):
        with cluster_of(servers, partition_bits=bits, timing=QUICK) as running:
            trainer = exact(running, stop, checkpoint=every)
            if (tmp_path / "cuts").exists():
                trainer.load(tmp_path / "cuts")
            if stop is None:
                assert script(trainer, generated) == expected
                trainer.save(tmp_path / "again")
            else:
                with pytest.raises(StopError):
                    script(trainer, generated)
    assert content_of(tmp_path / "again") == content_of(tmp_path / "expected")
    assert bool(saved_in(tmp_path / "cuts").get("increment")) in (False, incremental > 0)


def test_a_script_with_other_calls_cannot_go_on_and_may_begin_anew(examples: str, tmp_path: Path) -> None:
    every = pslib.CheckpointSettings(tmp_path / "saved", every_batches=10)
    with cluster_of(1, timing=QUICK) as running, pytest.raises(StopError):
        counting(running.join(), stop_after(50, tmp_path / "saved"), checkpoint=every).fit(examples)
    with cluster_of(1, timing=QUICK) as running:
        trainer = counting(running.join())
        trainer.load(tmp_path / "saved")
        with pytest.raises(ConfigurationError, match="call 1 is 'save', the checkpoint's was 'fit'"):
            trainer.save(tmp_path / "copy")
    with cluster_of(1, timing=QUICK) as running:
        trainer = counting(running.join())
        trainer.load(tmp_path / "saved", resume=False)
        before = counts_in(trainer)[1]
        trainer.fit(examples)
        assert counts_in(trainer)[1] == before + ROWS


def test_a_saved_line_says_how_long_it_took_and_how_long_trainers_paused(
    examples: str, tmp_path: Path
) -> None:
    every = pslib.CheckpointSettings(tmp_path / "saved", every_batches=20, keep_last=2)
    lines: list[str] = []
    with cluster_of(2, timing=QUICK) as running:
        trainer = counting(running.join(), slowly, checkpoint=every)

        def lines_of_three() -> list[str]:  # where files take long, a fit is over with its first one
            trainer.fit(examples, epochs=2)
            events = running.embedded.coordinator.session.events
            lines[:] = [line for line in events if line.startswith("saved ")]
            return lines[2:]

        wait_until(lines_of_three, 20, "three checkpoints", pause_s=0)
    for line in lines:
        assert re.fullmatch(
            r"saved .*checkpoint-0{5}\d \(all, \d+ MB\) in \d+\.\d s, pause \d\.\d{3} s", line
        )
    assert len(list((tmp_path / "saved").iterdir())) == 2
    assert read_manifest(newest(str(tmp_path / "saved"))).format_version == 4


def test_a_checkpoint_whose_files_take_longer_than_its_fit_says_where_that_fit_began(
    examples: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the epochs of later fits it would be taken for one after them, and examples be left out."""
    fit_is_over, files = threading.Event(), online.TrainerCuts._files

    def slow_files(led_by: Any, led: Any) -> Any:
        fit_is_over.wait(60)
        return files(led_by, led)

    monkeypatch.setattr(online.TrainerCuts, "_files", slow_files)
    monkeypatch.setattr(online, "END_S", 0.1)
    every = pslib.CheckpointSettings(tmp_path / "saved", every_batches=20)
    with cluster_of(1, timing=QUICK) as running:
        trainer = counting(running.join(), slowly, checkpoint=every)
        trainer.fit(examples)
        fit_is_over.set()
        wait_until(lambda: any(tmp_path.glob("saved/*/manifest.json")), 60, "a checkpoint")
        assert trainer._position.epochs == 1
    about = saved_in(tmp_path / "saved")["about"]
    assert (about["epochs"], about["steps"]) == (0, 0)


def test_a_disk_that_is_full_during_a_checkpoint_is_one_line_and_training_goes_on(
    examples: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = itertools.count()

    def full_at_first(place: str, manifest: Manifest) -> None:
        if next(writes) == 0:
            raise CheckpointError(f"{place}: can't write: No space left on device")
        commit(place, manifest)

    monkeypatch.setattr(online, "commit", full_at_first)
    every = pslib.CheckpointSettings(tmp_path / "saved", every_batches=20)
    with cluster_of(2, timing=QUICK) as running:
        trainer = counting(running.join(), slowly, checkpoint=every)
        for _ in range(60):  # it is tried again after a second
            trainer.fit(examples)
            events = running.embedded.coordinator.session.events
            if any(line.startswith("saved ") for line in events):
                break
    (line,) = [line for line in events if "No space left on device" in line]
    assert line.startswith("checkpoint not made: ")
    assert line.endswith("; again in 1 s")
    verify_checkpoint(newest(str(tmp_path / "saved")))
    named = [len(read_manifest(str(folder)).files) for folder in (tmp_path / "saved").iterdir()]
    assert len(list((tmp_path / "saved").glob("*/*.arrow"))) == sum(named), "of a failed one"


@pytest.mark.parametrize("manifest", ["manifest.json", "manifest.incomplete.json"])
def test_what_a_manifest_names_stays_although_its_save_has_failed(tmp_path: Path, manifest: str) -> None:
    with cluster_of(2) as running:
        place = Path(counting(running.join()).save(tmp_path / "saved", keep_last=2))
    files = sorted(place.glob("*.arrow"))
    token = files[0].name.split(".")[1].split("-")[0]
    (place / "manifest.json").rename(place / manifest)
    discard(str(place), token)
    assert sorted(place.glob("*.arrow")) == files
    (place / manifest).write_text("{")
    discard(str(place), token)
    assert sorted(place.glob("*.arrow")) == files, "it may name them"
    (place / manifest).unlink()
    discard(str(place), "0" * 8)
    assert sorted(place.glob("*.arrow")) == files
    discard(str(place), token)
    assert not place.exists()
    discard(str(place), token)


def test_the_checkpoint_that_the_coordinator_names_is_there_when_a_leader_dies(
    examples: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its manifest and its word to the coordinator, with ``keep_last: 1``."""
    plain, run, ends = online.TrainerCuts._end_images, online.TrainerCuts._run, Counter[bool]()

    def run_until_it_dies(led_by: Any, led: Any) -> None:
        with suppress(SystemExit):
            run(led_by, led)

    def dying(led_by: Any, led: Any, committed: bool) -> None:
        ends[committed] += 1
        if ends[True] == 2:
            raise SystemExit
        plain(led_by, led, committed)

    def until_it_dies(batch: Batch, rows: Any) -> None:
        slowly(batch, rows)
        if ends[True] == 2:
            raise StopError

    monkeypatch.setattr(online.TrainerCuts, "_end_images", dying)
    monkeypatch.setattr(online.TrainerCuts, "_run", run_until_it_dies)
    every = pslib.CheckpointSettings(tmp_path / "saved", every_batches=12, keep_last=1)
    with cluster_of(1, timing=QUICK) as running:
        with pytest.raises(StopError):
            counting(running.join(), until_it_dies, checkpoint=every).fit(examples, epochs=40)
        named = running.embedded.coordinator.session.registry.saved
    assert named.endswith("checkpoint-000001")
    assert verify_checkpoint(named).ok
    assert newest(str(tmp_path / "saved")).endswith("checkpoint-000002")


def test_the_checkpoint_that_the_coordinator_names_is_there_when_a_saver_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster_of(1, timing=QUICK) as running:
        trainer = counting(running.join())
        first = trainer.save(tmp_path / "saved", keep_last=1)
        session = running.embedded.coordinator.session
        session.registry.note_saved(first, "cut 1")  # as if a training had saved it: that one has a number

        def dying(job: Job, lease: Any, payload: Any = None) -> Any:
            raise StopError

        with monkeypatch.context() as dies:
            dies.setattr(Job, "end", dying)
            with pytest.raises(StopError):
                trainer.save(tmp_path / "saved", keep_last=1)
        assert session.registry.saved == first
    assert verify_checkpoint(first).ok
    assert newest(str(tmp_path / "saved")).endswith("checkpoint-000002")


def test_settings_that_make_no_sense_are_told() -> None:
    with pytest.raises(ConfigurationError, match="every_s: expected above 0, or every_batches"):
        pslib.CheckpointSettings("here", every_s=0)
    with pytest.raises(ConfigurationError, match="keep_last: expected at least 1"):
        pslib.CheckpointSettings("here", every_s=5, keep_last=0)
    with pytest.raises(ConfigurationError, match="every_s: expected seconds"):
        pslib.CheckpointSettings("here", every_s=-1)


class FullDisk:
    """Servers that find no space for the first saves, and a clock on which pauses take no time."""

    def __init__(self, trainer: pslib.Trainer, refusals: int, monkeypatch: pytest.MonkeyPatch) -> None:
        client = trainer.cluster.client
        self.time_s, self.pauses, self._left = 0.0, [], refusals
        self._save_files = client.save_files
        monkeypatch.setattr(client, "save_files", self.save_files)
        monkeypatch.setattr(save_load, "clock_of", lambda client: self)

    def save_files(self, place: str, stem: str) -> Any:
        entries = self._save_files(place, stem)
        self._left -= 1
        if self._left >= 0:
            raise CheckpointFullError(f"checkpoint {place}: can't write: [Errno 28] No space left on device")
        return entries

    def now_s(self) -> float:
        return self.time_s

    def sleep_s(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.time_s += seconds


def test_a_save_that_finds_no_space_is_tried_again_as_long_as_it_is_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with cluster_of(2) as running:
        trainer = counting(running.join(), None)
        disk = FullDisk(trainer, 7, monkeypatch)
        trainer.save(tmp_path / "saved", space_s=600)
        assert disk.pauses == [1, 2, 4, 8, 16, 30, 30]
        assert len([line for line in caplog.messages if line.endswith("tried again in 30 s")]) == 2
        assert len(list((tmp_path / "saved").glob("*.arrow"))) == len(
            read_manifest(str(tmp_path / "saved")).files
        ), "what a save that failed has left is gone"
        disk = FullDisk(trainer, 100, monkeypatch)
        with pytest.raises(CheckpointFullError, match="No space left") as caught:
            trainer.save(tmp_path / "numbered", keep_last=2, space_s=5)
        assert (sum(disk.pauses), disk.pauses[-1]) == (5, 2)
        assert caught.value.exit_code == 69
        disk = FullDisk(trainer, 1, monkeypatch)
        with pytest.raises(CheckpointFullError):
            trainer.save(tmp_path / "at-once")
        assert disk.pauses == []
        assert not list(tmp_path.glob("at-once/*.arrow"))
