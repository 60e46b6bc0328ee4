"""Training in step, with a bounded lead, and by deltas: what happens when a trainer is slow, late or dies."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pslib.cluster import Cluster
from pslib.errors import ConfigurationError, UnavailableError
from pslib.table.initializers import Constant
from pslib.table.optimizers import FTRL, SGD, Adagrad, Optimizer
from pslib.table.schedules import Constant as ConstantRate
from pslib.table.schedules import Cosine, InverseSqrt, Linear, StepDecay, schedule_from_dict
from pslib.table.tables import DenseSpec, PartSpec, TableSpec
from pslib.trainer.consistency.geo import GeoCopy, geo_problems
from pslib.trainer.consistency.sync import SyncPlan
from pslib.trainer.settings import TrainerSettings
from tests.support.clusters import cluster_of, vanish
from tests.support.counting import CountingModel, write_examples
from tests.support.training import UNHURRIED, at_step, counts_of, one_trainer, trainer_on
from tests.support.waiting import PATIENCE, PATIENCE_S, WAIT_S, wait_until

PLAIN = {"staleness": 2, "warmup_batches": 0}


# --- sync --------------------------------------------------------------------------------------------------


def test_the_plan_of_a_job_in_step_says_which_trainer_makes_which_step() -> None:
    rows = [10, 4, 3, 12, 1]
    plan = SyncPlan(rows, batch_rows=4, first_step=100, maintain_every=3, ranks=(0, 3))
    assert [plan.of(lease).first_step for lease in range(5)] == [100, 100, 103, 101, 104]
    assert [plan.of(lease).batches for lease in range(5)] == [3, 1, 1, 3, 1]
    assert plan.end == 105
    assert [plan.contributors(step) for step in range(100, 105)] == [(0, 3)] * 4 + [(0,)]
    assert [plan.share(0, step) for step in (100, 102, 103)] == [0.5, 2 / 6, 3 / 7]
    assert plan.share(3, 103) == 4 / 7
    assert [step for step in range(100, 105) if plan.maintains(step)] == [101, 104]


def test_shares_of_a_step_are_those_of_its_examples() -> None:
    rows = np.random.default_rng(3).integers(1, 40, 23).tolist()
    plan = SyncPlan(rows, batch_rows=7, first_step=0, maintain_every=0, ranks=(0, 1, 2))
    seen = 0.0
    for step in range(plan.end):
        shares = [plan.share(rank, step) for rank in plan.contributors(step)]
        assert sum(shares) == pytest.approx(1.0)
        seen += len(shares)
    assert seen == sum(-(-one // 7) for one in rows)


def results_with_one_that_dies(tmp_path: Path, dies_at: int, **settings: Any) -> list[Any]:
    """Results of two trainers, of which one vanishes in this batch: counts of examples, or an error."""
    path = write_examples(tmp_path / "a.parquet", 200)

    def dying(cluster: Cluster) -> None:
        def stop() -> None:
            vanish(cluster)
            raise KeyboardInterrupt

        trainer_on(cluster, CountingModel(at_step(dies_at, stop)), **settings).fit(path)

    def living(cluster: Cluster) -> list[float]:
        trainer_on(cluster, CountingModel(lambda *_: time.sleep(0.01)), **settings).fit(path)
        return counts_of(cluster, np.arange(200)).tolist()

    with cluster_of(1, 2, timing=UNHURRIED) as running:
        return running.run(living, dying)


def test_a_trainer_that_dies_ends_a_job_in_step_with_a_line_that_names_it(tmp_path: Path) -> None:
    started = time.monotonic()
    alive, dead = results_with_one_that_dies(tmp_path, 1, consistency="sync")
    assert isinstance(dead, BaseException)
    assert isinstance(alive, UnavailableError)
    assert "is lost, and with consistency sync every step waits for every trainer" in str(alive)
    assert "there is no checkpoint" in str(alive)
    assert time.monotonic() - started < PATIENCE * 15


@pytest.mark.parametrize(
    ("dies_at", "settings"),
    [
        (1, {"consistency": "ssp", "ssp_bound": 1}),
        (5, {"consistency": "geo", "geo_every_batches": 3, "lease_rows": 100}),  # in the second window
    ],
    ids=["ssp", "geo"],
)
def test_a_dead_trainer_holds_no_other_back_and_its_leases_are_trained_once(
    tmp_path: Path, dies_at: int, settings: dict[str, Any]
) -> None:
    """With deltas, its lease begins again with the window that was not sent."""
    assert [1.0] * 200 in results_with_one_that_dies(tmp_path, dies_at, **settings)


def test_trainers_that_keep_together_in_other_ways_are_told_so(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 40)

    def script(bound: int):  # type: ignore[no-untyped-def]
        return lambda cluster: trainer_on(cluster, consistency="ssp", ssp_bound=bound).fit(path)

    with cluster_of(1, 2, timing=UNHURRIED) as running:
        results = running.run(script(1), script(2))
    assert any("other data or settings" in str(one) for one in results)


# --- ssp ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bound", "awaited"), [(0, 2), (2, 2), (0, 1), (2, 1)])
def test_no_trainer_is_further_ahead_of_a_slow_one_than_the_bound(
    tmp_path: Path, bound: int, awaited: int
) -> None:
    """Seen from outside: what each has begun and applied, in the order in which it happened.

    Nor is a run's only trainer further ahead of one that has joined it: it never looked.
    """
    path = write_examples(tmp_path / "a.parquet", 600)
    events: list[tuple[int, str]] = []
    leads: list[int] = []
    slow_began = threading.Event()

    def script(cluster: Cluster) -> None:
        rank = cluster.rank

        def look(batch: object, rows: object) -> None:
            events.append((rank, "begun"))
            if rank:
                slow_began.set()
            assert slow_began.wait(PATIENCE_S)
            time.sleep(0.02 if rank else 0.001)

        trainer = trainer_on(
            cluster, CountingModel(look), consistency="ssp", ssp_bound=bound, **PLAIN, lease_rows=100
        )
        trained = trainer._progress.trained
        trainer._progress.trained = lambda *rest: (events.append((rank, "done")), trained(*rest))[1]
        trainer.fit(path)
        leads.append(trainer._progress.lead_max)

    with cluster_of(1, awaited, timing=UNHURRIED) as running:
        running.results(script, script)
    assert max(leads) == bound
    both = len(events) - 1 - next(i for i, one in enumerate(reversed(events)) if one[0] == 1)
    assert ahead_of_slowest(events[: both + 1]) <= bound + 1  # a batch is done before its push is applied


def ahead_of_slowest(events: list[tuple[int, str]]) -> int:
    """The most batches that the fast trainer had begun more than the slow one had computed."""
    begun = done = most = 0
    for rank, what in events:
        begun += rank == 0 and what == "begun"
        done += rank == 1 and what == "done"
        most = max(most, begun - 1 - done)
    return most


def test_without_a_bound_the_fast_trainer_runs_away(tmp_path: Path) -> None:
    """Else the test above would prove nothing."""
    path = write_examples(tmp_path / "a.parquet", 600)
    events: list[tuple[int, str]] = []

    def ran_away() -> bool:
        return ahead_of_slowest(events) > 10

    def script(cluster: Cluster) -> None:
        def look(batch: object, rows: object) -> None:
            events.append((cluster.rank, "begun"))
            if cluster.rank:
                wait_until(ran_away, WAIT_S, lambda: f"the fast trainer to run away: {events}")
            events.append((cluster.rank, "done"))

        trainer_on(cluster, CountingModel(look), **PLAIN, lease_rows=100).fit(path)

    with cluster_of(1, 2, timing=UNHURRIED) as running:
        assert running.run(script, script) == [None, None]
    assert ran_away()


# --- geo ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sizes",
    [{"geo_every_batches": every} for every in (1, 3, 100)] + [{"geo_every_batches": 2, "geo_rows": 5}],
    ids=str,
)
def test_deltas_of_all_windows_add_up_whatever_their_length_and_the_size_of_the_copy(
    tmp_path: Path, sizes: dict[str, int]
) -> None:
    """A copy that is far too small loses state and no gradient."""
    path = write_examples(tmp_path / "a.parquet", 130)
    with one_trainer(servers=2, consistency="geo", **sizes) as trainer:
        trainer.fit(path, epochs=2)
        assert counts_of(trainer.cluster, np.arange(130)).tolist() == [2.0] * 130


def test_a_window_is_one_push_and_its_batches_count_as_applied(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 100)
    with one_trainer(consistency="geo", geo_every_batches=3, lease_rows=100) as trainer:
        trainer.fit(path)
        sent = trainer.cluster.client.session.pushes_sent
        assert sent == 7  # 20 batches: six windows of 3 and one of 2
        assert trainer.cluster.client.stats()["pushes_applied"] == sent


@pytest.mark.parametrize(
    ("rows", "dense", "problem"),
    [
        (SGD(0.1, weight_decay=0.1), SGD(0.1), "decay twice"),
        (FTRL(0.1), SGD(0.1), "FTRL"),
        (SGD(0.1), FTRL(0.1), "FTRL"),
        (Adagrad(0.1), SGD(0.1), None),
    ],
)
def test_optimizers_that_do_not_go_with_deltas_are_refused(
    rows: Optimizer, dense: Optimizer, problem: str | None
) -> None:
    table = TableSpec("t", (PartSpec("v", 2, rows, Constant(0.0)),))
    problems = geo_problems(table, DenseSpec(3, dense))
    assert (problem in problems[0]) if problem else problems == []
    if problem:
        with pytest.raises(ConfigurationError, match="geo"):
            GeoCopy(table, DenseSpec(3, dense), 10)


# --- learning rates ----------------------------------------------------------------------------------------


def test_schedules_are_their_formulas() -> None:
    assert [ConstantRate(warmup=4).factor(step) for step in (0, 1, 3, 9)] == [0.25, 0.5, 1.0, 1.0]
    assert [InverseSqrt(batches=100).factor(step) for step in (0, 100, 400)] == [1.0, 1.0, 0.5]
    cosine = Cosine(batches=100, floor=0.1)
    assert [round(cosine.factor(step), 6) for step in (0, 50, 100, 1000)] == [1.0, 0.5, 0.1, 0.1]
    assert [Linear(batches=100, hold=80).factor(step) for step in (0, 80, 90, 95, 100, 200)] == [
        1,
        1,
        0.5,
        0.25,
        0,
        0,
    ]
    assert [StepDecay(every=10, ratio=0.5).factor(step) for step in (9, 10, 35)] == [1.0, 0.5, 0.125]
    assert StepDecay(every=10, warmup=20).factor(9) == 0.5


@pytest.mark.parametrize(
    "schedule", [ConstantRate(warmup=3), InverseSqrt(), Cosine(floor=0.2), Linear(hold=9), StepDecay()]
)
def test_a_schedule_is_read_back_as_it_was_written(schedule) -> None:  # type: ignore[no-untyped-def]
    assert schedule_from_dict(schedule.to_dict()) == schedule


@pytest.mark.parametrize(
    ("plain", "problem"),
    [
        ({"name": "Poly"}, "expected one of Constant, InverseSqrt, Cosine, Linear, StepDecay"),
        ({"name": "Cosine", "steps": 3}, "schedule.steps: unknown key"),
        ({"name": "Cosine", "batches": 0}, "schedule.batches: expected a whole number"),
        ({"name": "Constant", "warmup": -1}, "schedule.warmup"),
        (
            {"name": "Linear", "batches": 5, "hold": 5},
            "schedule.hold: expected fewer than batches = 5",
        ),
        ({"name": "Linear", "batches": 5, "hold": "x"}, "schedule.hold: expected a whole number"),
        ({"name": "StepDecay", "ratio": 2.0}, "schedule.ratio"),
        ({"name": "Constant", "floor": "x"}, "schedule.floor"),
    ],
)
def test_a_wrong_schedule_is_told_in_a_line(plain: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        schedule_from_dict(plain)


def test_rates_follow_schedule_and_staleness() -> None:
    settings = TrainerSettings(schedule=ConstantRate(warmup=4), damping=0.5)
    assert settings.rate(0, 0) == 0.25
    assert settings.rate(9, 2) == 0.5
    assert settings.changes_rates
    assert not TrainerSettings().changes_rates
    with pytest.raises(ConfigurationError, match="FTRL"):
        TrainerSettings(dense_optimizer=FTRL(0.1), damping=0.5)
    with pytest.raises(ConfigurationError, match="consistency: expected one of async, sync, ssp, geo"):
        TrainerSettings(consistency="lazy")


@pytest.mark.parametrize("mode", ["async", "sync", "geo"])
def test_the_servers_take_the_steps_that_a_schedule_says(tmp_path: Path, mode: str) -> None:
    """Each example adds what the learning rate of its batch is: batch 0 a quarter, batch 1 a half, then 1."""
    path = write_examples(tmp_path / "a.parquet", 40)
    settings: dict[str, Any] = {"consistency": mode, "schedule": ConstantRate(warmup=4)}
    if mode == "geo":
        settings["geo_every_batches"] = 3
    with one_trainer(lease_rows=40, **settings) as trainer:
        trainer.fit(path)
        counts = counts_of(trainer.cluster, np.arange(40))
    assert sorted(counts.tolist()) == [0.25] * 5 + [0.5] * 5 + [0.75] * 5 + [1.0] * 25


@pytest.mark.parametrize("mode", ["async", "ssp", "geo"])
def test_the_servers_take_less_of_a_batch_that_was_stale_by_what_the_damping_says(
    tmp_path: Path, mode: str
) -> None:
    """Each example adds the learning rate of its batch, so all add up to what was counted as stale."""
    path = write_examples(tmp_path / "a.parquet", 60)
    slow = CountingModel(lambda batch, rows: time.sleep(0.02))  # the next batches are pulled meanwhile
    settings = PLAIN | {"consistency": mode, "damping": 0.5}
    if mode == "geo":
        settings["geo_every_batches"] = 3
    with cluster_of() as running:
        cluster = running.join()
        trainer_on(cluster, slow, lease_rows=60, **settings).fit(path)
        arrived = counts_of(cluster, np.arange(60))
        running.close()
        stale = running.embedded.last_status()["staleness_counts"]
    assert sum(stale) == 12
    assert sum(stale[1:]) > 0
    assert set(arrived.tolist()) <= {np.float32(1 / (1 + 0.5 * behind)) for behind in range(3)}
    due = sum(5 * batches / (1 + 0.5 * behind) for behind, batches in enumerate(stale))
    assert arrived.sum() == pytest.approx(due, rel=1e-6)
