"""``pslib forget``: rows leave servers and checkpoints, and do not come back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launch.cli.forget import keys_of_texts
from launch.cli.main import main
from pslib.checkpoint import (
    Manifest,
    ManifestFile,
    commit,
    forget_rows,
    held_rows,
    list_checkpoints,
    read_manifest,
)
from pslib.checkpoint.verification import verify_checkpoint
from pslib.client.client import Client
from pslib.client.erase_all import TRIM_S, erase_everywhere, trim_logs
from pslib.clock import SystemClock
from pslib.errors import CheckpointCorruptError, CheckpointError, ConfigurationError, UnavailableError
from pslib.schema import Schema, SparseField
from pslib.table.initializers import Constant
from pslib.table.optimizers import SGD
from pslib.table.policies import ByCount
from pslib.table.tables import PartSpec, TableSpec
from pslib.transport import ZmqTransport
from pslib.wire.fields import Message
from pslib.wire.messages import Erase, Pushed, TrimLog
from tests.support.clusters import Trainers, cluster_of

ITEM = TableSpec("item", (PartSpec("v", 2, SGD(1.0), Constant(0.0)),))
COUNTED = TableSpec("counted", (PartSpec("v", 1, SGD(1.0), Constant(0.0)),), admission=ByCount(3))
KEYS = np.arange(1, 301, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
GONE = KEYS[::7]
ROOT_SCHEMA = Schema(label="y", sparse=["user", SparseField("hour", take="hour")], ragged=["tags"])


def fill(client: Client) -> None:
    """Every row of ``item`` is 1, and every key of ``counted`` was seen once: too rarely for a row."""
    client.setup([ITEM, COUNTED])
    client.push({"item": (KEYS, -np.ones((KEYS.size, 2), np.float32))}).wait()
    client.push({"counted": (KEYS, -np.ones((KEYS.size, 1), np.float32))}).wait()


def values(client: Client) -> dict[int, float]:
    rows = client.pull({"item": KEYS}).wait().rows["item"]
    return dict(zip(KEYS.tolist(), rows[:, 0].tolist(), strict=True))


def save(client: Client, path: Path) -> str:
    """A committed checkpoint of all tables; its path."""
    files = [ManifestFile(**entry) for entry in client.save_files(str(path), "00c0ffee")]
    tables = [ITEM.to_dict(), COUNTED.to_dict()]
    about = {"schema": ROOT_SCHEMA.to_dict()}
    commit(str(path), Manifest(tables, {"length": 0}, files, len(client.servers), about))
    return str(path)


def erase(cluster: Trainers, client: Client, keys: Any = GONE) -> int:
    """Erase like ``pslib forget``."""
    bits = client.joined.config.partition_bits

    def ask(address: str, message: Message) -> Message:
        return client.endpoint.ask(address, message).wait()

    return erase_everywhere(ask, lambda: client.servers, "item", keys, bits, SystemClock())


# --- servers -----------------------------------------------------------------------------------------------


def test_rows_leave_all_servers_and_no_other_row_changes() -> None:
    with cluster_of(servers=3, shard_threads=2) as cluster:
        client = cluster.join().client
        fill(client)
        assert erase(cluster, client) == 3
        gone = set(GONE.tolist())
        assert values(client) == {key: 0.0 if key in gone else 1.0 for key in KEYS.tolist()}
        assert client.stats()["tables"]["item"]["rows"] == KEYS.size - GONE.size


def test_the_command_erases_rows_of_a_running_cluster(capsys: Any) -> None:
    transport = ZmqTransport()
    with cluster_of(servers=2, transport=transport, listen="tcp://127.0.0.1:0") as cluster:
        client = cluster.join().client
        fill(client)
        where = ["--cluster", cluster.embedded.address, "--cluster-id", "embedded", "--table"]
        assert main(["forget", str(int(KEYS[0])), *where, "item"]) == 0
        assert capsys.readouterr().out == "1 key is erased on 2 servers\n"
        assert [values(client)[key] for key in KEYS[:2].tolist()] == [0.0, 1.0]
        assert main(["forget", "1", *where, "user"]) == 64
        assert "user" in capsys.readouterr().err


class MovingUnits:
    """Two servers of which neither owns one unit for the first questions."""

    def __init__(self, rounds: int) -> None:
        self.rounds, self.asked = rounds, []

    def ask(self, address: str, message: Message) -> Message:
        assert isinstance(message, Erase)
        self.asked.append((message.stream, message.number))
        self.rounds -= address == "b"
        nobody = self.rounds > 0 or address == "a"
        return Pushed(np.array([0] if nobody else [], np.uint32), np.array([9] if nobody else [], np.uint16))


class QuickClock:
    def __init__(self) -> None:
        self.time_s = 0.0

    def now_s(self) -> float:
        return self.time_s

    def sleep_s(self, seconds: float) -> None:
        self.time_s += seconds


def test_a_unit_that_is_on_its_way_is_asked_for_again_under_the_same_name() -> None:
    servers = MovingUnits(3)
    assert erase_everywhere(servers.ask, lambda: "ab", "item", np.zeros(1, np.uint64), 4, QuickClock()) == 2
    assert len(servers.asked) == 6
    assert len(set(servers.asked)) == 1


def test_a_unit_without_an_owner_is_given_up_in_words() -> None:
    servers = MovingUnits(10**6)
    with pytest.raises(UnavailableError, match="1 partition has had no owner for 30 s, rows there"):
        erase_everywhere(servers.ask, lambda: "ab", "item", np.zeros(1, np.uint64), 4, QuickClock())


# --- checkpoints -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    with cluster_of(servers=2) as cluster:
        client = cluster.join().client
        fill(client)
        return save(client, tmp_path_factory.mktemp("saved") / "checkpoint")


@pytest.fixture
def checkpoint(saved: str, tmp_path: Path) -> str:
    """A copy to be changed."""
    place = tmp_path / "checkpoint"
    place.mkdir()
    for file in Path(saved).iterdir():
        (place / file.name).write_bytes(file.read_bytes())
    return str(place)


def test_a_checkpoint_without_the_rows_is_sound_and_loads_all_others(checkpoint: str) -> None:
    before = {one.name for one in Path(checkpoint).iterdir()}
    assert forget_rows(checkpoint, "item", GONE).rows == GONE.size
    assert forget_rows(checkpoint, "counted", GONE).rows == GONE.size
    assert held_rows(checkpoint, "item", GONE) == held_rows(checkpoint, "counted", GONE) == 0
    assert verify_checkpoint(checkpoint).ok
    left = {one.name for one in Path(checkpoint).iterdir()} & before
    assert left == {
        "manifest.json",
        "counted.00c0ffee-000-0.arrow",
        "counted.00c0ffee-001-0.arrow",
    }  # no rows
    with cluster_of(servers=3) as cluster:
        client = cluster.join().client
        client.setup([ITEM, COUNTED])
        assert client.load(checkpoint) == KEYS.size - GONE.size
        gone = set(GONE.tolist())
        assert values(client) == {key: 0.0 if key in gone else 1.0 for key in KEYS.tolist()}


def test_a_checkpoint_that_does_not_hold_them_is_left_as_it_is(checkpoint: str) -> None:
    before = {one.name: one.stat().st_mtime_ns for one in Path(checkpoint).iterdir()}
    assert forget_rows(checkpoint, "item", np.array([5], np.uint64)).files == 0
    assert {one.name: one.stat().st_mtime_ns for one in Path(checkpoint).iterdir()} == before


def test_a_damaged_file_is_not_made_sound_by_a_new_checksum(checkpoint: str) -> None:
    name = next(one.name for one in read_manifest(checkpoint).files if one.table == "item")
    data = bytearray((Path(checkpoint) / name).read_bytes())
    data[data.rindex(b"\0\0\x80\x3f") + 2] ^= 1  # a weight
    (Path(checkpoint) / name).write_bytes(data)
    with pytest.raises(CheckpointCorruptError, match="are damaged"):
        forget_rows(checkpoint, "item", KEYS)


def test_an_unknown_table_is_named_with_those_there_are(checkpoint: str) -> None:
    with pytest.raises(CheckpointError, match="no table 'user'; tables: item, counted"):
        forget_rows(checkpoint, "user", GONE)


# --- the command -------------------------------------------------------------------------------------------


def test_the_command_looks_into_every_file_and_says_what_it_can_not_vouch_for(
    checkpoint: str, capsys: Any
) -> None:
    folder = Path(checkpoint).parent
    half = folder / "half"
    half.mkdir()
    for entry in read_manifest(checkpoint).files:
        (half / entry.name).write_bytes((Path(checkpoint) / entry.name).read_bytes())
    keys = [str(int(key)) for key in GONE]
    command = ["forget", *keys, "--table", "item", "--checkpoints", str(folder)]
    assert main(command) == 1
    said = capsys.readouterr().out
    assert f"{checkpoint}: {GONE.size} rows taken out" in said
    assert f"problem: {half} is incomplete and holds them" in said
    for file in half.iterdir():
        file.unlink()
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["checkpoints"] == []
    assert [one.state for one in list_checkpoints(str(folder))] == ["complete"]


def test_a_value_is_forgotten_as_a_number_and_as_a_text() -> None:
    keys = keys_of_texts(["user=42", "tags=red", "0x10", "17"], ROOT_SCHEMA)
    assert keys.size == 5
    assert {16, 17} < set(keys.tolist())


@pytest.mark.parametrize(("text", "count"), [("7.0", 2), ("7.", 2), ("-7.00", 2), ("7.5", 1), ("7e0", 1)])
def test_a_whole_double_is_the_number_that_a_column_of_doubles_has(text: str, count: int) -> None:
    found, whole = (keys_of_texts([f"user={one}"], ROOT_SCHEMA) for one in (text, str(int(float(text)))))
    assert (found.size, np.intersect1d(found, whole).size) == (count, count - 1)


def test_a_text_that_begins_with_dashes_is_no_number() -> None:
    assert keys_of_texts(["user=-5"], ROOT_SCHEMA).size == 2
    for text in ("user=--5", "user=---5", "user=-"):
        assert keys_of_texts([text], ROOT_SCHEMA).size == 1


def test_what_can_not_be_understood_is_told_all_at_once() -> None:
    with pytest.raises(ConfigurationError) as error:
        keys_of_texts(["who=1", "hour=3", "x", "-1", str(1 << 64)], ROOT_SCHEMA)
    assert [line.split(":")[0] for line in error.value.problems] == [
        "who=1",
        "hour=3",
        "x",
        "-1",
        str(1 << 64),
    ]


def test_a_run_that_has_saved_nothing_yet_says_itself_which_columns_make_keys(
    tmp_path: Path, capsys: Any
) -> None:
    """Its folder was given, and still the answer was that a schema is needed."""
    job = "{data: {train: a.parquet, schema: {label: y, sparse: [user]}}, model: {name: lr}}"
    (tmp_path / "job.yaml").write_text(job, encoding="utf-8")
    for text, told in (
        ("usr=42", "usr=42: no such key column; there are user"),
        ("user=42", "logs/cluster.json"),
    ):
        assert main(["forget", text, "--table", "embedding", "--cluster", str(tmp_path)]) == 64
        assert told in capsys.readouterr().err


@pytest.mark.parametrize("more", [[], ["--checkpoints", "nowhere"], ["--cluster", "nowhere"]])
def test_an_unclear_place_is_one_line(more: list[str], capsys: Any) -> None:
    assert main(["forget", "1", "--table", "item", *more]) == 64
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_table_or_a_folder_that_holds_nothing_is_refused_before_anything_is_erased(
    checkpoint: str, tmp_path: Path, capsys: Any
) -> None:
    """ "No file holds them any more" must not be said of a name that was mistyped."""
    assert main(["forget", "1", "--table", "itme", "--checkpoints", str(tmp_path)]) == 64
    said = "pslib: --table: expected one of counted, item, got 'itme', did you mean 'item'?\n"
    assert capsys.readouterr().err == said
    (tmp_path / "other").mkdir()
    both = ["--cluster", "tcp://127.0.0.1:1", "--cluster-id", "x", "--checkpoints", str(tmp_path / "other")]
    assert main(["forget", "1", "--table", "item", *both]) == 64
    assert f"expected checkpoints in {tmp_path / 'other'} or below it" in capsys.readouterr().err


# --- logs ---


def looks_at(*rounds: list[int] | None) -> Iterator[list[dict[str, Any]]]:
    """Yield successive looks at one server, the last one for ever; None: the server has told nothing yet."""
    for one in rounds:
        yield [{"address": "tcp://s"} | ({} if one is None else {"log_rounds": one})]
    while True:
        yield [{"address": "tcp://s"} | ({} if rounds[-1] is None else {"log_rounds": rounds[-1]})]


@pytest.mark.parametrize(
    ("looks", "left"),
    [
        ([[0], [0], [1]], []),
        ([[3, 3], [4, 3], [4, 4]], []),
        ([[0], [0]], ["tcp://s"]),
        ([None, None, [2], [2]], ["tcp://s"]),  # a server that begins has told and done nothing yet
        ([None, None, [2], [2], [3]], []),
        ([None], ["tcp://s"]),
    ],
)
def test_a_log_is_trimmed_when_every_shard_has_written_images_since(
    looks: list[list[int] | None], left: list[str]
) -> None:
    asked: list[tuple[str, Message]] = []
    seen, clock = looks_at(*looks), QuickClock()
    assert trim_logs(lambda *one: asked.append(one), lambda: next(seen), clock) == left  # type: ignore[arg-type,func-returns-value]
    assert asked == [("tcp://s", TrimLog())]
    assert clock.time_s > TRIM_S if left else clock.time_s < 5
