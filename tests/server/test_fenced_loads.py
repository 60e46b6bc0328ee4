"""A load whose trainer falls asleep behind the coordinator's word that it is its own: servers refuse it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pslib.client.client import Client
from pslib.cluster import Cluster
from pslib.coordinator.leases import stream_of
from pslib.errors import CheckpointError, SupersededError
from pslib.server.requests import ShardRequest, run_on_shard
from pslib.shard.shard import Shard
from pslib.table.initializers import Constant
from pslib.table.optimizers import SGD
from pslib.table.tables import PartSpec, TableSpec
from pslib.trainer import collective
from pslib.wire.messages import CheckLoad, Failure, Load, Push
from tests.checkpoint.test_checkpoint_policies import save
from tests.support.clients import client_of
from tests.support.clusters import Trainers, cluster_of
from tests.support.counting import write_examples
from tests.support.processes.counting_runs import Start, assert_counted_once, metric, write_counting_examples
from tests.support.training import UNHURRIED, counts_of, one_trainer, trainer_on
from tests.support.waiting import PATIENCE_S
from tests.update_log.test_replay import TABLES, Run

SPEC = TableSpec("t", (PartSpec("v", 2, SGD(1.0), Constant(0.0)),))
KEYS = np.arange(100, dtype=np.uint64)
OLD, HEIR = (stream_of(3, 0), 0), (stream_of(3, 0), 1)
"""The lease of call 3 as it was given out first, and once more."""
SCRIPT = """
import os, signal, sys
from tests.support.processes import counting_script
from pslib.trainer.collective import Job

confirm = Job.confirm

