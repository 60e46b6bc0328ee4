"""The state of a run: rates of two statuses, stragglers, what is unknown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pslib
from pslib.monitor.run_state import (
    FULL_SHARE,
    IMBALANCED,
    SILENT_S,
    STRAGGLER_SHARE,
    basis_of,
    quantile,
    run_state,
)
from pslib.wire.counters import BOUNDS_S
from tests.support.statuses import BUCKETS, server, status, trainer

PARTS = {
    *("format", "now_s", "run", "processes", "servers", "imbalance", "partitions", "traffic", "tables"),
    *("keys", "ledger", "checkpoints", "log", "events"),
}


def processes(state: dict[str, Any], role: str) -> list[dict[str, Any]]:
    return [one for one in state["processes"] if one["role"] == role]


def trainers_at(*rates: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two statuses ten seconds apart, between which trainers had these examples/s."""
    before = status([trainer(rank) for rank in range(len(rates))])
    now = [trainer(rank, examples=int(10 * rate)) for rank, rate in enumerate(rates)]
    return status(now, 20.0), before


def test_rates_are_those_between_two_statuses() -> None:
    before = status([server(0, requests=100), trainer(0, examples=1000)], examples=1000)
    now = status([server(0, requests=600), trainer(0, examples=3000)], 20.0, examples=3000, bytes_sent=5)
    state = run_state(now, before)
    assert state["run"]["examples_per_s"] == 200.0
    assert state["run"]["eta_s"] == (10_000 - 3000) / 200.0
    assert state["servers"][0]["requests_per_s"] == 50.0
    assert processes(state, "trainer")[0]["examples_per_s"] == 200.0
    assert state["traffic"]["sent_per_s"] is None  # the status before did not have it


def test_a_rate_counts_from_heartbeat_to_heartbeat() -> None:
    """In a large cluster they come every two seconds, and a status may come right before or after one."""
    before, now = trainer(0, silent_s=0.0), trainer(0, examples=800, silent_s=2.0)
    state = run_state(status([now], 20.0), status([before], 10.0))
    assert processes(state, "trainer")[0]["examples_per_s"] == 100.0


def test_without_a_status_before_there_are_no_rates() -> None:
    state = run_state(status([server(0, requests=9), trainer(0, examples=9)]))
    assert state["run"]["examples_per_s"] is None
    assert state["run"]["loss"] is None
    assert state["servers"][0]["requests_per_s"] is None
    assert processes(state, "trainer")[0]["time"] is None


@pytest.mark.parametrize(
    ("rates", "slow"),
    [
        ((100, 100, 69), [2]),
        ((100, 100, 71), []),
        ((100, 69), []),  # of two nobody knows which is the usual one
        ((0, 0, 0), []),
        ((100, 100, 100, 10, 20), [3, 4]),
    ],
)
def test_a_straggler_is_far_below_the_median_of_at_least_three(
    rates: tuple[float, ...], slow: list[int]
) -> None:
    state = run_state(*trainers_at(*rates))
    assert [one["rank"] for one in processes(state, "trainer") if one["straggler"]] == slow


@given(st.lists(st.integers(0, 1000), min_size=0, max_size=9))
def test_never_is_the_median_trainer_or_a_faster_one_a_straggler(rates: list[int]) -> None:
    state = run_state(*trainers_at(*rates))
    lines = processes(state, "trainer")
    found = [one["examples_per_s"] for one in lines if one["straggler"]]
    others = [one["examples_per_s"] for one in lines if not one["straggler"]]
    assert len(found) <= len(rates) / 2
    assert all(slow < STRAGGLER_SHARE * max(others) for slow in found)


def test_a_lost_trainer_is_no_straggler_and_has_no_rate() -> None:
    now, before = trainers_at(100, 100, 100, 0)
    now["members"][3] |= {"state": "lost", "silent_s": 0.0}
    last = processes(run_state(now, before), "trainer")[3]
    assert (last["state"], last["straggler"], last["examples_per_s"], last["silent_s"]) == (
        "lost",
        False,
        None,
        None,
    )


def test_a_restarted_process_counts_from_its_own_start() -> None:
    """Its successor's counters begin at 0, or far below: there is no rate until both statuses are of it."""
    before, now = trainer(0, examples=900), trainer(0, examples=1000, where="pid 7 on node-0")
    fallen = trainer(1, examples=5)
    state = run_state(status([now, fallen], 20.0), status([before, trainer(1, examples=9)]))
    assert [one["examples_per_s"] for one in processes(state, "trainer")] == [None, None]


def test_shares_of_time_are_those_of_the_interval() -> None:
    counters = {"read_s": 1.0, "wait_batch_s": 0.5, "wait_rows_s": 2.0, "compute_s": 7.0, "push_wait_s": 0.0}
    before = status([server(0, busy_s=4.0), trainer(0, **dict.fromkeys(counters, 0.0))])
    state = run_state(status([server(0, busy_s=14.0), trainer(0, **counters)], 20.0), before)
    expected = {"read": 0.1, "wait_batch": 0.05, "wait_rows": 0.2, "compute": 0.7, "push": 0.0}
    assert processes(state, "trainer")[0]["time"] == pytest.approx(expected)
    assert processes(state, "server")[0]["time"] == {"busy": 0.5, "idle": 0.5}  # of two shard threads


