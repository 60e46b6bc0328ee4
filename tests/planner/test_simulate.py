"""The simulation agrees with what can be worked out by hand, and more of anything never makes it slower."""

import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pslib.planner import simulate as simulated
from pslib.planner.simulate import BatchCost, Cores, Events, Network, Scene, Worker, simulate
from pslib.trainer.pipeline import pipeline

ROWS = 100
FULL = BatchCost(
    read_s=0.02, pull_s=0.01, push_s=0.01, compute_s=0.1, receive_s=0.004, pull_rows_s=0.01, push_rows_s=0.02
)


def rate(batch=FULL, cores=(64.0,), servers=(0,), trainers=(0,), batches=60, **more) -> float:
    return simulate(Scene(cores, servers, trainers, batch, ROWS, **more), batches).examples_per_s


def test_as_many_batches_are_read_ahead_as_by_a_trainer():
    assert simulated.READ_AHEAD == pipeline.READ_AHEAD


def test_a_single_stage_takes_its_own_time():
    assert rate(BatchCost(compute_s=0.1)) == pytest.approx(ROWS / 0.1)


def test_exact_training_takes_all_stages_but_reading_one_after_the_other():
    one_by_one = 0.01 + 0.014 + 0.1 + 0.01 + 0.024
    assert rate(staleness=0) == pytest.approx(ROWS / one_by_one, rel=1e-6)


def test_with_staleness_only_the_slowest_stage_counts():
    assert rate(staleness=4) == pytest.approx(ROWS / 0.11, rel=1e-6)  # the step and its push, in one thread


def test_on_one_core_all_work_adds_up():
    work = 0.02 + 0.01 + 0.01 + 0.1 + 2 * 0.004 + 0.01 + 0.02
    assert rate(cores=(1.0,), staleness=4) == pytest.approx(ROWS / work, rel=0.02)


def test_a_server_that_is_too_slow_sets_the_pace_of_all_trainers():
    batch = BatchCost(compute_s=0.01, pull_rows_s=0.03, push_rows_s=0.07)
    assert rate(batch, trainers=(0,) * 8) == pytest.approx(ROWS / 0.1, rel=0.02)


def test_shard_threads_share_the_rows_of_a_request():
    batch = BatchCost(compute_s=0.001, pull_rows_s=0.04, push_rows_s=0.04)
    alone, four = rate(batch, trainers=(0,) * 4), rate(batch, trainers=(0,) * 4, shard_threads=4)
    assert four == pytest.approx(4 * alone, rel=0.02)


def test_a_step_on_several_cores_is_shorter_while_they_are_free():
    batch = BatchCost(compute_s=0.1, compute_width=2.0)
    assert rate(batch) == pytest.approx(ROWS / 0.05)
    assert rate(batch, cores=(1.0,)) == pytest.approx(ROWS / 0.1)
    assert rate(batch, cores=(2.0,), trainers=(0, 0)) == pytest.approx(2 * ROWS / 0.1)


def test_a_card_carries_its_bytes_and_no_more():
    batch = BatchCost(compute_s=1e-4, rows_bytes=1e6)
    cards = {"cores": (8.0, 8.0), "trainers": (1,), "network_byte_s": (1e-8, 1e-8)}
    # A window of batches begins and ends within bursts: answers to pushes wait behind rows.
    assert rate(batch, **cards, staleness=8, batches=600) == pytest.approx(ROWS / 0.01, rel=0.01)


def test_staleness_hides_latency():
    batch = BatchCost(compute_s=0.01)
    far = {"cores": (8.0, 8.0), "trainers": (1,), "latency_s": 0.01}
    assert rate(batch, **far, staleness=0) == pytest.approx(ROWS / 0.05, rel=1e-6)  # four ways and the step
    assert rate(batch, **far, staleness=8) == pytest.approx(ROWS / 0.01, rel=1e-6)


def test_results_tell_how_busy_all_processes_were():
    result = simulate(Scene((1.0, 4.0), (0,), (1,), FULL, ROWS, staleness=4), 60)
    assert result.server_cores == pytest.approx(0.038 / 0.11, rel=0.05)
    assert result.trainer_cores == pytest.approx((0.02 + 0.01 + 0.11) / 0.11 / 4, rel=0.05)
    assert result.staleness_mean == pytest.approx(4, abs=0.5)
    assert result.waits_for_rows < 0.05


