"""Increments: what has changed since the checkpoint before; loaded, looked at and kept as a chain."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from launch.cli.main import main
from pslib import checkpoint
from pslib.checkpoint import read_manifest
from pslib.checkpoint.diff import diff_checkpoints
from pslib.checkpoint.export import ExportOptions, export_parquet
from pslib.checkpoint.folders import base_in, list_checkpoints, newest, prune
from pslib.checkpoint.verification import verify_checkpoint
from pslib.client.client import Client
from pslib.errors import CheckpointError, PslibError
from pslib.table.optimizers import Adagrad
from pslib.table.policies import ByCount
from pslib.table.tables import DenseSpec, PartSpec, TableSpec
from tests.server.test_saving_while_serving import rows_in
from tests.support.checkpoints import GOLDEN
from tests.support.clients import client_of, client_with
from tests.support.machine.sanitizer import LIMITS_MEMORY
from tests.support.tables.images import begin_image, end_image, files_of_image

SPEC = TableSpec("item", (PartSpec("w", 1, Adagrad()), PartSpec("v", 3, Adagrad())), admission=ByCount(2))
DENSE = DenseSpec(6, Adagrad())
KEYS = np.arange(300, dtype=np.uint64)
GOLDEN_CHAIN = GOLDEN.parent / "checkpoint_v4"


@dataclass(frozen=True)
class Chain:
    """A folder of a full checkpoint and increments, and what there was at each of them."""

    folder: Path
    rows: list[np.ndarray]
    counts: list[int]

    def path(self, number: int) -> str:
        return str(self.folder / f"checkpoint-{number + 1:06d}")


def save(client: Client, folder: Path, number: int) -> None:
    """The next numbered checkpoint, an increment where there is one that it can follow."""
    place, token = folder / f"checkpoint-{number + 1:06d}", f"{number + 1:08x}"
    base = base_in(str(folder), 10)
    begin_image(client, place, token, base.token if base else "", keep=True)
    increment = {"of": base.name, "token": base.token, "depth": base.depth + 1} if base else {}
    manifest = checkpoint.Manifest(
        [SPEC.to_dict()],
        {"length": 6, "optimizer": DENSE.optimizer.to_dict(), "parameters": []},
        files_of_image(client, token),
        2,
        saved_utc="2026-11-21T19:00:00+00:00",
        cut={"token": token},
        increment=increment,
    )
    checkpoint.commit(str(place), manifest)
    end_image(client, token)


def write_chain(folder: Path) -> Chain:
    """A full checkpoint and three increments; also how the golden one was made, which is never made again."""
    chain, rng = Chain(folder, [], []), np.random.default_rng(0)
    with client_of(partition_bits=5, dense_blocks=3) as (client, _running):
        client.setup([SPEC], DENSE, np.ones(6, np.float32))
        for number in range(4):
            for _ in range(3):
                keys = np.unique(rng.integers(0, 300, 90)).astype(np.uint64)
                gradients = rng.standard_normal((keys.size, 4)).astype(np.float32)
                client.push({"item": (keys, gradients)}, np.ones(6, np.float32)).wait()
            client.erase({"item": KEYS[number * 20 : number * 20 + 12]}).wait()
            chain.rows.append(client.pull({"item": KEYS}).wait().rows["item"])
            chain.counts.append(client.stats()["rows"])
            save(client, folder, number)
    return chain


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    return write_chain(tmp_path_factory.mktemp("chain"))


def loaded(path: str, servers: int = 3, bits: int = 7) -> tuple[int, np.ndarray]:
    with client_of(servers, partition_bits=bits) as (client, _running):
        client.setup([SPEC], DENSE, np.zeros(6, np.float32))
        rows = client.load(path)
        found = client.pull({"item": KEYS}).wait().rows["item"]
    return rows, found


@pytest.mark.parametrize("number", range(4))
def test_each_link_of_a_chain_loads_as_it_was_on_any_number_of_servers(chain: Chain, number: int) -> None:
    rows, found = loaded(chain.path(number), 1 + number, 6 + number)
    assert rows == chain.counts[number]
    assert np.array_equal(found, chain.rows[number])


def test_an_increment_is_smaller_than_what_it_follows_and_says_so(chain: Chain) -> None:
    first, last = (list_checkpoints(str(chain.folder))[at] for at in (0, 3))
    assert (first.state, last.state) == ("complete", "complete")
    assert last.manifest is not None
    assert last.manifest.increment == {"of": "checkpoint-000003", "token": "00000003", "depth": 3}
    assert last.rows["item"] < chain.counts[3]


def test_tools_see_the_whole_chain(chain: Chain, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify_checkpoint(chain.path(3)).ok
    with client_of(1) as (client, _running):  # the same content in one full checkpoint
        client.setup([SPEC], DENSE, np.zeros(6, np.float32))
        client.load(chain.path(3))
        save(client, tmp_path / "full", 0)
    assert diff_checkpoints(chain.path(3), str(tmp_path / "full" / "checkpoint-000001")).equal
    (table, _dense) = export_parquet(chain.path(3), str(tmp_path / "parquet"))
    assert pq.read_table(table).num_rows == chain.counts[3]
    assert len(set(pq.read_table(table)["key"].to_pylist())) == chain.counts[3]
    assert main(["checkpoint", "ls", str(chain.folder), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["checkpoints"]
    assert [one["follows"] for one in listed] == [None, *(f"checkpoint-00000{n}" for n in (1, 2, 3))]


@pytest.mark.parametrize(("columns", "parts"), [(False, ["w", "v"]), (True, ["w_0", "v_0", "v_1", "v_2"])])
def test_an_increment_without_rows_is_exported_as_a_table_without_rows(
    tmp_path: Path, columns: bool, parts: list[str]
) -> None:
    with client_of(1, partition_bits=5, dense_blocks=3) as (client, _running):
        client.setup([SPEC], DENSE, np.ones(6, np.float32))
        for number in range(2):
            save(client, tmp_path / "none", number)
    options = ExportOptions(columns=columns)
    (path, dense) = export_parquet(newest(str(tmp_path / "none")), str(tmp_path / "parquet"), options)
    table = pq.read_table(path)
    assert (table.num_rows, table.column_names) == (0, ["key", *parts])
    assert pq.read_table(dense).num_rows == 1


def test_keys_that_an_increment_forgets_are_not_loaded_from_what_it_follows(
    chain: Chain, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One checkpoint was named, nothing of it held them any more, and its load brought them back."""
    folder = shutil.copytree(chain.folder, tmp_path / "chain")
    last, keys = str(folder / "checkpoint-000004"), KEYS[24:300:9]
    named = ["--table", "item", "--checkpoints", last]
    assert main(["forget", *map(str, keys.tolist()), *named]) == 0
    said = capsys.readouterr().out
    assert "checkpoint-000001: " in said
    assert "no file of these checkpoints holds them any more" in said
    assert all(checkpoint.held_rows(one.path, "item", keys) == 0 for one in list_checkpoints(str(folder)))
    assert verify_checkpoint(last).ok
    before, after = (
        set(pq.read_table(export_parquet(path, str(tmp_path / name))[0])["key"].to_pylist())
        for path, name in ((chain.path(3), "before"), (last, "after"))
    )
    assert before & set(keys.tolist())
    assert after == before - set(keys.tolist())


