"""A stream of files: predicted first, trained on once, in the order of names, also after a resume."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import pslib
from launch.job.job import read_job
from launch.job.preflight import check_data
from pslib.batch import Batch
from pslib.checkpoint import newest, read_manifest
from pslib.cluster import Cluster
from pslib.config import Timing
from pslib.data.dataset import ParquetData
from pslib.data.file_watch import FileWatch, StreamSettings
from pslib.errors import ConfigurationError, DataError
from pslib.recorder.display import result_text
from pslib.schema import Schema
from pslib.trainer.collective import Job, JobSpec
from pslib.trainer.streaming import WindowJobs
from pslib.wire.messages import Done, Lease, OpenJob, Result, Status
from rec_models import build
from tests.support.clusters import cluster_of
from tests.support.counting import SCHEMA, CountingModel, write_examples
from tests.support.processes.command import Command
from tests.support.training import counts_of, examples_counted, trainer_on
from tests.support.waiting import wait_until

SECOND_FIT = 6
"""Number of the call that trains the second window: each is window, evaluate, fit; they count from 1."""
SOON = StreamSettings(poll_s=0.01)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def arrive(folder: Path, name: str, rows: int, first: int) -> None:
    """Write a file beside the folder, then give it its name."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    write_examples(folder / ".being-written", rows, first=first).rename(folder / name)


def test_files_are_predicted_and_trained_once_in_the_order_of_their_names(folder: Path) -> None:
    arrive(folder, "b.parquet", 30, 100)
    arrive(folder, "a.parquet", 50, 0)
    (folder / "_STOP").touch()
    with pslib.connect() as cluster:
        trainer = trainer_on(cluster)
        seen = []
        for window in trainer.fit_stream(folder, SOON):
            assert window.result is not None
            seen.append((window.files, window.rows, window.result.examples, examples_counted(cluster)))
        assert seen == [(("a.parquet",), 50, 50, 50), (("b.parquet",), 30, 30, 80)]
        ids = np.concatenate([np.arange(50), np.arange(100, 130)])
        assert (counts_of(cluster, ids) == 1).all()


@pytest.mark.parametrize("trainers", ["the same", "another"])
def test_a_window_with_keys_of_another_type_than_those_before_is_refused(folder: Path, trainers: str) -> None:
    arrive(folder, "a.parquet", 50, 0)
    arrive(folder, "b.parquet", 50, 0)
    table = pq.read_table(folder / "b.parquet")
    place = table.schema.get_field_index("same")
    pq.write_table(table.set_column(place, "same", table["same"].cast("string")), folder / "b.parquet")
    if trainers == "the same":
        with pslib.connect() as cluster:
            found = trainer_on(cluster).fit_stream(folder, SOON)
            assert next(found).files == ("a.parquet",)
            with pytest.raises(DataError, match=r"b.parquet: column .same. is string, but integer in .*a"):
                next(found)
        return
    endpoint = SimpleNamespace(clock=FakeClock())
    arrivals = FileWatch(str(folder), SOON)
    finder, other = (
        WindowJobs(SimpleNamespace(endpoint=endpoint), None, None, SCHEMA, arrivals, SOON)  # type: ignore[arg-type]
        for _ in range(2)
    )
    words = json.loads(json.dumps(finder._found(None, ())))  # type: ignore[arg-type]
    leases = SimpleNamespace(leases=lambda: (), outcome=lambda: words)
    cluster = SimpleNamespace(calling=lambda _what: nullcontext())
    other._calls = SimpleNamespace(open=lambda *_: leases, cluster=cluster)  # type: ignore[assignment]
    assert other.next(())[0] == ("a.parquet",)
    with pytest.raises(DataError, match=r"b.parquet: column .same. is string, but integer in .*a.parquet"):
        other._found(None, ["a.parquet"])  # type: ignore[arg-type]


def test_predictions_come_before_anything_is_learned_of_a_window(folder: Path) -> None:
    """The model learns its labels by heart: what it predicts of a window knows only the windows before it."""
    steps: list[int] = []
    predicted: list[int] = []

    class Watched(CountingModel):
        def predict(self, batch, rows, dense):  # type: ignore[no-untyped-def]
            predicted.append(int(dense["examples"][0]))
            return super().predict(batch, rows, dense)

    for i in range(3):
        arrive(folder, f"{i}.parquet", 20, 100 * i)
    (folder / "_STOP").touch()
    with pslib.connect() as cluster:
        trainer = trainer_on(cluster, Watched(lambda batch, rows: steps.append(len(batch))))
        list(trainer.fit_stream(folder, SOON))
    assert sorted(set(predicted)) == [0, 20, 40]
    assert sum(steps) == 60


