"""Predictions over HTTP are those of an evaluation, of every model; and each wrong request gets its line."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pslib
from pslib.errors import ConfigurationError
from tests.support.model_server import KEPT, LISTS, Client, served
from tests.support.models.zoo import CLICK_MODELS, Trained, model_named
from tests.support.waiting import PATIENCE_S, wait_until


def json_inputs(table: pa.Table) -> list[dict[str, Any]]:
    """Return columns as inputs in JSON, lists as elements and lengths."""
    kinds = {"age": "FP32", "user": "INT64", "year": "INT64"}
    inputs = []
    for name in table.column_names:
        values = table[name].to_pylist()
        if name in LISTS:
            valid = [one is not None for one in values]
            inputs.append(tensor(f"{name}.lengths", "INT32", [len(one or []) for one in values]))
            inputs.append(tensor(f"{name}.valid", "BOOL", valid))
            values = [value for one in values for value in one or []]
        inputs.append(tensor(name, kinds.get(name, "BYTES"), values))
    return inputs


def tensor(name: str, datatype: str, data: list[Any]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": [len(data)], "data": data}


def triton_inputs(table: pa.Table) -> list[Any]:
    """Return columns as binary inputs of Triton's client, missing values beside them."""
    from tritonclient.http import InferInput

    found = []
    for given in json_inputs(table):
        data, datatype = given["data"], given["datatype"]
        if None in data:
            valid = InferInput(f"{given['name']}.valid", given["shape"], "BOOL")
            valid.set_data_from_numpy(np.array([one is not None for one in data]))
            found.append(valid)
            data = ["" if one is None and datatype == "BYTES" else one or 0 for one in data]
        kind: Any = {"FP32": np.float32, "INT64": np.int64, "INT32": np.int32, "BOOL": np.bool_}.get(datatype)
        values = np.array([one.encode() for one in data], object) if kind is None else np.array(data, kind)
        one = InferInput(given["name"], given["shape"], datatype)
        one.set_data_from_numpy(values)
        found.append(one)
    return found


