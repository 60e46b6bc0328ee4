"""Loads onto several servers, of which one refuses: no other begins, or the error counts those that did."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cython_ext.common.hashing import partition_of
from pslib import checkpoint
from pslib.checkpoint import LoadOptions, check_shard
from pslib.client.client import Client
from pslib.client.tables import all_of
from pslib.errors import CheckpointError, MemoryLimitError, PreemptedError
from pslib.server import shard_thread
from pslib.server.shard_thread import _Loads
from pslib.shard.shard import Shard
from pslib.table.initializers import Constant
from pslib.table.optimizers import SGD
from pslib.table.tables import PartSpec, TableSpec
from pslib.wire.fields import Message
from pslib.wire.messages import CheckLoad
from tests.checkpoint.test_checkpoint_policies import save
from tests.support.clients import client_with

SPEC = TableSpec("t", (PartSpec("v", 64, SGD(1.0), Constant(0.0)),))
LIMIT_BYTES = 7 << 20
KEYS = np.arange(44_000, dtype=np.uint64)
IS_FIRST = partition_of(KEYS, 7) < 64
FIRST, SECOND = KEYS[IS_FIRST], KEYS[~IS_FIRST]
"""Keys of the first and of the second of two servers."""


def fill(client: Client, keys: np.ndarray[tuple[int], np.dtype[np.uint64]], value: float) -> None:
    client.push({"t": (keys, np.full((keys.size, 64), -value, np.float32))}).wait()


def saved(folder: Path, *keys: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> str:
    """A checkpoint in which rows of these keys are 1."""
    with client_with(SPEC) as client:
        for some in keys:
            fill(client, some, 1.0)
        save(client, folder, SPEC)
    return str(folder)


@contextmanager
def trained(**about: Any) -> Iterator[Client]:
    """Rows of both servers are 5."""
    with client_with(SPEC, servers=2, **about) as client:
        fill(client, np.concatenate([FIRST[:100], SECOND[:100]]), 5.0)
        yield client


def weights(client: Client) -> list[set[float]]:
    """Return the values of the rows of the first server and of the second."""
    pulled = [client.pull({"t": keys[:100]}).wait().rows["t"] for keys in (FIRST, SECOND)]
    return [set(np.unique(rows).tolist()) for rows in pulled]


def test_where_one_server_has_no_room_no_server_loads(tmp_path: Path) -> None:
    place = saved(tmp_path, FIRST[:100], SECOND)
    with trained(server_memory_bytes=LIMIT_BYTES) as client:
        for _ in range(2):
            with pytest.raises(MemoryLimitError, match=r"22,\d+ rows .*; nothing has changed on any server$"):
                client.load(place)
            assert weights(client) == [{5.0}, {5.0}]


def test_a_load_that_ends_half_way_says_how_many_servers_have_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault that no check before the load sees: rows take more memory than their minimum."""
    place, real = saved(tmp_path, FIRST[:100], SECOND[:100]), shard_thread.load_into

    def has_no_room(shard: Shard, message: shard_thread.Load) -> dict[str, int]:
        if shard.owned >> 64 & 1:
            raise MemoryLimitError("memory limit")
        return real(shard, message)

    with trained() as client:
        monkeypatch.setattr(shard_thread, "load_into", has_no_room)
        half = "1 of 2 servers say that they have loaded it, so tables may be a mixture: load again"
        with pytest.raises(MemoryLimitError, match=half) as caught:
            client.load(place)
        assert "\n" not in str(caught.value)
        assert weights(client) == [{1.0}, {5.0}]
        monkeypatch.undo()
        assert client.load(place) == 200
        assert weights(client) == [{1.0}, {1.0}]


def test_of_one_server_alone_there_is_nothing_to_count(tmp_path: Path) -> None:
    place = saved(tmp_path, FIRST[:100])
    with client_with(replace(SPEC, name="other")) as client:
        with pytest.raises(CheckpointError) as caught:
            client.load(place)
        assert "any server" not in str(caught.value)


# --- what a shard looks at before


def shard_of(memory_bytes: int = 0) -> Shard:
    shard = Shard(7, 0, memory_bytes=memory_bytes)
    shard.own(np.arange(128))
    shard.make_tables([SPEC])
    return shard


@pytest.mark.parametrize("change", ["cut", "gone"])
def test_a_file_that_is_cut_or_gone_is_seen_before(tmp_path: Path, change: str) -> None:
    place = saved(tmp_path, FIRST[:100])
    check_shard(shard_of(), place, LoadOptions())
    (file,) = tmp_path.glob("t.*.arrow")
    if change == "cut":
        file.write_bytes(file.read_bytes()[:-1])
    else:
        file.unlink()
    with pytest.raises(CheckpointError, match=r"expected \d+ bytes, got|is missing"):
        check_shard(shard_of(), place, LoadOptions())
    check_shard(shard_of(), place, LoadOptions(tables=()))  # which needs no file


def test_keys_are_counted_in_no_file_that_says_more_of_them_than_it_has(tmp_path: Path) -> None:
    """Its checksum has not been compared yet; NumPy would read beyond the buffer."""
    place = saved(tmp_path, FIRST[:100])
    (file,) = tmp_path.glob("t.*.arrow")
    length = struct.pack("<q", 100 * 8)
    data = file.read_bytes()
    assert length in data
    file.write_bytes(data.replace(length, struct.pack("<q", 8)))
    shard = shard_of()
    check_shard(shard, place, LoadOptions())  # no limit, or one for more rows than there are: none is counted
    shard.room.limit_bytes = 1
    with pytest.raises(CheckpointError, match="can't be decoded"):
        check_shard(shard, place, LoadOptions())


def test_a_copy_of_the_question_looks_at_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The question is asked again while keys are counted: a shard would go on counting for hours."""
    place, looks = saved(tmp_path, FIRST[:100]), list[str]()
    monkeypatch.setattr(checkpoint, "check_shard", lambda _shard, path, _options: looks.append(path))
    work, shard = _Loads(), shard_of()
    for stem in ("1", "1", "2"):
        assert work(shard, CheckLoad(place, stem)) == {}
    assert looks == [place, place]


def test_a_client_that_is_asked_to_leave_while_it_waits_for_servers_waits_for_no_other() -> None:
    """A signal is raised out of a wait; it is no server's refusal."""

    def leaves() -> Message:
        raise PreemptedError("asked to leave")

    pending: Any = [SimpleNamespace(wait=leaves), SimpleNamespace(wait=lambda: pytest.fail("waits on"))]
    with pytest.raises(PreemptedError, match=r"^asked to leave$"):
        all_of(pending, "{} of {}")
