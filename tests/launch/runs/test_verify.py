"""``pslib verify``: paired differences by their definition, verdicts, and a whole small verification."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.cli.main import main
from launch.job.job import read_job
from launch.job.yaml12 import write_yaml
from launch.runs import verify
from launch.runs.demo import demo_job
from launch.runs.verify import Verified, kill_problem, plain_modes, sync_survives, verdict_of
from launch.supervisor.run_spec import Outcome
from pslib.data.synthetic.generator import GeneratorConfig, generate
from pslib.metrics.metrics import ScoreCounts
from pslib.metrics.paired import Difference, paired_difference, with_chance

NONE = Difference(0.0, -0.001, 0.001)


# --- two models on the same examples -----------------------------------------------------------------------


@given(st.integers(0, 2**32), st.integers(2, 60))
def test_the_difference_is_that_of_both_figures_also_with_ties(seed: int, rows: int) -> None:
    choice = np.random.default_rng(seed)
    labels = np.r_[0, 1, choice.integers(0, 2, rows)].astype(np.float32)
    first, second = np.round(choice.random((2, labels.size)), 1).astype(np.float32)
    auc, loss = paired_difference(labels, [(first, second)], draws=3)
    a, b = ScoreCounts.of(first, labels).result(), ScoreCounts.of(second, labels).result()
    assert auc.value == pytest.approx(b.auc - a.auc, abs=1e-12)
    assert loss.value == pytest.approx(b.logloss - a.logloss, abs=1e-9)


def test_a_draw_weighs_examples_as_often_as_they_are_drawn() -> None:
    """The interval over draws is that of evaluating the drawn examples themselves."""
    choice = np.random.default_rng(5)
    labels = choice.integers(0, 2, 400).astype(np.float32)
    first = choice.random(400).astype(np.float32)
    second = np.clip(0.6 * first + 0.4 * labels * choice.random(400), 0, 1).astype(np.float32)
    auc, loss = paired_difference(labels, [(first, second)], draws=50, seed=1)
    again, aucs, losses = np.random.default_rng(1), [], []
    for _ in range(50):
        rows = again.integers(0, 400, 400)
        a, b = (ScoreCounts.of(one[rows], labels[rows]).result() for one in (first, second))
        aucs.append(b.auc - a.auc)
        losses.append(b.logloss - a.logloss)
    assert (auc.low, auc.high) == pytest.approx(tuple(np.percentile(aucs, [2.5, 97.5])), abs=1e-9)
    assert (loss.low, loss.high) == pytest.approx(tuple(np.percentile(losses, [2.5, 97.5])), abs=1e-7)
    assert auc.low > 0 > loss.high


def test_the_same_model_twice_differs_by_nothing() -> None:
    scores = np.random.default_rng(1).random(50).astype(np.float32)
    labels = (np.arange(50) % 2).astype(np.float32)
    assert paired_difference(labels, [(scores, scores)] * 2, draws=5) == (Difference(0.0, 0.0, 0.0),) * 2


def test_scores_of_other_examples_are_refused() -> None:
    with pytest.raises(ValueError, match="expected pairs"):
        paired_difference(np.zeros(3, np.float32), [(np.zeros(3, np.float32), np.zeros(4, np.float32))])


@pytest.mark.parametrize(("trainings", "pairs"), [(3, 1), (4, 4), (12, 12)])
def test_an_interval_with_chance_holds_differences_that_seeds_alone_make(trainings: int, pairs: int) -> None:
    choice, held = np.random.default_rng(3), 0
    for _ in range(1000):
        figures, others = choice.normal(0.8, 0.003, trainings), choice.normal(0.8, 0.003, pairs)
        value = float((others - figures[:pairs]).mean())
        found = with_chance(Difference(value, value - 1e-5, value + 1e-5), figures.tolist(), pairs)
        held += found.low <= 0 <= found.high
    assert 930 <= held <= 1000


def test_an_interval_with_chance_is_the_wider_of_both_where_one_is_small() -> None:
    alike = with_chance(Difference(0.1, 0.05, 0.2), [0.8, 0.8, 0.8], 1)
    assert (alike.low, alike.high) == pytest.approx((0.05, 0.2))
    apart = with_chance(Difference(0.1, 0.1, 0.1), [0.7, 0.8, 0.9], 2)
    assert (apart.low, apart.high) == pytest.approx((0.1 - 0.4303, 0.1 + 0.4303))


# --- the verdict -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (Verified("async", NONE, NONE, 10, 10, 10), None),
        (Verified("async", Difference(-0.003, -0.005, -0.001), NONE, 10, 10, 10), None),
        (Verified("async", Difference(-0.01, -0.02, -0.005), NONE, 10, 10, 10), "has -0.01000 AUC, at most"),
        (Verified("sync", NONE, Difference(0.01, 0.005, 0.02), 10, 10, 10), "log loss, at least +0.00500"),
        (Verified("sync", NONE, NONE, 10, 10, 9), "sync applied 9 of 10 pushes"),
        (Verified("async", NONE, NONE, 10, 11, 10), "11 sent"),
        (Verified("async", NONE, NONE, 10, 12, 10, killed=1), None),
        (Verified("async", NONE, NONE, 10, 12, 11, killed=1), "async applied 11 of 10 pushes"),
    ],
)
def test_the_verdict_is_one_line_that_says_what_differs(one: Verified, words: str | None) -> None:
    line, code = verdict_of([one], tolerance=0.002)
    assert "\n" not in line
    assert code == (0 if words is None else 1)
    assert words is None or words in line


# --- whole verifications -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verify")
    generate(folder / "data", GeneratorConfig(train_rows=20_000, test_rows=5_000))
    settings = demo_job("data", "run")
    settings["model"] = {"name": "fm", "dim": 4}
    settings["training"]["batch_rows"] = (
        256  # of 1,024, 20 batches: asynchronous runs are up to 0.053 AUC apart
    )
    (folder / "job.yaml").write_text(write_yaml(settings))
    return folder / "job.yaml"


def test_who_would_end_the_run_is_not_killed(job: Path) -> None:
    plain = read_job(job)
    assert "durability" in (kill_problem("server", plain) or "")
    assert kill_problem("trainer", plain) is None
    alone = read_job(job, ["cluster.trainers=1"])
    assert kill_problem("trainer", alone) is None  # it is started again
    for_good = read_job(job, ["cluster.trainers=1", "cluster.restarts=0"])
    assert "set cluster.restarts to 1 or more, or cluster" in (kill_problem("trainer", for_good) or "")
    others_go_on = read_job(job, ["cluster.trainers=2", "cluster.restarts=0"])
    assert kill_problem("trainer", others_go_on) is None


def test_sync_is_left_out_only_where_nobody_would_follow_the_trainer_that_is_killed(job: Path) -> None:
    assert sync_survives(read_job(job), "trainer")
    alone = read_job(job, ["cluster.restarts=0"])
    assert not sync_survives(alone, "trainer")
    assert sync_survives(alone, None)


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_other_ways_than_the_jobs_own_are_tried_without_its_settings(job: Path, mode: str) -> None:
    own = ["training.consistency=ssp", "training.ssp_bound=3"]
    training = read_job(job, own, plain_modes() | {"training.consistency": mode}).training
    assert (training.consistency, training.ssp_bound) == (mode, 8)


def test_async_and_sync_train_what_the_reference_does(job: Path, tmp_path: Path, capsys: Any) -> None:
    # Asynchronous runs of one seed are up to 0.008 AUC from the reference, 8 of 8.
    out = tmp_path / "out$NO_SUCH_VARIABLE"  # names are no patterns
    code = main(["verify", str(job), "--out", str(out), "--json", "--tolerance", "0.04"])
    report = json.loads(capsys.readouterr().out)
    assert code == 0, report
    assert [run["mode"] for run in report["runs"]] == ["async", "sync"]
    assert [run["step_batches"] for run in report["runs"]] == [1, 2]
    for run in report["runs"]:
        assert run["pushes_due"] == run["pushes_sent"] == run["pushes_applied"] == 79
        assert run["auc"]["low"] <= run["auc"]["value"] <= run["auc"]["high"]
    parts = sorted((out / "seed-1" / "async" / "predictions").glob("part-*.parquet"))
    told = pa.concat_tables([pq.read_table(path) for path in parts])
    expected = pq.read_table(job.parent / "data" / "test.parquet").column("label").to_numpy()
    np.testing.assert_array_equal(told.column("label").to_numpy(), expected)


@pytest.mark.parametrize(
    ("apart", "code", "verdict"),
    [(0.1, 0, "ok: async and sync train what"), (0.002, 1, "DIFFERS: async has -")],
    ids=["chance", "more than chance"],
)
def test_a_difference_is_compared_with_that_of_other_seeds_before_it_counts(
    job: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
    apart: float,
    code: int,
    verdict: str,
) -> None:
    """Of few steps the seed alone changes more than the tolerance."""
    labels = np.random.default_rng(0).integers(0, 2, 2000).astype(np.float32)

    def scores(predictions: Path) -> tuple[Any, Any]:
        seed, mode = predictions.parts[-3:-1]
        number = int(seed.removeprefix("seed-"))
        spread = 0.4 if mode == "async" else 0.3 + apart * (number - 1)
        drawn = np.random.default_rng([number, mode == "async"]).normal(0, spread, labels.size)
        return labels, np.clip(0.5 + 0.4 * (labels - 0.5) + drawn, 0.01, 0.99).astype(np.float32)

    monkeypatch.setattr(verify, "_train_reference", lambda *_: 79)
    monkeypatch.setattr(verify, "_train_cluster", lambda *_: (79, 79, 0))
    monkeypatch.setattr(verify, "_scores", scores)
    assert main(["verify", str(job), "--out", str(tmp_path / "out")]) == code
    said = capsys.readouterr().out
    assert f"\nverify: {verdict}" in said
    told = said.index("async is worse than the tolerance: references of other seeds show chance")
    for seed in (2, 3):
        assert said.index(f"seed {seed}: reference") > told
    assert said.count(": reference\n") == 3


def test_what_the_job_saves_and_logs_elsewhere_is_not_touched(job: Path, tmp_path: Path, capsys: Any) -> None:
    """Its checkpoint is the model that is served, and not one that was trained to be compared."""
    kept, logs = tmp_path / "kept", tmp_path / "logs"
    more = [f"checkpoint={{path: {kept}, keep_last: 1}}", "cluster.durability=log", f"cluster.log={logs}"]
    with_more = [word for setting in more for word in ("--set", setting)]
    assert main(["train", str(job), "--out", str(tmp_path / "run"), *with_more]) == 0
    before = {path: path.stat().st_mtime_ns for path in (*kept.rglob("*"), *logs.rglob("*"))}
    assert before
    capsys.readouterr()
    code = main(["verify", str(job), "--out", str(tmp_path / "out"), "--tolerance", "0.04", *with_more])
    assert code == 0, capsys.readouterr()
    assert {path: path.stat().st_mtime_ns for path in (*kept.rglob("*"), *logs.rglob("*"))} == before


def test_all_ways_begin_with_the_checkpoint_that_the_job_begins_with(job: Path, tmp_path: Path) -> None:
    assert main(["train", str(job), "--out", str(tmp_path / "run"), "--trainers", "1"]) == 0
    losses = []
    for settings in ([f"load.path={tmp_path / 'run' / 'checkpoint'}"], []):
        predictions = tmp_path / f"predictions-{len(losses)}"
        assert verify._train_reference(read_job(job, settings, verify.SEQUENTIAL), predictions) == 79
        labels, scores = verify._scores(predictions)
        losses.append(ScoreCounts.of(scores, labels).result().logloss)
    assert abs(losses[0] - losses[1]) > 0.005


def test_a_stream_is_nothing_to_verify_with_and_early_stopping_is_left_out(
    job: Path, tmp_path: Path, capsys: Any
) -> None:
    """A stream takes each file once; ways that stop after other epochs have other pushes."""
    (tmp_path / "incoming").mkdir()
    stream = ["--set", "data.stream=true", "--set", f"data.train={tmp_path / 'incoming'}"]
    assert main(["verify", str(job), *stream]) == 64
    assert "data.stream: verify trains the same files several times" in capsys.readouterr().err
    stops = ["data.valid=data/test.parquet", "training.stopping={}"]
    assert read_job(job, stops).training.stopping
    assert read_job(job, stops, verify.APART).training.stopping is None


@pytest.mark.parametrize("tolerance", ["nan", "inf", "-0.1"])
def test_a_tolerance_that_nothing_could_pass_or_fail_is_refused_before_anything_is_trained(
    job: Path, capsys: Any, tolerance: str
) -> None:
    assert main(["verify", str(job), f"--tolerance={tolerance}"]) == 64
    assert capsys.readouterr().err == f"pslib: --tolerance: expected 0 or more, got {tolerance}\n"


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("role", "trainers"), [("trainer", "1"), ("trainer", "2"), ("server", "2"), ("coordinator", "2")]
)
def test_a_process_that_is_killed_changes_nothing_that_counts(
    job: Path, tmp_path: Path, capsys: Any, role: str, trainers: str
) -> None:
    more = ["--trainers", trainers]
    more += ["--set", "training.epochs=12", "--tolerance", "0.05"]  # only books matter
    if role != "trainer":
        more += ["--set", "cluster.durability=log"]
    code = main(["verify", str(job), "--out", str(tmp_path / "out"), "--kill", role, "--json", *more])
    report = json.loads(capsys.readouterr().out)
    assert code == 0, report
    assert [run["mode"] for run in report["runs"]] == ["async", "sync"]
    for run in report["runs"]:
        assert run["killed"] == 1
        assert run["pushes_due"] == run["pushes_applied"] == 948


def test_ctrl_c_ends_it_as_such_and_is_no_failed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "run_cluster", lambda *_all, **_more: Outcome(130))
    (tmp_path / "data.parquet").touch()
    job = {
        "data": {"train": "data.parquet", "schema": {"label": "click", "sparse": ["user"]}},
        "model": {"name": "lr"},
    }
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    with pytest.raises(KeyboardInterrupt):
        verify._train_cluster(read_job(tmp_path / "job.yaml"), tmp_path, None)