@pytest.mark.parametrize("name", CLICK_MODELS)
def test_every_way_to_ask_gives_the_predictions_of_an_evaluation(name: str, tmp_path: Path) -> None:
    from tritonclient.http import InferenceServerClient

    trained = Trained(tmp_path, model_named(name))
    trained.run(lambda trainer: trainer.evaluate(trained.test, predictions=tmp_path / "scores"))
    expected = pq.read_table(tmp_path / "scores")["prediction"].to_numpy()
    table = pq.read_table(trained.test, columns=list(KEPT))
    with served({"m": trained.checkpoint}) as client:
        status, records, _ = client.ask("POST", "/predict", table.to_pylist())
        assert status == 200, records
        status, plain, _ = client.ask("POST", "/v2/models/m/infer", {"inputs": json_inputs(table)})
        assert status == 200, plain
        triton = InferenceServerClient(f"127.0.0.1:{client.port}")
        packed = triton.infer("m", triton_inputs(table)).as_numpy("prediction")
        triton.close()
    shape = plain["outputs"][0]["shape"]
    answers = [
        np.array(records["predictions"]),
        np.array(plain["outputs"][0]["data"]).reshape(shape),
        packed,
    ]
    for answer in answers:
        first = answer if answer.ndim == 1 else answer[:, 0]
        np.testing.assert_allclose(first, expected, rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def client(trained: Trained) -> Iterator[Client]:
    with served({"clicks": trained.checkpoint}, rows_max=100, body_bytes_max=1 << 16) as found:
        yield found


RECORD = {"age": 0.5, "user": 3, "movie": "m1", "genres": ["a"], "liked": []}


def test_triton_lists_models_and_reads_their_metadata(client: Client, trained: Trained) -> None:
    from tritonclient.http import InferenceServerClient

    triton = InferenceServerClient(f"127.0.0.1:{client.port}")
    assert triton.is_server_live()
    assert triton.is_server_ready()
    assert triton.is_model_ready("clicks")
    version = str(pslib.load(trained.checkpoint).steps)
    assert triton.get_model_repository_index() == [
        {"name": "clicks", "version": version, "state": "READY", "reason": ""}
    ]
    about = triton.get_model_metadata("clicks")
    assert about["versions"] == [version]
    inputs = {one["name"]: one["datatype"] for one in about["inputs"]}
    assert inputs == {
        "age": "FP32",
        "user": "INT64",
        "movie": "BYTES",
        "genres": "BYTES",
        "liked": "BYTES",
        "genres.lengths": "INT32",
        "liked.lengths": "INT32",
    }
    assert triton.get_server_metadata()["name"] == "pslib"
    triton.close()


def test_dictionary_columns_and_unicode_are_as_plain_ones(trained: Trained, client: Client) -> None:
    table = pq.read_table(trained.test, columns=list(KEPT))
    odd = table.set_column(
        table.column_names.index("movie"), "movie", pa.array(["Zürich 東京 🎬"] * len(table))
    )
    expected = pslib.load(trained.checkpoint).predict(
        odd.set_column(table.column_names.index("movie"), "movie", odd["movie"].dictionary_encode())
    )
    _, answer, _ = client.ask("POST", "/predict", odd.to_pylist())
    np.testing.assert_allclose(answer["predictions"], expected, rtol=0, atol=1e-6)


def test_a_request_names_itself_and_its_version(client: Client) -> None:
    inputs = json_inputs(pa.Table.from_pylist([RECORD]).select(["age", "user", "movie", "genres", "liked"]))
    version = next(iter(client.repository.model("clicks").kept))
    path = f"/v2/models/clicks/versions/{version}/infer"
    status, answer, _ = client.ask("POST", path, {"id": "q7", "inputs": inputs})
    assert status == 200
    assert (answer["id"], answer["model_name"], answer["model_version"]) == ("q7", "clicks", version)


INFER = "/v2/models/clicks/infer"
AGE = tensor("age", "FP32", [0.5])


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "told"),
    [
        ("GET", "/nothing", None, {}, 404, "nothing at /nothing"),
        ("GET", INFER, None, {}, 405, "GET is not for"),
        ("POST", "/v2/models/none/infer", {"inputs": [AGE]}, {}, 404, "model 'none': expected one of clicks"),
        ("GET", "/v2/models/none", None, {}, 404, "expected one of clicks"),
        ("GET", "/v2/models/clicks/versions/99", None, {}, 404, "expected a version of"),
        ("POST", "/v2/models/clicks/versions/99/infer", {}, {}, 404, "got '99'"),
        ("POST", INFER, b"{", {}, 400, "body: expected JSON"),
        ("POST", INFER, b"[1]", {}, 400, "expected a JSON object, got list"),
        ("POST", INFER, {}, {}, 400, "expected inputs, an array of objects"),
        ("POST", INFER, {"inputs": [1]}, {}, 400, "expected inputs, an array of objects"),
        ("POST", INFER, {"inputs": [AGE | {"shape": [2]}]}, {}, 400, "its shape has 2 elements, its data 1"),
        ("POST", INFER, {"inputs": [AGE]}, {}, 400, "no columns 'user', 'movie', 'liked'"),
        ("POST", INFER, {"inputs": [AGE], "id": 7}, {}, 400, "expected id as a text"),
        ("POST", INFER, {"inputs": [AGE], "outputs": [{"name": "x"}]}, {}, 400, "output 'x'"),
        (
            "POST",
            INFER,
            {"inputs": [{"name": "a", "datatype": "FP32", "shape": [1]}]},
            {},
            400,
            "expected data, or",
        ),
        (
            "POST",
            INFER,
            {"inputs": [AGE | {"parameters": {"binary_data_size": 9}}]},
            {},
            400,
            "binary_data_size: expected 0 to 0",
        ),
        ("POST", INFER, b"{}x", {"Inference-Header-Content-Length": "9"}, 400, "expected 0 to 3"),
        ("POST", INFER, b"{}", {"Inference-Header-Content-Length": "two"}, 400, "expected a number of bytes"),
        ("POST", INFER, b"[" * 5000, {}, 400, "body: expected JSON"),
        ("POST", INFER, b'{"a":' + b"[" * 50 + b"]" * 50 + b"}", {}, 400, "at most 8 arrays and objects"),
        ("POST", INFER, b"[1, " * 50 + b"1" + b"]" * 50, {}, 400, "at most 8 arrays and objects"),
        ("POST", "/predict", [], {}, 400, "expected a record, records"),
        ("POST", "/predict", ["text"], {}, 400, "expected records, objects"),
        ("POST", "/predict", [RECORD] * 101, {}, 400, "expected 1 to 100 rows, got 101"),
        ("POST", "/predict", RECORD | {"age": "old"}, {}, 400, "age"),
        ("POST", "/predict", RECORD | {"user": "a text"}, {}, 400, "user"),
        ("POST", "/predict", b" " * (1 << 17), {}, 413, "at most 65536 bytes"),
        ("POST", "/predict?model=none", RECORD, {}, 404, "model 'none'"),
    ],
)
def test_wrong_requests_get_a_status_and_a_line(
    client: Client, method: str, path: str, body: Any, headers: dict[str, str], status: int, told: str
) -> None:
    found, answer, _ = client.ask(method, path, body, headers)
    assert (found, told in answer["error"]) == (status, True), answer
    assert client.ask("POST", "/predict", RECORD)[0] == 200