def test_the_same_seed_gives_the_same_result_and_another_one_another():
    scene = Scene((2.0,), (0,), (0, 0), FULL, ROWS, jitter=0.2, seed=1)
    assert simulate(scene) == simulate(scene)
    assert simulate(scene) != simulate(replace(scene, seed=2))


def test_the_simulation_reads_no_clock(monkeypatch):
    def refuse() -> float:
        raise AssertionError("the simulation asked for the time")

    monkeypatch.setattr(time, "perf_counter", refuse)
    monkeypatch.setattr(time, "monotonic", refuse)
    assert rate() > 0


batches = st.builds(
    BatchCost,
    **{
        name: st.floats(0, 0.02)
        for name in (
            "read_s",
            "pull_s",
            "push_s",
            "receive_s",
            "answer_s",
            "ack_s",
            "pull_rows_s",
            "push_rows_s",
        )
    },
    compute_s=st.floats(0.001, 0.1),
    compute_width=st.floats(1, 4),
)
SLACK = 0.97
"""One batch more or less in a window of 45: order among equals may shift by one."""


@settings(max_examples=15, deadline=None)
@given(batches, st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(0, 3))
def test_more_cores_are_never_slower(batch, servers, trainers, cores, staleness):
    def on(count: float) -> float:
        return rate(batch, (count,), (0,) * servers, (0,) * trainers, staleness=staleness)

    assert on(2.0 * cores) >= SLACK * on(float(cores))


@settings(max_examples=15, deadline=None)
@given(batches, st.integers(1, 3), st.integers(0, 3))
def test_more_staleness_is_never_slower_where_cores_are_free(batch, servers, staleness):
    def at(bound: int) -> float:
        return rate(batch, servers=(0,) * servers, staleness=bound)

    assert at(staleness + 1) >= SLACK * at(staleness)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(0.001, 1), st.floats(0.5, 4)), min_size=1, max_size=8), st.floats(0.5, 8))
def test_shared_cores_do_all_work_and_no_more_than_they_can(tasks, cores):
    events, ends = Events(), []
    shared = Cores(events, cores)
    for work_s, width in tasks:
        shared.run(work_s, width, lambda: ends.append(events.now_s))
    events.run(lambda: False)
    total = sum(work_s for work_s, _ in tasks)
    assert len(ends) == len(tasks)
    assert shared.busy_s == pytest.approx(total, rel=1e-6)
    assert ends[-1] >= total / cores * (1 - 1e-9)
    assert ends[-1] >= max(work_s / min(width, cores) for work_s, width in tasks) * (1 - 1e-9)
    assert ends[-1] <= sum(work_s / min(width, cores) for work_s, width in tasks) * (1 + 1e-9)


def test_equal_tasks_share_cores_evenly_and_a_narrow_one_leaves_the_rest():
    events, ends = Events(), {}
    cores = Cores(events, 3.0)
    for name, width in (("narrow", 1.0), ("wide", 4.0)):
        cores.run(2.0, width, lambda name=name: ends.update({name: events.now_s}))
    events.run(lambda: False)
    assert ends == {"wide": pytest.approx(1.0), "narrow": pytest.approx(2.0)}


def test_a_worker_does_one_thing_after_the_other():
    events, order = Events(), []
    worker = Worker(Cores(events, 4.0))
    for name in "abc":
        worker.do(0.5, lambda name=name: order.append((name, events.now_s)))
    events.run(lambda: False)
    assert order == [("a", 0.5), ("b", 1.0), ("c", 1.5)]


def test_a_busy_card_makes_messages_wait_and_loopback_has_its_own_rate():
    events, arrived = Events(), []
    network = Network(events, (0.1, 0.1, 0.1), 0.5, 0.01)
    for source, target in ((0, 1), (0, 1), (2, 1), (1, 1)):
        network.send(source, target, 10, lambda way=(source, target): arrived.append((way, events.now_s)))
    events.run(lambda: False)
    assert arrived == [
        ((1, 1), pytest.approx(0.1)),
        ((0, 1), pytest.approx(1.5)),
        ((0, 1), pytest.approx(2.5)),
        ((2, 1), pytest.approx(3.5)),
    ]
