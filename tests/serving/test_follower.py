"""A server of models that follows a training: versions and ages of its answers, and when it is unready."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pslib.client.following import Following
from pslib.clock import SystemClock
from pslib.errors import ConfigurationError, UnavailableError
from pslib.scoring.followed_parameters import FollowedParameters
from pslib.serving.follower import Follower
from pslib.serving.settings import ServeSettings
from tests.support.followed import FollowedTraining, clicks, followed_training, note_cluster
from tests.support.model_server import Client
from tests.support.waiting import PATIENCE_S, wait_until

RECORD = {"user": 3, "item": 5}


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FollowedTraining]:
    with followed_training(tmp_path_factory.mktemp("run")) as one:
        yield one


def parameters_of(client: Client) -> FollowedParameters:
    found = client.repository.model("clicks").current.model.parameters
    assert isinstance(found, FollowedParameters)
    return found


def has_all(training: FollowedTraining, parameters: FollowedParameters) -> bool:
    """Return whether a scorer has the bits of the cluster."""
    keys = parameters.keys()
    rows, dense = training.expected(keys)
    with parameters.reading():
        mine = np.concatenate([one.ravel() for one in parameters.dense.values()])
        return parameters.rows(keys).tobytes() == rows.tobytes() and mine.tobytes() == dense.tobytes()


def test_a_first_version_has_the_rows_of_the_cluster_bit_by_bit(training: FollowedTraining) -> None:
    with training.served() as client:
        parameters = parameters_of(client)
        assert parameters.count == 250
        assert has_all(training, parameters)
        status, answer, _ = client.ask("POST", "/predict", RECORD)
    assert status == 200
    base, plus, number = answer["version"].partition("+")
    assert (base, plus) == ("20", "+")
    assert int(number) >= 1
    assert 0 <= answer["age_s"] < PATIENCE_S


def test_a_push_is_served_without_a_checkpoint(training: FollowedTraining) -> None:
    with training.served() as client:
        parameters = parameters_of(client)
        before = client.ask("POST", "/predict", RECORD)[1]["predictions"]
        training.push(parameters.keys()[:100], 0.5)
        wait_until(lambda: has_all(training, parameters), PATIENCE_S, "the scorer to follow")
        assert client.ask("POST", "/predict", RECORD)[1]["predictions"] != before


def test_answers_of_the_inference_protocol_name_version_and_age(training: FollowedTraining) -> None:
    inputs = [
        {"name": name, "datatype": "INT64", "shape": [1], "data": [value]} for name, value in RECORD.items()
    ]
    with training.served() as client:
        _, answer, _ = client.ask("POST", "/v2/models/clicks/infer", {"inputs": inputs})
        _, metrics, _ = client.ask("GET", "/metrics")
    assert answer["model_version"].startswith("20+")
    assert answer["parameters"]["age_s"] >= 0
    assert 'pslib_serve_followed_version{model="clicks",version="20"}' in metrics.decode()
    assert 'pslib_serve_age_seconds{model="clicks",version="20"}' in metrics.decode()


def test_a_version_is_as_old_as_the_beginning_of_its_round(
    training: FollowedTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, begin = list[float](), Following.begin

    def begin_later(following: Following, addresses: list[str]) -> None:
        begun.append(SystemClock().now_s())
        begin(following, addresses)

    monkeypatch.setattr(Following, "begin", begin_later)
    with training.served(follow_s=3600) as client:
        assert parameters_of(client).as_of_s <= begun[-1]


def test_a_follower_ends_with_its_version_and_with_the_server(training: FollowedTraining) -> None:
    with training.served(keep_versions=1) as client:
        old = client.repository.version("clicks").follower
        training.push(parameters_of(client).keys()[:1], 0.5)
        training.trainer.save(training.folder / "checkpoint")
        client.repository.load("clicks")
        new = client.repository.version("clicks").follower
        assert old is not None
        assert new is not None
        assert new is not old
        wait_until(lambda: not old._thread.is_alive(), PATIENCE_S, "the end of the one before")
        assert new._thread.is_alive()
    assert not new._thread.is_alive()


def test_a_cluster_of_other_partitions_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    with (
        followed_training(tmp_path / "again", partition_bits=5) as again,
        followed_training(tmp_path) as training,
        training.served() as client,
    ):
        place = again.running.embedded
        note_cluster(tmp_path, place.address, place.cluster_id)
        training.running.close()
        wait_until(lambda: bool(training.lines), PATIENCE_S, "a line that tells it")
        wait_until(
            lambda: client.repository.version("clicks").follower._problem.endswith("start pslib serve again"),
            PATIENCE_S,
            "the reason",
        )


def test_every_answer_under_load_is_that_of_its_own_version(training: FollowedTraining) -> None:
    """Pushes set all that a prediction is made of; two answers of one version are the same."""
    seen: dict[str, set[float]] = {}
    with training.served(follow_s=0.01) as client:
        keys = parameters_of(client).keys()
        over = threading.Event()

        def push() -> None:
            for number in range(60):
                training.push(keys, 0.1 if number % 2 else -0.1)
            over.set()

        pusher = threading.Thread(target=push)
        pusher.start()
        while not over.is_set():
            _, answer, _ = client.ask("POST", "/predict", RECORD)
            seen.setdefault(answer["version"], set()).add(answer["predictions"][0])
        pusher.join(PATIENCE_S)
    assert len(seen) > 3, f"too few versions to tell anything: {list(seen)}"
    assert all(len(scores) == 1 for scores in seen.values())


def test_training_goes_on_and_the_scorer_ends_with_its_rows(training: FollowedTraining) -> None:
    with training.served() as client:
        training.trainer.fit(clicks(1))
        wait_until(lambda: has_all(training, parameters_of(client)), PATIENCE_S, "the scorer to follow")


def test_a_cluster_that_is_gone_is_told_once_and_makes_an_old_model_unready(tmp_path: Path) -> None:
    with followed_training(tmp_path) as training, training.served(max_age_s=1.0) as client:
        assert client.ask("GET", "/v2/health/ready")[0] == 200
        assert client.ask("GET", "/v2/models/clicks/ready")[0] == 200
        training.running.close()
        wait_until(
            lambda: client.ask("GET", "/v2/health/ready")[0] == 503, PATIENCE_S, "an old model to be unready"
        )
        assert client.ask("GET", "/v2/models/clicks/ready")[0] == 503
        status, answer, _ = client.ask("POST", "/predict", RECORD)
        assert status == 200
        assert answer["age_s"] > 1
        wait_until(lambda: bool(training.lines), PATIENCE_S, "a line that tells it")
    assert len(training.lines) == 1
    assert "not followed, the version before answers" in training.lines[0]


def test_a_cluster_is_followed_again_only_with_a_new_version(
    training: FollowedTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds that end while partitions are at no server bring none."""
    training.lines.clear()
    with training.served() as client:
        rounds = threading.Semaphore(0)
        with monkeypatch.context() as lost, monkeypatch.context() as silent:
            lost.setattr(Following, "is_complete", property(lambda _self: rounds.release()))
            silent.setattr("pslib.serving.follower.ASK_S", 0.0)
            wait_until(lambda: bool(training.lines), PATIENCE_S, "a line that tells of the silence")
            silent.undo()
            while rounds.acquire(blocking=False):
                pass
            for _ in range(3):
                assert rounds.acquire(timeout=PATIENCE_S)
            version = parameters_of(client).version
            assert len(training.lines) == 1, training.lines
        wait_until(lambda: len(training.lines) > 1, PATIENCE_S, "a line that tells of the end")
        assert parameters_of(client).version > version
    assert training.lines[1].endswith("followed again")


