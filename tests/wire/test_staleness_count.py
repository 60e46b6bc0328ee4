"""The number of pushes between a batch's pull and its push: counted at servers, told to trainers, summed."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslib.client.calls import PushName
from pslib.cluster import Cluster
from pslib.trainer.settings import CacheSettings
from pslib.wire.messages import Erase, Maintain, Pull, Pulled, Pushed
from pslib.wire.staleness import NOTHING_SEEN, StalenessCounter
from tests.support.clusters import cluster_of
from tests.support.counting import CountingModel, write_examples
from tests.support.simulated.protocol_worlds import (
    NO_BLOCKS,
    NO_FLOATS,
    OneServer,
    answer,
    asked,
    keys_in,
    make_client,
    push_ones,
    setup_of,
)
from tests.support.training import trainer_on
from tests.support.waiting import PATIENCE_S

KEYS = keys_in(1, 2, 9, 10)
PULL = Pull({"t": KEYS}, NO_BLOCKS)
NO_UNITS, NO_OWNERS = np.empty(0, np.uint32), np.empty(0, np.uint16)
ROWS = {"t": np.ones((1, 1), np.float32)}


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=20))
def test_measures_are_summed_counted_and_the_largest_kept_and_what_is_not_known_is_passed_over(
    pairs: list[tuple[int, int]],
) -> None:
    between = StalenessCounter()
    for pair in pairs:
        between.note(*pair)
    known = [after - before for before, after in pairs if before and after >= before]
    assert (between.sum, between.count, between.max) == (sum(known), len(known), max(known, default=0))


def test_a_difference_that_is_no_count_is_passed_over() -> None:
    """Sums fit a heartbeat, even with a wrong number from a server."""
    between = StalenessCounter()
    between.note(1, 2**64 - 1)
    assert between == StalenessCounter()


class TestAServer:
    @pytest.mark.parametrize("shards", [1, 2])
    def test_tells_its_pushes_before_a_pull_reads_and_before_a_push_steps(self, shards: int) -> None:
        server = OneServer(shards, setup=setup_of(t=1))
        assert server.ask(PULL).pushes_before == 1
        assert [server.ask(push_ones(number, KEYS)).pushes_before for number in range(3)] == [1, 2, 3]
        assert server.ask(PULL).pushes_before == 4

    @pytest.mark.parametrize("shards", [1, 2])
    def test_tells_nothing_of_a_push_that_it_knows_and_does_not_count_it(self, shards: int) -> None:
        server = OneServer(shards, setup=setup_of(t=1))
        assert [server.ask(push_ones(0, KEYS)).pushes_before for _copy in range(3)] == [1, 0, 0]
        assert server.ask(PULL).pushes_before == 2

    def test_counts_erased_rows_as_a_push_and_maintenance_not(self) -> None:
        server = OneServer(setup=setup_of(t=1))
        server.ask(Erase(7, 0, 0, 0, 0, {"t": KEYS}))
        server.ask(Maintain(7, 1, 0, 0, 0, "t", 1, 0.0, True, np.arange(16, dtype=np.uint32)))
        assert server.ask(PULL).pushes_before == 2

    def test_tells_nothing_of_a_push_of_which_it_owns_nothing(self) -> None:
        server = OneServer(units=[0], setup=setup_of(t=1))
        assert server.ask(push_ones(0, KEYS)).pushes_before == 0
        assert server.ask(PULL).pushes_before == 1

    def test_lets_its_first_shard_thread_count_and_tells_nothing_of_what_that_had_no_part_in(self) -> None:
        server = OneServer(2, setup=setup_of(t=1))
        of_the_second = keys_in(1, 3)
        assert server.ask(push_ones(0, of_the_second)).pushes_before == 0
        assert server.ask(push_ones(1, KEYS)).pushes_before == 1


class TestAClient:
    def _pulled(self, *before: int) -> tuple:
        """A client of two servers, and what it has seen when they had applied so many pushes."""
        client = make_client(2, {"t": 1})
        call = client.pull(0.0, {"t": keys_in(1, 9)})
        for (request_id, _message), count in zip(asked(client).values(), before, strict=True):
            came = Pulled(ROWS, NO_FLOATS, NO_UNITS, NO_OWNERS, pushes_before=count)
            answer(client, 0.1, request_id, came)
        return client, client.pulled(call).seen

    def _push(self, client, number: int, seen, *before: int) -> None:
        gradients = {"t": (keys_in(1, 9), np.ones((2, 1), np.float32))}
        client.push(0.2, PushName(7, number), gradients, since=seen)
        for (request_id, _message), count in zip(asked(client).values(), before, strict=True):
            answer(client, 0.3, request_id, Pushed(NO_UNITS, NO_OWNERS, count))

    def test_measures_each_server_by_its_own_count(self) -> None:
        client, seen = self._pulled(5, 100)
        assert seen == {0: 5, 1: 100}
        self._push(client, 0, seen, 5, 103)
        self._push(client, 1, seen, 12, 101)
        assert client.between == StalenessCounter(sum=0 + 3 + 7 + 1, count=4, max=7)

    def test_passes_over_a_trainer_that_tells_nothing_or_counts_anew(self) -> None:
        client, seen = self._pulled(5, 0)
        assert seen == {0: 5}
        self._push(client, 0, seen, 4, 9)
        self._push(client, 1, seen, 0, 9)
        self._push(client, 2, NOTHING_SEEN, 6, 9)
        assert client.between == StalenessCounter()

    def test_reads_the_count_of_an_answer_with_dense_blocks_too(self) -> None:
        client = make_client(1, {"t": 1}, dense_length=4)
        call = client.pull(0.0, {"t": keys_in(1)}, dense=True)
        ((request_id, _message),) = asked(client).values()
        came = Pulled(ROWS, np.ones(4, np.float32), NO_UNITS, NO_OWNERS, pushes_before=8)
        assert answer(client, 0.1, request_id, came)
        assert client.pulled(call).seen == {0: 8}

    def test_of_rows_that_come_in_two_answers_of_a_server_the_older_count_stays(self) -> None:
        client = make_client(1, {"t": 1})
        call = client.pull(0.0, {"t": keys_in(1, 9)})
        refused = np.array([9], np.uint32), np.array([0], np.uint16)
        for rows, units, count in ((2, refused, 5), (1, (NO_UNITS, NO_OWNERS), 8)):
            ((request_id, _message),) = asked(client).values()
            came = Pulled({"t": np.ones((rows, 1), np.float32)}, NO_FLOATS, *units, pushes_before=count)
            assert answer(client, 0.1, request_id, came)
        assert client.pulled(call).seen == {0: 5}


# --- trainers, by the definition ---


def run_counted(tmp_path: Path, trainers: int, servers: int = 1, **settings) -> tuple[dict, int, int]:
    """Train; the last status, how many batches there were, and how many all of them had seen together.

    The row ``same`` counts the examples of all batches that were applied before it was read, and each push
    adds its own batch, of five examples. Nobody pushes before all have pulled their first batch.
    """
    path = write_examples(tmp_path / "a.parquet", 200)
    seen: list[int] = []
    guard, all_have_pulled = threading.Lock(), threading.Barrier(trainers)

    def train(cluster: Cluster) -> None:
        waits = [all_have_pulled]

        def look(batch, rows) -> None:
            with guard:
                seen.append(int(rows[batch.sparse[0, 1], 0]) // 5)
            if waits:
                waits.pop().wait(PATIENCE_S)
            time.sleep(0.002)

        trainer_on(cluster, CountingModel(look), **settings).fit(path)

    with cluster_of(servers, trainers) as running:
        assert running.run(*[train] * trainers) == [None] * trainers
        status = running.last_status()
    return status, len(seen), sum(seen)


@pytest.mark.parametrize(("trainers", "staleness"), [(1, 0), (1, 2), (2, 0), (3, 1)])
def test_all_that_came_between_is_what_pushes_found_less_what_pulls_had_seen(
    tmp_path: Path, trainers: int, staleness: int
) -> None:
    """N pushes of one server find 0, 1, ... N - 1 before them, in whatever order they come."""
    status, batches, seen = run_counted(tmp_path, trainers, staleness=staleness)
    assert status["between_count"] == batches == status["pushes_applied"] == 40
    assert status["between_sum"] == batches * (batches - 1) // 2 - seen
    assert status["between_sum"] <= status["between_max"] * batches
    if trainers == 1:
        assert status["between_max"] <= staleness == status["staleness_max"]
    else:
        assert status["between_max"] > 0, "pushes of other trainers count"


def test_each_server_of_a_push_is_measured(tmp_path: Path) -> None:
    """Some batches have no key of one of the servers, which then measures nothing of them."""
    status, batches, _seen = run_counted(tmp_path, 1, servers=2, staleness=2)
    assert batches < status["between_count"] <= 2 * batches
    assert status["between_max"] <= 2


def test_steps_that_are_never_stale_are_not_measured(tmp_path: Path) -> None:
    status, batches, _seen = run_counted(tmp_path, 2, consistency="sync")
    assert batches == 40
    assert (status["between_sum"], status["between_count"], status["between_max"]) == (0, 0, 0)


def test_a_window_of_local_steps_is_measured_from_its_first_pull(tmp_path: Path) -> None:
    """Alone, nothing comes between: a window begins when the one before it is applied."""
    status, batches, _seen = run_counted(tmp_path, 1, consistency="geo", geo_every_batches=4, lease_rows=200)
    assert batches == 40
    assert status["between_count"] == status["pushes_applied"] == 10
    assert status["between_max"] == 0


def test_a_cache_measures_the_rows_that_it_asked_for(tmp_path: Path) -> None:
    status, batches, _seen = run_counted(tmp_path, 1, staleness=0, cache=CacheSettings(age_batches=8))
    assert status["between_count"] == batches == 40
    assert status["between_max"] == 0