def test_a_full_queue_answers_503_and_when_to_come_again(trained: Trained) -> None:
    with served({"m": trained.checkpoint}, waiting_rows_max=1, threads=1) as client:
        version = client.repository.version("m")
        begun, gate, real = threading.Semaphore(0), threading.Event(), version.batcher._predict

        def slow(table: pa.Table) -> Any:
            begun.release()
            gate.wait(60)
            return real(table)

        version.batcher._predict = slow
        busy = [version.batcher.submit(pa.Table.from_pylist([RECORD]))]
        begun.acquire()
        busy.append(version.batcher.submit(pa.Table.from_pylist([RECORD])))
        status, answer, headers = client.ask("POST", "/predict", RECORD)
        gate.set()
        assert (status, headers["Retry-After"]) == (503, "1")
        assert "1 rows wait, and at most 1 may" in answer["error"]
        assert [one.result(60).values.size for one in busy] == [1, 1]
        assert client.ask("POST", "/predict", RECORD)[0] == 200


def test_a_server_that_leaves_is_unready_and_refuses(trained: Trained) -> None:
    with served({"m": trained.checkpoint}) as client:
        client.server.leaving = True
        assert client.ask("GET", "/v2/health/live")[0] == 200
        assert client.ask("GET", "/v2/health/ready")[0] == 503
        assert client.ask("GET", "/v2/models/m/ready")[0] == 503
        status, answer, _ = client.ask("POST", "/predict", RECORD)
        assert (status, answer["error"]) == (503, "the server is leaving; ask another one")


def test_metrics_count_requests_rows_and_predictions(trained: Trained) -> None:
    with served({"m": trained.checkpoint}) as client:
        _, answer, _ = client.ask("POST", "/predict", [RECORD] * 3)
        client.ask("POST", "/predict", [])
        text = client.ask("GET", "/metrics")[1].decode()
    version = answer["version"]
    labels = f'model="m",version="{version}"'
    assert f'pslib_serve_requests_total{{model="m",status="200",version="{version}"}} 1.0' in text
    assert f'pslib_serve_requests_total{{model="m",status="400",version="{version}"}} 1.0' in text
    assert f"pslib_serve_rows_total{{{labels}}} 3.0" in text
    assert f"pslib_serve_request_seconds_count{{{labels}}} 2.0" in text
    total = float(text.split(f"pslib_serve_predictions_sum_total{{{labels}}} ")[1].split()[0])
    assert total == pytest.approx(sum(answer["predictions"]), rel=1e-5)


# --- versions -------------------------------------------------------------------------------------------


def numbered(trained: Trained, folder: Path, *numbers: int) -> None:
    for number in numbers:
        shutil.copytree(trained.checkpoint, folder / f"checkpoint-{number:06d}")


def test_a_newer_checkpoint_answers_and_the_one_before_is_kept(trained: Trained, tmp_path: Path) -> None:
    numbered(trained, tmp_path, 1)
    with served({"m": str(tmp_path)}) as client:
        assert client.ask("POST", "/predict", RECORD)[1]["version"] == "1"
        numbered(trained, tmp_path, 2)
        assert client.repository.refresh() == [f"m: version 2 answers, {tmp_path}/checkpoint-000002"]
        assert client.repository.refresh() == []
        assert client.ask("POST", "/predict", RECORD)[1]["version"] == "2"
        assert client.ask("POST", "/predict?version=1", RECORD)[1]["version"] == "1"
        numbered(trained, tmp_path, 3)
        client.repository.refresh()
        assert client.ask("POST", "/predict?version=1", RECORD)[0] == 404
        assert client.ask("POST", "/predict", RECORD)[1]["version"] == "3"