def test_a_stream_waits_for_files_until_it_is_told_that_none_will_come(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, plain = Counter[str](), FileWatch.look

    def look(self: FileWatch, done: Collection[str]) -> tuple[list[str], bool]:
        looks["all"] += 1
        if looks["all"] == 3:
            arrive(folder, "late.parquet", 20, 0)
        if looks["all"] == 6:
            (folder / "_STOP").touch()
        return plain(self, done)

    monkeypatch.setattr(FileWatch, "look", look)
    with pslib.connect() as cluster:
        found = [window.files for window in trainer_on(cluster).fit_stream(folder, SOON)]
        assert found == [("late.parquet",)]
        assert examples_counted(cluster) == 20
    assert looks["all"] == 6


def test_a_stream_ends_after_so_long_without_a_file(folder: Path) -> None:
    clock, confirmed = FakeClock(), Counter[str]()
    endpoint = SimpleNamespace(clock=clock)
    job = SimpleNamespace(confirm=lambda: confirmed.update(["times"]))
    settings = StreamSettings(idle_s=60, poll_s=2.5)
    arrivals = FileWatch(str(folder), settings)
    jobs = WindowJobs(SimpleNamespace(endpoint=endpoint), None, None, SCHEMA, arrivals, settings)  # type: ignore[arg-type]
    assert jobs._found(job, ())["files"] == []  # type: ignore[arg-type]
    assert (clock.now, confirmed["times"]) == (60, 24)  # it made sure each time that it may still look


def test_data_that_another_trainer_has_looked_into_is_what_one_would_find_oneself(folder: Path) -> None:
    arrive(folder, "a.parquet", 25, 0)
    table = pq.read_table(folder / "a.parquet")
    pq.write_table(table, folder / "b.parquet", row_group_size=10)
    settings = StreamSettings(window_files=2)
    client: Any = SimpleNamespace(endpoint=SimpleNamespace(clock=FakeClock()))
    jobs = WindowJobs(client, None, None, SCHEMA, FileWatch(str(folder), settings), settings)  # type: ignore[arg-type]
    words = jobs._found(None, ())  # type: ignore[arg-type]
    told = jobs._data(tuple(words["files"]), words)
    own = ParquetData([str(folder / "a.parquet"), str(folder / "b.parquet")], SCHEMA)
    assert [group.first_row for group in told.row_groups] == [0, 0, 10, 20]
    assert (told.row_groups, told.rows, told.fingerprint) == (own.row_groups, own.rows, own.fingerprint)


class FakeClock:
    """A clock that advances by sleeping."""

    now = 0.0

    def now_s(self) -> float:
        return self.now

    def sleep_s(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(("what", "own", "said"), [("window", [], 0), ("fit", [], 3), ("fit", [7], 0)])
def test_who_waits_for_files_or_for_its_own_work_says_nothing_and_who_waits_for_others_says_so(
    what: str, own: list[int], said: int, caplog: pytest.LogCaptureFixture
) -> None:
    answers = iter([Done(), *[Lease("wait", 0, 0, 0, 0)] * 20, Lease("done", 0, 0, 0, 0)])
    endpoint = SimpleNamespace(
        clock=FakeClock(), timing=Timing(report_s=5.0), lock=nullcontext(), session=None
    )
    client: Any = SimpleNamespace(
        rank=0,
        endpoint=endpoint,
        member=SimpleNamespace(incarnation=1),
        ask_coordinator=lambda _: next(answers),
    )
    progress: Any = SimpleNamespace(forget_jobs_until=int, held=lambda: own)
    job = Job(client, progress, 1, JobSpec(what, 0, {}, np.zeros(1, np.uint32)))
    job._look = SimpleNamespace(clear=int, wait=lambda _pause_s: endpoint.clock.sleep_s(1))  # type: ignore[assignment]
    assert list(job.leases()) == []
    assert [record.message.split(" ")[1] for record in caplog.records] == ["waiting"] * said


@pytest.mark.parametrize(
    ("holders", "said"),
    [
        ([3], "trainer 3 (pid 3 on b) holds"),
        ([0, 2, 3], "trainer 2 (pid 2 on b), trainer 3 (pid 3 on b) hold"),
        ([1, 2, 3, 4, 5, 6], "trainer 1 (pid 1 on b), trainer 2 (pid 2 on b), trainer 3 (pid 3 on b), "
         "trainer 4 (pid 4 on b) and 2 more hold"),
        ([9], "other trainers hold"),
    ],
)  # fmt: skip
def test_who_waits_half_a_minute_for_leases_of_others_says_whose_they_are(
    holders: list[int], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    members = [
        {"role": role, "rank": rank, "where": f"pid {rank} on b", "state": "lost" if rank == 9 else "live"}
        for role in ("server", "trainer")
        for rank in range(10)
    ]
    status = {"work": {"held": [[rank, 1] for rank in holders]}, "members": members}
    endpoint = SimpleNamespace(
        clock=FakeClock(), timing=Timing(report_s=5.0), lock=nullcontext(), session=None
    )
    asked: list[Any] = []

    def answer(message: Any) -> Any:
        asked.append(message)
        if isinstance(message, OpenJob):
            return Done()
        if isinstance(message, Status):
            return Result(status)
        states = {50: "held", 70: "done"}
        return Lease(states.get(int(endpoint.clock.now), "wait"), 0, 0, 0, 0)

    client: Any = SimpleNamespace(
        rank=0, endpoint=endpoint, member=SimpleNamespace(incarnation=1), ask_coordinator=answer
    )
    progress: Any = SimpleNamespace(forget_jobs_until=int, held=lambda: [], hold=int)
    job = Job(client, progress, 1, JobSpec("fit", 0, {}, np.zeros(1, np.uint32)))
    job._look = SimpleNamespace(clear=int, wait=lambda _pause_s: endpoint.clock.sleep_s(1))  # type: ignore[assignment]
    for _lease in job.leases():
        endpoint.clock.sleep_s(1)
    told = [record.message.split(" s for leases that ")[1] for record in caplog.records]
    assert told == [*["other trainers hold"] * 5, *[said] * 3, *["other trainers hold"] * 3]
    assert sum(isinstance(message, Status) for message in asked) == 1


def test_all_trainers_see_the_same_windows_and_each_example_counts_once(folder: Path) -> None:
    for i in range(6):
        arrive(folder, f"day={i // 3}/{i}.parquet", 40, 100 * i)
    (folder / "_STOP").touch()
    settings = StreamSettings(window_files=2, poll_s=0.01)
    ids = np.concatenate([100 * i + np.arange(40) for i in range(6)])

    def train(cluster: Cluster) -> list[tuple[str, ...]]:
        found = [window.files for window in trainer_on(cluster).fit_stream(folder, settings)]
        assert (counts_of(cluster, ids) == 1).all()
        return found

    with cluster_of(2, trainers=2) as running:
        first, second = running.run(train, train)
    assert first == second
    assert isinstance(first, list)
    assert [len(files) for files in first] == [2, 2, 2]


def test_a_training_goes_on_with_the_files_that_its_checkpoint_does_not_know(
    folder: Path, tmp_path: Path
) -> None:
    arrive(folder, "b.parquet", 30, 0)
    (folder / "_STOP").touch()
    with pslib.connect() as cluster:
        trainer = trainer_on(cluster)
        for _ in trainer.fit_stream(folder, SOON):
            trainer.save(tmp_path / "saved", keep_last=2)
    (folder / "b.parquet").unlink()  # what is done may go
    arrive(folder, "a.parquet", 20, 100)  # also a name that comes before it
    with pslib.connect() as cluster:
        trainer = trainer_on(cluster)
        trainer.load(tmp_path / "saved")
        assert [window.files for window in trainer.fit_stream(folder, SOON)] == [("a.parquet",)]
        assert (counts_of(cluster, np.concatenate([np.arange(30), 100 + np.arange(20)])) == 1).all()
        trainer.save(tmp_path / "saved", keep_last=2)
        assert read_manifest(newest(str(tmp_path / "saved"))).about["files"] == ["b.parquet", "a.parquet"]


def test_a_training_that_was_cut_within_a_window_goes_on_in_the_middle_of_it(
    folder: Path, tmp_path: Path
) -> None:
    for i in range(3):
        arrive(folder, f"{i}.parquet", 400, 1000 * i)
    (folder / "_STOP").touch()
    cuts = pslib.CheckpointSettings(str(tmp_path / "saved"), every_batches=1, keep_last=1000)
    timing = Timing(heartbeat_s=0.05, request_s=20.0)
    batches = Counter[str]()

    def cuts_of_the_second_window() -> list[Path]:
        found = sorted((tmp_path / "saved").glob("*/manifest.json"))
        folders = [manifest.parent for manifest in found]
        return [one for one in folders if read_manifest(str(one)).cut["table"]["job"] == SECOND_FIT]

    def slowly_until_it_is_cut(batch: Batch, rows: object) -> None:
        batches["all"] += 1
        if 80 < batches["all"] <= 160 and not cuts_of_the_second_window():
            time.sleep(0.05)  # so that there are heartbeats between batches

    with cluster_of(timing=timing) as running:
        model = CountingModel(slowly_until_it_is_cut)
        assert len(list(trainer_on(running.join(), model, checkpoint=cuts).fit_stream(folder, SOON))) == 3
    (folder / "0.parquet").unlink()  # a window that is passed over is not read again
    with cluster_of(timing=timing) as running:
        cluster = running.join()
        trainer = trainer_on(cluster)
        trainer.load(cuts_of_the_second_window()[0])
        assert [window.files for window in trainer.fit_stream(folder, SOON)] == [
            ("0.parquet",), ("1.parquet",), ("2.parquet",),
        ]  # fmt: skip
        ids = np.concatenate([1000 * i + np.arange(400) for i in range(3)])
        assert (counts_of(cluster, ids) == 1).all()


def test_files_in_a_folder_that_a_uri_names_may_have_any_names(folder: Path) -> None:
    names = ("hour=2026-01-01 00%3A00/a.parquet", "hour=2026-01-01 01%3A00/a#1.parquet")
    for number, name in enumerate(names):
        arrive(folder, name, 20, 20 * number)
    (folder / "_STOP").touch()
    with pslib.connect() as cluster:
        windows = list(trainer_on(cluster).fit_stream(f"file://{folder}", SOON))
        assert [window.files for window in windows] == [(name,) for name in names]
        assert (counts_of(cluster, np.arange(40)) == 1).all()


def test_files_count_by_their_names_or_by_a_marker_beside_them(folder: Path) -> None:
    for name in ("b/1.parquet", "b/_2.parquet", ".tmp/3.parquet", "a/4.parquet", "a/5.txt", "0.pq"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    (folder / "a" / "_SUCCESS").touch()
    many = FileWatch(str(folder), StreamSettings(window_files=9))
    assert many.look(()) == (["0.pq", "a/4.parquet", "b/1.parquet"], False)
    assert many.look({"0.pq", "b/1.parquet"}) == (["a/4.parquet"], False)
    marked = FileWatch(f"{folder}/", StreamSettings(window_files=9, marker="_SUCCESS", stop="end"))
    (folder / "end").mkdir()
    assert marked.look(()) == (["a/4.parquet"], False), "a folder ends nothing"
    (folder / "end").rmdir()
    (folder / "end").touch()
    assert marked.look(()) == (["a/4.parquet"], True)
    assert Path(marked.place("a/4.parquet")).exists()


def test_text_in_a_folder_that_is_watched_is_left_out_and_named_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "a.csv").write_text("click,user\n1,7\n")
    watch = FileWatch(str(folder), StreamSettings())
    assert [watch.look(()) for _ in range(3)] == [([], False)] * 3
    (line,) = (record.getMessage() for record in caplog.records)
    assert (
        "1 file or folder left out by name: a.csv; in a folder *.parquet, *.parq, *.pq files are read" in line
    )


def test_a_file_without_rows_is_a_window_without_a_result(folder: Path) -> None:
    arrive(folder, "a.parquet", 20, 0)
    table = pq.read_table(folder / "a.parquet")
    pq.write_table(table.slice(0, 0), folder / "0.parquet")
    (folder / "_STOP").touch()
    with pslib.connect() as cluster:
        seen = list(trainer_on(cluster).fit_stream(folder, SOON))
    assert [(window.files, window.rows, window.result is None) for window in seen] == [
        (("0.parquet",), 0, True), (("a.parquet",), 20, False),
    ]  # fmt: skip


def test_a_file_that_does_not_fit_is_named_after_what_came_before_it_was_trained(folder: Path) -> None:
    arrive(folder, "a.parquet", 20, 0)
    (folder / "b.parquet").write_text("no Parquet")
    with pslib.connect() as cluster:
        trainer = trainer_on(cluster)
        with pytest.raises(DataError, match=r"in/b\.parquet: expected a Parquet file"):
            list(trainer.fit_stream(folder, SOON))
        assert examples_counted(cluster) == 20


def test_what_makes_no_sense_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        StreamSettings(window_files=0, stop="a/b", marker="", idle_s=0, poll_s=0)
    assert len(caught.value.problems) == 5
    with pslib.connect() as cluster:
        trainer = trainer_on(cluster)
        with pytest.raises(DataError, match="none: expected a folder to watch"):
            trainer.fit_stream(tmp_path / "none")


def test_a_model_that_predicts_no_label_has_no_stream(folder: Path) -> None:
    model = build("gru4rec", Schema(label=None, ragged=["items"]), {"dim": 2})
    with pslib.connect() as cluster:
        trainer = pslib.Trainer(model, cluster, progress=False)
        with pytest.raises(ConfigurationError, match="fit_stream: expected a schema with a label"):
            trainer.fit_stream(folder)


def job_file(folder: Path, **changes: object) -> Path:
    data = {"train": str(folder), "stream": {"poll_s": 0.05}, "schema": {"label": "label", "sparse": ["id"]}}
    job = {"data": data, "model": {"name": "lr"}, "training": {"batch_rows": 10}} | changes
    path = folder.parent / "job.yaml"
    path.write_text(json.dumps(job))  # JSON is YAML
    return path


@pytest.mark.parametrize("durability", ["log", "memory"])
def test_a_run_waits_for_files_is_asked_to_leave_and_resumes_where_it_was(
    folder: Path, start: Callable[..., Command], durability: str
) -> None:
    arrive(folder, "a.parquet", 20, 0)
    path = job_file(folder, cluster={"durability": durability})
    command = start("train", path, "--quiet", "--out", folder.parent / "out")
    command.wait_for_file("metrics.jsonl", '"phase": "waiting for files"', 200)
    wait_until(lambda: '"examples": 20' in (command.out / "metrics.jsonl").read_text(), 200, "a trained file")
    command.process.terminate()
    assert command.finish(120) == 75, command.output
    arrive(folder, "b.parquet", 30, 100)
    (folder / "_STOP").touch()
    again = start("train", path, "--quiet", "--out", folder.parent / "out", "--resume")
    assert again.finish(200) == 0, again.output
    saved = read_manifest(str(folder.parent / "out" / "checkpoint"))
    assert saved.about["files"] == ["a.parquet", "b.parquet"]
    assert saved.about["steps"] == 5


def test_a_job_file_says_what_does_not_go_with_a_stream(folder: Path) -> None:
    data = {"train": ["a", "b"], "stream": True, "schema": {"label": "label", "sparse": ["id"]}}
    training = {"epochs": 2, "stopping": {}}
    with pytest.raises(ConfigurationError) as caught:
        read_job(job_file(folder, data=data, training=training))
    assert [line.partition(":")[0] for line in caught.value.problems] == [
        "data.stream", "training.epochs", "training.stopping", "training.stopping",
    ]  # fmt: skip
    for name, schema, valid in (("gru4rec", {"ragged": ["items"]}, None), ("lr", data["schema"], "a")):
        data = {"train": str(folder), "stream": True, "schema": schema, "valid": valid}
        with pytest.raises(ConfigurationError, match="is predicted") as caught:
            read_job(job_file(folder, data=data, model={"name": name}))
        (line,) = caught.value.problems
        assert line.startswith("data.valid: expected none" if valid else "data.stream: expected a label")
    empty = job_file(folder)
    check_data(read_job(empty))  # a folder that is empty as yet
    assert read_job(empty).data.stream == StreamSettings(poll_s=0.05)


def test_evaluations_of_a_stream_say_after_how_many_files_and_lines_name_no_epoch(folder: Path) -> None:
    for number, name in enumerate(["a", "b", "c"]):
        arrive(folder, f"{name}.parquet", 20, 100 * number)
    (folder / "_STOP").touch()
    with pslib.connect() as cluster:
        trainer = trainer_on(cluster)
        list(trainer.fit_stream(folder, StreamSettings(window_files=2, poll_s=0.01)))
        assert cluster.status()["epochs"] == 0
        trainer.evaluate(folder / "a.parquet", name="test")
        trainer.save(folder.parent / "saved")
        trainer.load(folder.parent / "saved")
        trainer.evaluate(folder / "a.parquet")
        trainer.fit(folder / "a.parquet", valid=folder / "b.parquet")
        results = [one for one in cluster.status()["results"] if one["kind"] == "evaluate"]
    heads = [result_text(one).split(":")[0] for one in results]
    assert heads == [
        "window after 0 files",
        "window after 2 files",
        "test after 3 files",
        "evaluate after 3 files",
        "valid after epoch 3",  # as it counts on: each window was one
    ]