def test_a_cluster_without_a_server_for_a_partition_is_refused_in_a_line(
    training: FollowedTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Following, "is_complete", property(lambda _self: False))
    monkeypatch.setattr("pslib.serving.follower.START_S", 0.3)
    expected = pytest.raises(UnavailableError, match="expected each partition at a server")
    with expected as caught, training.served():
        pass
    assert "\n" not in str(caught.value)


def test_a_run_that_was_started_again_elsewhere_is_found_by_its_folder(tmp_path: Path) -> None:
    """Another cluster at another address, with other rows: no row of the first one stays."""
    (tmp_path / "again").mkdir()
    with (
        followed_training(tmp_path / "again", servers=3) as again,
        followed_training(tmp_path) as training,
        training.served() as client,
    ):
        again.trainer.fit(clicks(7))
        parameters = parameters_of(client)
        assert has_all(training, parameters)
        training.running.close()
        note_cluster(tmp_path, again.running.embedded.address, again.running.embedded.cluster_id)
        wait_until(lambda: has_all(again, parameters), PATIENCE_S, "the scorer to follow the new cluster")
        assert parameters.count == again.cluster.client.stats()["rows"]


def test_rows_may_come_in_a_smaller_type(training: FollowedTraining) -> None:
    with training.served(follow_rows_as="float16") as client:
        parameters = parameters_of(client)
        keys = parameters.keys()
        expected = training.expected(keys)[0].astype(np.float16).astype(np.float32)
        with parameters.reading():
            assert np.array_equal(parameters.rows(keys), expected)


def test_a_folder_without_a_running_cluster_is_refused_in_a_line(tmp_path: Path) -> None:
    def follow() -> None:
        Follower(str(tmp_path), None, ServeSettings(), SystemClock(), lambda _line: None)

    with pytest.raises(ConfigurationError, match="expected the folder of a run that has started"):
        follow()
    note_cluster(tmp_path, "tcp://127.0.0.1:9", "gone")
    with pytest.raises(UnavailableError) as caught:
        follow()
    assert "\n" not in str(caught.value)