def test_a_checkpoint_that_is_damaged_is_not_taken(trained: Trained, tmp_path: Path) -> None:
    numbered(trained, tmp_path, 1)
    with served({"m": str(tmp_path)}) as client:
        numbered(trained, tmp_path, 2)
        file = next((tmp_path / "checkpoint-000002").glob("embedding*"))
        file.write_bytes(file.read_bytes()[:-9])
        (line,) = client.repository.refresh()
        assert "was not taken, the version before answers" in line
        assert client.ask("POST", "/predict", RECORD)[1]["version"] == "1"


def test_a_rollback_answers_at_once_and_holds_until_another_is_asked_for(
    trained: Trained, tmp_path: Path
) -> None:
    numbered(trained, tmp_path, 1)
    with served({"m": str(tmp_path)}) as client:
        numbered(trained, tmp_path, 2)
        client.repository.refresh()
        status, answer, _ = client.ask("POST", "/v2/repository/models/m/rollback", {})
        assert (status, answer) == (200, {"name": "m", "version": "1"})
        numbered(trained, tmp_path, 3)
        assert client.repository.refresh() == []
        assert client.ask("POST", "/predict", RECORD)[1]["version"] == "1"
        status, answer, _ = client.ask("POST", "/v2/repository/models/m/rollback", {})
        assert (status, "no version before 1 is kept" in answer["error"]) == (404, True)
        assert client.ask("POST", "/v2/repository/models/m/load")[1] == {"name": "m", "version": "3"}
        assert client.ask("POST", "/predict", RECORD)[1]["version"] == "3"


def test_a_share_of_requests_goes_to_a_version(trained: Trained, tmp_path: Path) -> None:
    numbered(trained, tmp_path, 1)
    with served({"m": str(tmp_path)}) as client:
        numbered(trained, tmp_path, 2)
        client.repository.refresh()
        path = "/v2/repository/models/m/split"
        assert client.ask("POST", path, {"version": "1", "share": 0.25})[0] == 200
        numbers = [client.repository.version("m").number for _ in range(2000)]
        assert 400 < numbers.count("1") < 600  # 500, with a deviation of 19
        assert client.ask("POST", path, {"version": "9", "share": 0.25})[0] == 404
        assert client.ask("POST", path, {"version": "1", "share": 2})[0] == 400
        assert client.ask("POST", path, {"version": "1", "share": 0})[0] == 200
        assert {client.repository.version("m").number for _ in range(50)} == {"2"}


DROPPED = "pslib_serve_shadow_dropped_rows_total"


def figure(client: Client, name: str, labels: str) -> float:
    """Return a figure of the metrics; 0 if it is not there."""
    text = client.ask("GET", "/metrics")[1].decode()
    found = re.search(rf"^{re.escape(f'{name}{{{labels}}}')} (\S+)$", text, re.M)
    return float(found[1]) if found else 0.0


def test_a_shadow_scores_the_rows_of_the_version_that_answers(trained: Trained, tmp_path: Path) -> None:
    numbered(trained, tmp_path, 1)
    with served({"m": str(tmp_path)}) as client:
        numbered(trained, tmp_path, 2)
        client.repository.refresh()
        batcher = client.repository.version("m", "1").batcher
        real, labels = batcher._predict, 'model="m",shadow="1",version="2"'

        def higher(table: pa.Table) -> Any:
            found = real(table)
            return found._replace(values=found.values + np.float32(0.25))

        batcher._predict = higher
        path = "/v2/repository/models/m/shadow"
        assert client.ask("POST", path, {"version": "9", "share": 1})[0] == 404
        assert client.ask("POST", path, {"version": "1", "share": "all"})[0] == 400
        assert client.ask("POST", path, {"version": "1", "share": 1})[0] == 200
        answers = [client.ask("POST", "/predict", [RECORD, RECORD])[1] for _ in range(5)]
        assert {one["version"] for one in answers} == {"2"}
        rows = "pslib_serve_shadow_rows_total"
        wait_until(
            lambda: figure(client, rows, labels) + figure(client, DROPPED, labels) == 10,
            PATIENCE_S,
            "10 rows",
        )
        scored = figure(client, rows, labels)
        assert scored > 0
        apart = figure(client, "pslib_serve_shadow_difference_sum_total", labels)
        assert apart == pytest.approx(0.25 * scored, rel=1e-5)
        mine = figure(client, "pslib_serve_shadow_predictions_sum_total", labels)
        other = figure(client, "pslib_serve_shadow_answered_predictions_sum_total", labels)
        assert mine - other == pytest.approx(apart, rel=1e-5)
        assert other == pytest.approx(scored * answers[0]["predictions"][0], rel=1e-5)
        numbered(trained, tmp_path, 3)
        client.repository.refresh()
        numbered(trained, tmp_path, 4)
        client.repository.refresh()
        assert "1" in client.repository.model("m").kept
        assert client.ask("POST", path, {"version": "1", "share": 0})[0] == 200
        assert client.ask("POST", "/predict", RECORD)[1]["version"] == "4"
        newest = labels.replace('version="2"', 'version="4"')
        assert [figure(client, one, newest) for one in (rows, DROPPED)] == [0, 0]