def test_quality_is_that_of_the_examples_in_between() -> None:
    ones, twos = [1] * 512, [2] * 512
    before = status([], bins_positive=ones, bins_negative=ones)
    now = status([], 20.0, loss_sum=900.0, loss_examples=2000, bins_positive=twos, bins_negative=twos)
    run = run_state(now, before)["run"]
    assert run["loss"] == 0.4
    assert run["auc"] == pytest.approx(0.5)


def test_a_process_that_never_joined_is_absent() -> None:
    state = run_state(status([trainer(1)]) | {"trainers_configured": 3, "servers_configured": 1})
    assert [(one["rank"], one["state"]) for one in processes(state, "trainer")] == [
        (1, "live"),
        (0, "absent"),
        (2, "absent"),
    ]
    assert [one["state"] for one in processes(state, "server")] == ["absent"]


def test_imbalance_is_the_largest_over_the_mean_of_live_servers() -> None:
    servers = [server(0, rows=100), server(1, rows=300), server(2, rows=9000, state="lost")]
    assert run_state(status(servers))["imbalance"] == {"rows": 1.5, "bytes": 1.0, "requests": None}


def test_partitions_have_one_owner_each() -> None:
    state = run_state(status([], owners=[[0, 3], [1, 2]], moving=[[4, 1, 0]]))
    assert state["partitions"] == {"bits": 4, "owners": [[0, 3], [1, 2]], "moving": [[4, 1, 0]]}


def test_the_newest_checkpoint_has_an_age() -> None:
    saved = {"at_s": 100.0, "path": "p/2", "kind": "full", "bytes": 5, "took_s": 1.5, "pause_s": 0.1}
    state = run_state(status([], checkpoints=[saved | {"path": "p/1"}, saved]), now_s=112.0)
    assert state["run"]["checkpoint"] == {"path": "p/2", "age_s": 12.0, "bytes": 5, "took_s": 1.5}
    assert len(state["checkpoints"]) == 2
    known = run_state(status([], saved="p/1"))["run"]["checkpoint"]
    assert (known["path"], known["age_s"]) == ("p/1", None)


def test_a_quantile_is_the_bound_of_its_bucket() -> None:
    counts = [0] * BUCKETS
    assert quantile(counts, 0.5) is None
    counts[3], counts[5] = 99, 1
    assert (quantile(counts, 0.5), quantile(counts, 0.99), quantile(counts, 0.995)) == (
        BOUNDS_S[3],
        BOUNDS_S[3],
        BOUNDS_S[5],
    )
    assert quantile([*[0] * (BUCKETS - 1), 1], 0.5) == BOUNDS_S[-1]


@pytest.mark.parametrize(
    ("phase", "error", "state"),
    [("training", None, "running"), ("done", None, "ended"), ("failed", "server 1 is lost", "failed")],
)
def test_a_run_goes_on_until_its_phase_says_otherwise(phase: str, error: str | None, state: str) -> None:
    run = run_state(status([], phase=phase, error=error))["run"]
    assert (run["state"], run["error"]) == (state, error)


def test_a_status_of_nothing_has_all_parts_and_is_json() -> None:
    state = run_state({})
    assert set(state) == PARTS
    assert json.loads(json.dumps(state, allow_nan=False)) == state


NAMES = ("examples", "requests", "busy_s", "read_s", "compute_s", "keys", "distinct_keys")
NUMBERS = st.one_of(st.integers(0, 1 << 40), st.floats(0, 1e12))
COUNTERS = st.dictionaries(st.sampled_from(NAMES), NUMBERS)


@given(
    st.lists(st.tuples(st.sampled_from([server, trainer]), COUNTERS, COUNTERS), max_size=6), st.floats(0, 100)
)
def test_whatever_is_counted_the_state_is_json_and_shares_are_shares(
    members: list[tuple[Any, dict[str, Any], dict[str, Any]]], seconds: float
) -> None:
    before = status([kind(rank, **counters) for rank, (kind, counters, _) in enumerate(members)])
    now = status([kind(rank, **counters) for rank, (kind, _, counters) in enumerate(members)], seconds)
    state = run_state(now, before, 5.0)
    json.dumps(state, allow_nan=False)
    assert state == run_state(now, basis_of(before), 5.0)  # all that it needs of a status before
    shares = [share for one in state["processes"] for share in (one["time"] or {}).values()]
    assert all(0.0 <= share <= 1.0 for share in shares)


def test_the_page_marks_what_the_terminal_and_the_doctor_mark() -> None:
    web = Path(pslib.__file__).parent / "monitor" / "web"
    panels, processes = ((web / name).read_text(encoding="utf-8") for name in ("panels.js", "processes.js"))
    assert f"memory_share: {FULL_SHARE:g}, imbalance: {IMBALANCED:g} }}" in panels
    assert f"const SILENT_S = {SILENT_S:g};" in processes