def test_what_an_increment_follows_stays_as_long_as_it_does(chain: Chain, tmp_path: Path) -> None:
    shutil.copytree(chain.folder, tmp_path / "kept")
    assert prune(str(tmp_path / "kept"), 1) == []
    with client_of(1) as (client, _running):
        client.setup([SPEC], DENSE, np.zeros(6, np.float32))
        begin_image(client, tmp_path / "kept" / "checkpoint-000005", "00000005")
        manifest = read_manifest(chain.path(0))
        files = files_of_image(client, "00000005")
        full = checkpoint.Manifest(manifest.tables, manifest.dense, files, 1, cut={"token": "00000005"})
        checkpoint.commit(str(tmp_path / "kept" / "checkpoint-000005"), full)
    assert len(prune(str(tmp_path / "kept"), 1)) == 4
    assert newest(str(tmp_path / "kept")).endswith("checkpoint-000005")


def test_nothing_goes_that_an_increment_may_follow_while_a_link_can_not_be_read(
    chain: Chain, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A share or a store that does not answer for a moment must not cost the beginning of a chain."""
    shutil.copytree(chain.folder, folder := tmp_path / "kept")
    link = folder / "checkpoint-000003" / "manifest.json"
    link.rename(link.with_suffix(".away"))
    assert prune(str(folder), 1) == []
    (line,) = [line for line in caplog.messages if "no older checkpoint than" in line]
    assert "checkpoint-000003" in line
    link.with_suffix(".away").rename(link)
    assert all(one.state == "complete" for one in list_checkpoints(str(folder)))


@pytest.mark.parametrize("damage", ["replaced", "missing", "changed"])
def test_a_chain_with_a_broken_link_is_refused_before_a_row_changes(
    chain: Chain, tmp_path: Path, damage: str
) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(chain.folder, folder)
    if damage == "replaced":
        shutil.rmtree(folder / "checkpoint-000002")
        shutil.copytree(folder / "checkpoint-000001", folder / "checkpoint-000002")
        told = "another checkpoint stands than the one that it was made after"
    elif damage == "missing":
        shutil.rmtree(folder / "checkpoint-000001")
        told = "no manifest.json there"
    else:
        victim = next((folder / "checkpoint-000002").glob("item.*-000-0.arrow"))
        spoilt = bytearray(victim.read_bytes())
        spoilt[len(spoilt) // 2] ^= 1
        victim.write_bytes(spoilt)
        told = "are damaged: expected CRC"
        assert not verify_checkpoint(str(folder / "checkpoint-000004")).ok
    with client_of(1) as (client, _running):
        client.setup([SPEC], DENSE, np.zeros(6, np.float32))
        client.push({"item": (KEYS, np.ones((300, 4), np.float32))}, np.ones(6, np.float32)).wait()
        client.push({"item": (KEYS, np.ones((300, 4), np.float32))}, np.ones(6, np.float32)).wait()
        with pytest.raises(CheckpointError, match=told):
            client.load(str(folder / "checkpoint-000004"))
        assert client.stats()["rows"] == 300
    if damage != "changed":
        assert list_checkpoints(str(folder))[-1].state == "damaged"


def test_a_late_second_end_of_one_image_does_not_settle_the_next(tmp_path: Path) -> None:
    """Else what changed before an image that was given up would be in no increment at all."""
    with client_with(SPEC, partition_bits=5) as client:

        def push(*keys: int) -> None:
            for _ in range(2):  # the first one is not admitted
                client.push({"item": (np.array(keys, np.uint64), np.ones((len(keys), 4), np.float32))}).wait()

        push(1, 2, 3)
        begin_image(client, tmp_path, "first", keep=True)
        files_of_image(client, "first")
        end_image(client, "first")
        push(2, 7)
        begin_image(client, tmp_path, "second", "first", keep=True)
        files_of_image(client, "second")
        end_image(client, "first")
        end_image(client, "second", committed=False)
        begin_image(client, tmp_path, "third", "first", keep=True)
        changed = rows_in(tmp_path, files_of_image(client, "third"))
    assert sorted(changed) == [2, 7]


def test_no_increment_follows_an_image_that_failed(tmp_path: Path) -> None:
    with client_with(SPEC, partition_bits=5) as client:
        (tmp_path / "file").touch()
        begin_image(client, tmp_path / "file", "first", keep=True)
        with pytest.raises(PslibError, match="file"):
            files_of_image(client, "first")
        end_image(client, "first")
        with pytest.raises(PslibError, match="ask for a full one"):
            begin_image(client, tmp_path, "second", "first", keep=True)


def test_no_increment_follows_an_image_during_which_a_unit_came(tmp_path: Path) -> None:
    """Keys that left the unit meanwhile are known where it was."""
    with client_of(1, partition_bits=5) as (client, running):
        client.setup([SPEC])
        begin_image(client, tmp_path, "first", keep=True)
        files_of_image(client, "first")
        running.embedded.servers[0]._session.shards[0].cuts.unit_came()
        end_image(client, "first")
        with pytest.raises(PslibError, match="ask for a full one"):
            begin_image(client, tmp_path, "second", "first", keep=True)


@LIMITS_MEMORY
@pytest.mark.parametrize("noticed", [True, False], ids=["noticed", "cancelled before"])
def test_no_increment_follows_an_image_that_had_no_memory_for_a_row_that_changed(noticed: bool) -> None:
    """Nothing says that this row has changed; in a process of its own, whose memory is limited meanwhile."""
    script = f"""
import resource
import numpy as np
from cython_ext.table.images import image_rows
from pslib.errors import CheckpointError
from pslib.wire.messages import BeginSave, EndSave, Push
from pslib.shard.shard import Shard
from pslib.table.optimizers import Adagrad
from pslib.table.initializers import Constant
from pslib.table.tables import PartSpec, TableSpec

class Sink:
    room = done = True
    def put(self, piece): ...
    finish = abandon = lambda self: None
    def outcome(self): return []

shard, keys = Shard(3, 1), np.arange(200, dtype=np.uint64)
shard.own(np.arange(8))
shard.make_tables([TableSpec("t", (PartSpec("v", 4096, Adagrad(), Constant(0.0)),))])
shard.cuts.opener = lambda *_about: Sink()

def push(number):
    rows = np.ones((keys.size, 4096), np.float32)
    nothing = np.empty(0, np.uint32), np.empty(0, np.float32)
    shard.push(Push(1 << 63, number, 0, 0, 0, {{"t": keys}}, {{"t": rows}}, *nothing))

push(0)
shard.cuts.begin(BeginSave("here", "first", "", True))
shard.cuts.step()
shard.cuts.settle(EndSave("first", "first", True))
assert shard.cuts.base == "first"
shard.cuts.begin(BeginSave("here", "second", "first", True))
with open("/proc/self/statm") as pages:
    now = int(pages.read().split()[0]) * resource.getpagesize()
before = resource.getrlimit(resource.RLIMIT_AS)
room = 8 << 20  # for the push itself; copies of 512 rows take 16 MiB
resource.setrlimit(resource.RLIMIT_AS, (now + room, before[1]))
push(1)
resource.setrlimit(resource.RLIMIT_AS, before)
if {noticed}:
    Sink.done = False
    while shard.cuts.active:
        shard.cuts.step()
shard.cuts.settle(EndSave("second", "second", False))
try:
    shard.cuts.begin(BeginSave("here", "third", "first", True))
except CheckpointError as error:
    print(error)
else:
    print("changed rows that an increment has:", image_rows(shard.stores["t"], 0, 8)[0].size, "of", keys.size)
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert "ask for a full one" in ended.stdout


def test_the_golden_chain_still_loads() -> None:
    expected = np.load(GOLDEN_CHAIN / "rows.npy")
    rows, found = loaded(newest(str(GOLDEN_CHAIN)))
    assert rows == 243
    assert np.array_equal(found, expected)