def test_a_shadow_that_is_behind_or_fails_costs_no_answer(trained: Trained, tmp_path: Path) -> None:
    numbered(trained, tmp_path, 1)
    with served({"m": str(tmp_path)}, threads=1) as client:
        numbered(trained, tmp_path, 2)
        client.repository.refresh()
        batcher, labels = client.repository.version("m", "1").batcher, 'model="m",shadow="1",version="2"'
        begun, gate = threading.Semaphore(0), threading.Event()

        def stuck(table: pa.Table) -> Any:
            begun.release()
            assert gate.wait(PATIENCE_S)
            raise ValueError("a fault of the shadow")

        batcher._predict = stuck
        client.ask("POST", "/v2/repository/models/m/shadow", {"version": "1", "share": 1})
        assert client.ask("POST", "/predict", RECORD)[0] == 200
        assert begun.acquire(timeout=PATIENCE_S)
        # one is being scored, the next one waits, those after it are dropped
        assert [client.ask("POST", "/predict", RECORD)[0] for _ in range(4)] == [200] * 4
        assert batcher.waiting_rows == 1
        assert figure(client, DROPPED, labels) == 3
        gate.set()
        wait_until(lambda: figure(client, DROPPED, labels) == 5, PATIENCE_S, "the failures")
        assert figure(client, "pslib_serve_shadow_rows_total", labels) == 0


def test_a_switch_of_versions_under_load_drops_no_request(trained: Trained, tmp_path: Path) -> None:
    numbered(trained, tmp_path, 1)
    with served({"m": str(tmp_path)}, keep_versions=1) as client:
        over, answers = threading.Event(), list[int]()

        def ask() -> None:
            while not over.is_set():
                answers.append(client.ask("POST", "/predict", RECORD)[0])

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for number in range(2, 6):
            numbered(trained, tmp_path, number)
            assert "answers" in client.repository.refresh()[0]
        over.set()
        for thread in threads:
            thread.join()
    assert len(answers) >= 3
    assert set(answers) == {200}


def test_only_those_who_may_change_versions(trained: Trained) -> None:
    path = "/v2/repository/models/m/load"
    with served({"m": trained.checkpoint}) as client:
        assert client.ask("POST", path)[0] == 200
        assert client.ask("POST", path, headers={"Origin": "http://evil.example"})[0] == 403
    with served({"m": trained.checkpoint}, token="a-token-of-the-test") as client:
        assert client.ask("POST", path)[0] == 403
        assert client.ask("POST", path, headers={"Authorization": "Bearer wrong"})[0] == 403
        assert client.ask("POST", path, headers={"Authorization": "Bearer a-token-of-the-test"})[0] == 200


def test_a_model_that_ranks_items_is_not_served(tmp_path: Path) -> None:
    trained = Trained(tmp_path, model_named("two_tower"))
    trained.run(lambda trainer: None)
    with pytest.raises(ConfigurationError, match="TwoTower ranks items"), served({"m": trained.checkpoint}):
        pass


def test_mutated_requests_get_an_answer_each(client: Client) -> None:
    """None crashes the server or hangs: 400 with a line, or 200 where the change means nothing."""
    rng = np.random.default_rng(0)
    inputs = json_inputs(pa.Table.from_pylist([RECORD]).select(["age", "user", "movie", "genres", "liked"]))
    good = json.dumps({"inputs": inputs}).encode()
    seen = set()
    for _ in range(300):
        data = bytearray(good)
        for place in rng.integers(0, len(data), rng.integers(1, 6)):
            data[place] = rng.integers(0, 256)
        seen.add(client.ask("POST", INFER, bytes(data))[0])
    assert seen <= {200, 400}
    assert client.ask("POST", INFER, good)[0] == 200
