"""Checkpoints of tables with policies: narrow rows, counters, counted keys and filters, in every storage."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pslib import checkpoint
from pslib.client.calls import PushName
from pslib.client.client import Client
from pslib.errors import CheckpointError, MemoryLimitError
from pslib.table.initializers import Uniform
from pslib.table.optimizers import SGD, Adagrad
from pslib.table.policies import STORAGES, ByAge, ByBloom, ByCount, Compact, Score
from pslib.table.tables import PartSpec, TableSpec
from tests.support.checkpoints import save_tables, table_in
from tests.support.clients import client_with
from tests.support.processes.command import ROOT

GOLDEN = Path(__file__).parents[1] / "golden" / "checkpoint_v2"
W, V = PartSpec("w", 1, SGD(0.5), Uniform(0.5)), PartSpec("v", 3, Adagrad(0.1), Uniform(0.5))
PLAIN = TableSpec("t", (W, V))
POLICIES = {
    "plain": {},
    "all": {
        "admission": ByCount(2),
        "eviction": (ByAge(30),),
        "score": Score(),
        "compact": Compact("v", shows=4),
    },
    "bloom": {"admission": ByBloom(2, counters=64)},
}
KEYS = np.arange(300, dtype=np.uint64)
PUSHES, MORE = 6, 4


def push(client: Client, number: int) -> None:
    rng = np.random.default_rng(number)
    keys = rng.choice(KEYS, 90, replace=False)
    gradients = rng.standard_normal((90, 4)).astype(np.float32)
    counts = rng.integers(1, 3, (2, 90)).astype(np.float32)
    seen = {"shows": {"t": counts[0]}, "clicks": {"t": counts[1]}}
    client.push({"t": (keys, gradients)}, None, PushName(5, number), step=number, **seen).wait()
    if number % 4 == 3:
        client.maintain("t", step=number, name=PushName(6, number)).wait()


def save(client: Client, folder: Path, spec: TableSpec, token: str = "00000001") -> Path:
    return save_tables(client, folder, spec, token=token, about={"steps": PUSHES})


def content_of(folder: Path) -> dict[object, object]:
    """Rows and counted keys by key, in a form that does not depend on the writer."""
    manifest = json.loads((folder / "manifest.json").read_text())
    found: dict[object, object] = {}
    for entry in manifest["files"]:
        rows = table_in(folder / entry["name"]).to_pylist()
        if entry.get("kind") == "filters":
            continue
        for row in rows:
            key = row.pop("key")
            assert key not in found
            found[key] = row
    return found


def trained(folder: Path, spec: TableSpec, more: int = 0) -> Path:
    with client_with(spec, servers=2, shard_threads=2, partition_bits=5) as client:
        for number in range(PUSHES + more):
            push(client, number)
        save(client, folder, spec)
    return folder


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("policies", POLICIES)
def test_training_goes_on_from_a_checkpoint_as_if_nothing_had_happened(
    tmp_path: Path, policies: str, storage: str
) -> None:
    """Loaded onto other numbers of servers, threads and partitions, saved, and trained on: bit for bit."""
    spec = replace(PLAIN, storage=storage, **POLICIES[policies])
    first = trained(tmp_path / "first", spec)
    with client_with(
        spec, servers=2, shard_threads=3, partition_bits=7 if policies != "bloom" else 5
    ) as client:
        client.load(str(first))
        again = save(client, tmp_path / "again", spec)
        assert content_of(again) == content_of(first)
        for number in range(PUSHES, PUSHES + MORE):
            push(client, number)
        on = save(client, tmp_path / "on", spec, "00000002")
    assert content_of(on) == content_of(trained(tmp_path / "through", spec, MORE))


def test_policies_leave_what_they_should_in_the_files(tmp_path: Path) -> None:
    found = content_of(trained(tmp_path, replace(PLAIN, **POLICIES["all"])))
    counted = [row for row in found.values() if "count" in row]
    rows = [row for row in found.values() if "count" not in row]
    assert counted
    assert {row["v"] is None for row in rows} == {True, False}
    assert list(rows[0]) == ["last_seen", "shows", "clicks", "w", "v", "v_state"]


@pytest.mark.parametrize("storage", STORAGES[1:])
def test_a_float32_checkpoint_loads_into_any_storage(tmp_path: Path, storage: str) -> None:
    first = trained(tmp_path / "first", PLAIN)
    with client_with(replace(PLAIN, storage=storage)) as client:
        client.load(str(first))
        rows = client.pull({"t": KEYS}).wait().rows["t"]
    exact = {key: [*row["w"], *row["v"]] for key, row in content_of(first).items()}
    close = {"bfloat16": 2**-8, "float16": 2**-11, "int8": 1 / 127}[storage]
    for key, row in exact.items():
        assert np.abs(rows[key] - row).max() <= close * np.abs(row).max()


def test_rows_that_never_counted_begin_at_the_checkpoints_step(tmp_path: Path) -> None:
    """Else the first maintenance would let all of them go."""
    first = trained(tmp_path / "first", PLAIN)
    spec = replace(PLAIN, eviction=(ByAge(3),), score=Score())
    with client_with(spec) as client:
        rows = client.load(str(first))
        client.maintain("t", step=PUSHES + 3).wait()
        assert client.stats()["rows"] == rows
        save(client, tmp_path / "again", spec)
        client.maintain("t", step=PUSHES + 4).wait()
        assert client.stats()["rows"] == 0
    row = next(iter(content_of(tmp_path / "again").values()))
    assert (row["last_seen"], row["shows"], row["clicks"]) == (PUSHES, pytest.approx(0.98), 0)


def test_steps_at_which_rows_were_seen_are_not_taken_for_seconds(tmp_path: Path) -> None:
    """A table whose clock has changed begins anew: its rows were seen last when they were saved."""
    first = trained(tmp_path, replace(PLAIN, eviction=(ByAge(30),)))
    with client_with(replace(PLAIN, eviction=(ByAge(3),), clock="seconds")) as client:
        rows = client.load(str(first))  # saved at second 0, after steps up to 5
        client.maintain("t", time_s=3.0).wait()
        assert client.stats()["rows"] == rows
        client.maintain("t", time_s=4.0).wait()
        assert client.stats()["rows"] == 0


def test_filters_come_back_after_a_load_onto_more_partitions_and_back(tmp_path: Path) -> None:
    spec = replace(PLAIN, **POLICIES["bloom"])
    folders = [trained(tmp_path / "0", spec)]
    for place, bits in enumerate((7, 5), 1):
        with client_with(spec, partition_bits=bits) as client:
            client.load(str(folders[-1]))
            folders.append(save(client, tmp_path / str(place), spec))

    def filters(folder: Path) -> dict[int, list[int]]:
        found = {}
        for file in folder.glob("*.filters.arrow"):
            found |= {row["partition"]: row["counters"] for row in table_in(file).to_pylist()}
        return found

    assert filters(folders[0])
    assert filters(folders[2]) == filters(folders[0])


def test_joined_filters_forget_nothing_that_any_of_them_has_counted(tmp_path: Path) -> None:
    spec = replace(PLAIN, admission=ByBloom(2, counters=64))
    pair = {"t": (KEYS, np.ones((KEYS.size, 4), np.float32))}
    with client_with(spec, servers=2, partition_bits=7) as client:
        client.push(pair).wait()
        assert client.stats()["rows"] < KEYS.size // 2  # a few share their counters
        save(client, tmp_path, spec)
    with client_with(spec, partition_bits=5) as client:
        client.load(str(tmp_path))
        client.push(pair).wait()
        assert client.stats()["rows"] == KEYS.size


def test_narrow_rows_need_a_table_that_has_them(tmp_path: Path) -> None:
    first = trained(tmp_path, replace(PLAIN, compact=Compact("v", shows=4)))
    told = "set compact with the same wide_from"
    with client_with(PLAIN) as client, pytest.raises(CheckpointError, match=told):
        client.load(str(first))


def test_a_manifest_says_the_lowest_format_that_reads_it(tmp_path: Path) -> None:
    versions = {}
    for policies, values in POLICIES.items():
        manifest = checkpoint.read_manifest(str(trained(tmp_path / policies, replace(PLAIN, **values))))
        assert any(entry.kind != "rows" for entry in manifest.files) == (policies != "plain")
        without_blocks = [replace(entry, blocks=()) for entry in manifest.files]
        older = replace(manifest, files=without_blocks, format_version=0)
        versions[policies] = (older.format_version, manifest.format_version)
    assert versions == {"plain": (1, 3), "all": (2, 3), "bloom": (2, 3)}


def test_a_checkpoint_that_does_not_fit_the_memory_limit_is_refused(tmp_path: Path) -> None:
    """Before a row has changed: those that were there stay, and can be trained on."""
    spec = TableSpec("t", (PartSpec("v", 64, SGD(1.0), Uniform(0.5)),))
    with client_with(spec) as client:
        client.push({"t": (np.arange(60_000, dtype=np.uint64), np.ones((60_000, 64), np.float32))}).wait()
        save(client, tmp_path, spec)
    mine = np.arange(59_000, 61_000, dtype=np.uint64)
    with client_with(spec, servers=2, server_memory_bytes=8 << 20) as client:
        client.push({"t": (mine, np.ones((mine.size, 64), np.float32))}).wait()
        before = client.pull({"t": mine}).wait().rows["t"]
        with pytest.raises(MemoryLimitError, match="none of its rows has changed; raise server_memory_bytes"):
            client.load(str(tmp_path))
        assert client.stats()["rows"] == mine.size
        assert np.array_equal(client.pull({"t": mine}).wait().rows["t"], before)
        client.push({"t": (mine, np.ones((mine.size, 64), np.float32))}).wait()


# --- the golden checkpoints of formats 2 and 3: the same rows, with and without checksums of blocks

GOLDEN_SPEC = replace(PLAIN, storage="int8", seed=9, **POLICIES["all"])


def write_golden(folder: Path) -> None:
    """Write the golden checkpoints: done once, and never again."""
    with client_with(GOLDEN_SPEC, servers=2, partition_bits=5) as client:
        for number in range(PUSHES):
            push(client, number)
        save(client, folder, GOLDEN_SPEC)


@pytest.mark.parametrize("version", [2, 3])
def test_checkpoints_of_the_first_writers_still_load(tmp_path: Path, version: int) -> None:
    golden = GOLDEN.with_name(f"checkpoint_v{version}")
    with client_with(GOLDEN_SPEC, servers=3, partition_bits=6) as client:
        client.load(str(golden))
        save(client, tmp_path, GOLDEN_SPEC)
    assert content_of(tmp_path) == content_of(golden) == content_of(GOLDEN)


def test_the_recipes_in_the_readme_read_tables_with_narrow_rows_and_counters(tmp_path: Path) -> None:
    pytest.importorskip(
        "pandas",
        reason="the recipe shown to users reads with pandas, which pslib does not need; the columns that it "
        "names are read with pyarrow by content_of in the tests above",
    )
    page = (ROOT / "docs" / "guide" / "checkpoints.md").read_text()
    pyarrow_recipe, pandas_recipe, *_ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {"folder": trained(tmp_path / "c", replace(PLAIN, **POLICIES["all"]))}
    exec(pyarrow_recipe.replace('"embedding"', '"t"'), names)
    exec(pandas_recipe, names)
    wide, narrow, counters = names["embeddings"], names["narrow"], names["counters"]
    assert wide.shape == ((~narrow).sum(), 3)
    assert narrow.any()
    assert list(counters.columns) == ["last_seen", "shows", "clicks"]
    assert counters["shows"][narrow].max() < 4
    assert (np.stack(names["frame"].loc[names["keys"], "v"]) == wide).all()