def stops(job):
    confirm(job)
    try:
        os.close(os.open(sys.argv[2] + ".stopped", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    print("stops", os.getpid(), flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)

if "--load" in sys.argv:
    Job.confirm = stops
counting_script.main()
"""


def push(client: Client) -> None:
    client.push({"t": (KEYS, np.full((KEYS.size, 2), -1, np.float32))}).wait()


def rows_of(client: Client) -> set[float]:
    return set(np.unique(client.pull({"t": KEYS}).wait().rows["t"]).tolist())


@contextmanager
def trained(folder: Path, **about: Any) -> Iterator[tuple[Client, Trainers]]:
    """Rows are 2, those of the checkpoint in the folder are 1."""
    with client_of(2, **about) as (client, running):
        client.setup([SPEC])
        push(client)
        save(client, folder, SPEC)
        push(client)
        yield client, running


def assert_refused(client: Client, place: str) -> None:
    with pytest.raises(SupersededError, match="held under epoch 1; this trainer, which was silent") as caught:
        client.load(place, lease=OLD)
    assert "\n" not in str(caught.value)
    assert "mixture" not in str(caught.value)
    assert caught.value.exit_code == 69


def test_the_holder_before_loads_nothing_when_its_heir_has_loaded(tmp_path: Path) -> None:
    with trained(tmp_path, shard_threads=2) as (client, _running):
        stale = Load(str(tmp_path), "sent before it fell asleep", stream=OLD[0], epoch=OLD[1])
        assert client.load(str(tmp_path), lease=HEIR) == KEYS.size
        push(client)
        for server in client.servers:
            with pytest.raises(SupersededError):
                client.endpoint.ask(server, stale).wait()
        assert_refused(client, str(tmp_path))
        assert rows_of(client) == {2.0}
        assert client.load(str(tmp_path), lease=HEIR) == KEYS.size  # which is its to do again
        assert rows_of(client) == {1.0}


@pytest.mark.parametrize("ends_at", ["look", "load"])
def test_an_heir_whose_load_was_refused_has_the_lease_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends_at: str
) -> None:
    """Its script may catch that, and train on."""

    def is_damaged(*_arguments: Any) -> dict[str, Any]:
        raise CheckpointError("damaged")

    with trained(tmp_path) as (client, _running):
        with monkeypatch.context() as patch:
            changed = {"look": "check_load", "load": "load_into"}[ends_at]
            patch.setattr(f"pslib.server.shard_thread.{changed}", is_damaged)
            with pytest.raises(CheckpointError, match="damaged"):
                client.load(str(tmp_path), lease=HEIR)
        push(client)
        assert_refused(client, str(tmp_path))
        assert rows_of(client) == {3.0}


def test_a_load_of_a_client_that_knows_no_tables_is_under_no_other_lease(tmp_path: Path) -> None:
    with trained(tmp_path) as (client, running):
        client.load(str(tmp_path), lease=(stream_of(0, 0), 1))  # of the first call
        bare = running.client()
        assert bare.load(str(tmp_path)) == KEYS.size
        bare.close()


def test_a_load_of_no_lease_is_under_no_other_lease(tmp_path: Path) -> None:
    with trained(tmp_path) as (client, _running):
        client.load(str(tmp_path), lease=HEIR)
        push(client)
        assert client.load(str(tmp_path)) == KEYS.size
        assert rows_of(client) == {1.0}


# --- one shard, and its log


def ask(shard: Shard, message: CheckLoad | Load | Push) -> Any:
    return run_on_shard(shard, ShardRequest(b"", 0, message), lambda _shard, _message: {"rows": 0})


def outcome(shard: Shard, lease: tuple[int, int], kind: type[CheckLoad] | type[Load] = Load) -> str:
    """Return the refusal of a load under a lease; empty when it is done."""
    found = ask(shard, kind("any", "stem", stream=lease[0], epoch=lease[1]))
    return f"{found.code}: {found.text}" if isinstance(found, Failure) else ""


@pytest.mark.parametrize("kind", [CheckLoad, Load])
def test_a_lease_that_is_over_loads_nothing_and_is_not_looked_at(kind: type[CheckLoad] | type[Load]) -> None:
    shard = Shard(5, 3)
    assert not outcome(shard, OLD, kind)
    shard.finish_streams(OLD[0] + 1)
    for lease in (OLD, HEIR):
        assert f"fenced: lease {OLD[0]} is over" in outcome(shard, lease, kind)
    assert not outcome(shard, (stream_of(4, 0), 0), kind)


@pytest.mark.parametrize("kind", [CheckLoad, Load])
@pytest.mark.parametrize("images", [False, True], ids=["changes", "images"])
def test_a_server_that_comes_back_from_its_log_knows_it_from_before_the_first_push(
    kind: type[CheckLoad] | type[Load], images: bool
) -> None:
    """Nothing but a push follows it; and its record may be gone when an image stands for it."""
    run = Run(TABLES["SGD"], 3, log_bytes=1 << 40)
    assert not outcome(run.shard, HEIR, kind)
    run.push()
    if images:
        run.log.write_images()
        while run.log.owes:
            run.log.pace()
    twin = run.recovered()
    assert "fenced" in outcome(twin, OLD)
    assert not outcome(twin, HEIR)


# --- trainers


def test_a_trainer_that_falls_asleep_after_it_was_confirmed_does_not_load_over_what_its_heir_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, place = write_examples(tmp_path / "a.parquet", 50), tmp_path / "saved"
    asleep, trained = threading.Event(), threading.Event()
    confirm = collective.Job.confirm

    def falls_asleep(job: collective.Job) -> None:
        confirm(job)
        if not asleep.is_set():  # as SIGSTOP does it
            job.client.member.stop_heartbeats()
            asleep.set()
            assert trained.wait(PATIENCE_S)

    def old(cluster: Cluster) -> None:
        trainer_on(cluster).load(place)

    def successor(cluster: Cluster) -> list[float]:
        assert asleep.wait(PATIENCE_S)
        trainer = trainer_on(cluster)
        trainer.load(place)
        trainer.fit(path)
        trained.set()
        for thread in others:
            thread.join(PATIENCE_S)
        return sorted(set(counts_of(cluster, np.arange(50)).tolist()))

    with one_trainer(servers=2) as trainer:
        trainer.fit(path)
        trainer.save(place)
    with cluster_of(2, trainers=2, timing=UNHURRIED) as running:
        monkeypatch.setattr(collective.Job, "confirm", falls_asleep)
        errors: list[BaseException] = []

        def play_old() -> None:
            with running.join() as cluster:
                try:
                    old(cluster)
                except BaseException as error:
                    errors.append(error)

        others = [threading.Thread(target=play_old, daemon=True)]
        others[0].start()
        assert running.run(successor) == [[2.0]]
        (error,) = errors
        assert isinstance(error, SupersededError)
        assert "\n" not in str(error)


def test_a_process_that_is_stopped_after_it_was_confirmed_undoes_nothing_when_it_goes_on(
    start: Start, tmp_path: Path
) -> None:
    """No push is lost, and the run ends well: the others have done all of it."""
    examples, script = write_counting_examples(tmp_path / "a.parquet", 6000), tmp_path / "script.py"
    script.write_text(SCRIPT)
    first, last = tmp_path / "first", tmp_path / "last"
    begun = start("launch", "--servers", "1", "--out", tmp_path / "begun", script, examples, first)
    assert begun.finish(60) == 0, begun.output
    command = start(
        "launch", "--servers", "2", "--trainers", "2", "--out", tmp_path / "out", script, examples, last,
        "--load", first, "--pause-s", "0.1",
    )  # fmt: skip
    command.wait_for("stops")
    (said,) = command.lines("stops")
    command.wait_for("first batch", 40)
    pid = int(said.split()[-1])
    command.wait(lambda: metric(command, "pushes_applied") > 5, 40, "the successor to train")
    os.kill(pid, signal.SIGCONT)
    assert command.finish(60) == 0, command.output
    assert_counted_once(last, examples, epochs=2)
    assert "Traceback" not in command.output
    words = ("silent too long", "counts as lost", "this trainer, which was silent", "others have gone on")
    assert any(command.lines(one) for one in words), command.output
