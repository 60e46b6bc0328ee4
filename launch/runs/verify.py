"""``pslib verify``: compare training on the cluster with sequential training.

The same data is trained by the sequential reference (one server, one trainer, staleness 0: every batch sees
all earlier ones) and by the cluster of the job file, async and sync. Compared are the models, on each test
example, and the push counts: pushes applied by servers against pushes due.
"""

from __future__ import annotations

import math
import os
import secrets
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launch.job.job import Job, saved_place
from launch.job.model import ranks_items
from launch.job.paths import literal
from launch.job.preflight import check_data, hold_port, prepare_out
from launch.places.local import LocalLauncher
from launch.runs.train import log_folder
from launch.supervisor.run_spec import Outcome, Plan
from launch.supervisor.supervisor import end_as_asked, run_cluster
from launch.worker.train_job import begin_with, evaluate_checkpoint, make_trainer, own_cluster
from pslib.errors import EXIT_DONE, ConfigurationError
from pslib.text import counted

if TYPE_CHECKING:
    from pslib.metrics.paired import Difference


EXIT_DIFFERS = 1
CHANCE_SEEDS = 3
"""Trainings of the reference, each of another seed, that show what chance does: two may be alike."""
KILL_AT = 0.3
"""Share of the examples before the kill: late enough for a loss to show."""
SEQUENTIAL: dict[str, object] = {
    "training.consistency": "async",
    "training.staleness": 0,
    "training.warmup_batches": 0,
    "training.cache": {"age_batches": 0},
    "training.wire": {},
    "training.products": "float32",
    "cluster.servers": 1,
    "cluster.trainers": 1,
}
APART: dict[str, object] = {"checkpoint.path": None, "cluster.log": None, "training.stopping": None}
"""Overrides that leave the job's own checkpoints and logs untouched, with the same epochs for all modes."""


@dataclass(frozen=True, slots=True)
class Verified:
    """Comparison of one mode with the reference, over all seeds.

    Attributes
    ----------
    mode : str
        "async", "sync", "ssp" or "geo".
    auc, logloss : Difference
        Value of the cluster minus value of the reference.
    pushes_due, pushes_sent, pushes_applied : int
        Batches of the training; counts reported by trainers; counts reported by servers.
    killed : int
        Number of killed processes.
    step_batches : int
        Batches per parameter step: with sync one of each trainer.
    """

    mode: str
    auc: Difference
    logloss: Difference
    pushes_due: int
    pushes_sent: int
    pushes_applied: int
    killed: int = 0
    step_batches: int = 1

    @property
    def balances(self) -> bool:
        """True if each push counts once.

        The pushes sent by a killed trainer are unknown, and its successor sends some again.
        """
        exact = self.pushes_applied == self.pushes_due
        return exact and (self.killed > 0 or self.pushes_sent == self.pushes_due)

    def is_worse(self, tolerance: float) -> bool:
        """Return True if a whole interval is worse than the tolerance."""
        return self.auc.high < -tolerance or self.logloss.low > tolerance


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """Options of a comparison.

    Attributes
    ----------
    kill : str or None
        Process to kill once in each run of the cluster: server, trainer or coordinator.
    seeds : int
        Number of trainings of each mode.
    tolerance : float
        Largest accepted loss of AUC, and rise of log loss.
    overwrite : bool
        True if earlier runs may be replaced.
    """

    kill: str | None
    seeds: int
    tolerance: float
    overwrite: bool


def run_verify(
    read: Callable[[dict[str, object]], Job],
    out: str | None,
    options: VerifyOptions,
    say: Callable[[str], object],
) -> tuple[list[Verified], str, int]:
    """Train in all modes and compare.

    Parameters
    ----------
    read : callable
        Reads the job with further settings.
    out : str or None
        Folder of all runs; None: beside that of the job.
    options : VerifyOptions
    say : callable
        Called with a line of progress.

    Returns
    -------
    list of Verified, str, int
        The comparisons, the verdict, and the exit code: 1 when a difference exceeds the tolerance, else 0.

    Raises
    ------
    ConfigurationError
        When there is no test data, or the process to kill would end the run.
    """
    job = read({})
    anew: dict[str, object] = {"load.resume": False} if job.load else {}

    def job_of(**more: object) -> Job:
        return read(APART | anew | more)

    if job.test_data is None:
        raise ConfigurationError("nothing to compare on: the job file needs data.test or data.test_share")
    if job.data.stream:
        raise ConfigurationError(
            "data.stream: verify trains the same files several times, a stream takes each once: add "
            "--set data.stream=null"
        )
    if ranks_items(job.model.name):
        raise ConfigurationError(f"verify compares predictions of clicks, and {job.model.name} ranks items")
    if problem := kill_problem(options.kill, job):
        raise ConfigurationError(problem)
    _check_numbers(options)
    check_data(job)
    comparison = _Comparison(job, job_of, Path(out or f"{job.out}-verify").resolve(), options, say)
    verified = list(comparison.all())
    return verified, *verdict_of(verified, options.tolerance)


def kill_problem(kill: str | None, job: Job) -> str | None:
    """Return why killing this process would end a run of this job; None: it would not."""
    if kill in ("server", "coordinator") and job.cluster_config.durability == "memory":
        return f"--kill {kill}: the run would end with it; set cluster.durability to log or disk"
    if kill == "trainer" and job.cluster.trainers < 2 and not job.cluster.restarts:
        more = "set cluster.restarts to 1 or more, or cluster.trainers to 2 or more"
        return f"--kill trainer: the run would end with it; {more}"
    return None


def _modes(job: Job, kill: str | None) -> list[str]:
    """Return the modes to compare: async, sync and the job's own."""
    modes = dict.fromkeys(("async", "sync", job.training.consistency))
    return [mode for mode in modes if mode != "sync" or sync_survives(job, kill)]


def sync_survives(job: Job, kill: str | None) -> bool:
    """Return whether a run with sync survives: each step needs every trainer, or its successor."""
    return kill != "trainer" or job.cluster.restarts > 0


def plain_modes() -> dict[str, object]:
    """Return overrides that reset the consistency settings to their defaults."""
    from pslib.trainer.settings import OF_CONSISTENCY, TrainingSettings

    return {f"training.{name}": getattr(TrainingSettings, name) for name in OF_CONSISTENCY}


def _check_numbers(options: VerifyOptions) -> None:
    if not 0 <= options.tolerance < math.inf:
        raise ConfigurationError(f"--tolerance: expected 0 or more, got {options.tolerance:g}")
    if options.seeds < 1:
        raise ConfigurationError(f"--seeds: expected at least 1, got {options.seeds}")


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Trainings of the reference and of the modes, and what they differ by."""

    job: Job
    job_of: Callable[..., Job]
    out: Path
    options: VerifyOptions
    say: Callable[[str], object]
    labels: list[Any] = field(default_factory=list)
    """Labels of the test data, once the first training is done."""
    references: list[Any] = field(default_factory=list)
    """(n,) predictions of the reference, by seed from the job's on."""

    @property
    def seeds(self) -> range:
        """Seeds of the modes."""
        return range(self.job.training.seed, self.job.training.seed + self.options.seeds)

    def all(self) -> Iterator[Verified]:
        """Train in all modes; yield a comparison of each."""
        due = sum(self._train_reference(seed) for seed in self.seeds)
        if not sync_survives(self.job, self.options.kill):
            self.say("sync is left out: without cluster.restarts it ends with the trainer that is killed")
        for mode in _modes(self.job, self.options.kill):
            found = self._of_mode(mode, due)
            yield self._with_chance(found) if found.is_worse(self.options.tolerance) else found

    def _train_reference(self, seed: int) -> int:
        """Train the reference; return the number of pushes."""
        place = prepare_out(self.out / f"seed-{seed}" / "reference", self.options.overwrite)
        self.say(f"seed {seed}: reference")
        more: dict[str, object] = {"training.seed": seed, "out": literal(str(place))}
        due = _train_reference(self.job_of(**SEQUENTIAL, **plain_modes(), **more), place / "predictions")
        labels, scores = _scores(place / "predictions")
        self.labels[:] = [labels]
        self.references.append(scores)
        return due

    def _of_mode(self, mode: str, due: int) -> Verified:
        from pslib.metrics.paired import paired_difference

        pairs, ledger = [], []
        for seed, reference in zip(self.seeds, self.references, strict=False):  # may be more, for chance
            place = prepare_out(self.out / f"seed-{seed}" / mode, self.options.overwrite)
            self.say(f"seed {seed}: {mode}")
            more: dict[str, object] = {
                "training.consistency": mode,
                "training.seed": seed,
                "out": literal(str(place)),
            }
            if mode == "sync":
                more["training.cache"] = {"age_batches": 0}
            if mode != self.job.training.consistency:
                more |= plain_modes()
            ledger.append(_train_cluster(self.job_of(**more), place, self.options.kill))
            pairs.append((reference, _scores(place / "predictions")[1]))
        auc, logloss = paired_difference(self.labels[0], pairs)
        sent, applied, killed = (sum(book[at] for book in ledger) for at in range(3))
        step_batches = self.job.cluster.trainers if mode == "sync" else 1
        return Verified(mode, auc, logloss, due, sent, applied, killed, step_batches)

    def _with_chance(self, found: Verified) -> Verified:
        """Return a comparison whose intervals hold the chance of a training, as its references show it."""
        from pslib.metrics.paired import figures_of, with_chance

        if len(self.references) < CHANCE_SEEDS:
            self.say(f"{found.mode} is worse than the tolerance: references of other seeds show chance")
        for seed in range(self.seeds.start + len(self.references), self.seeds.start + CHANCE_SEEDS):
            self._train_reference(seed)
        figures = (figures_of(self.labels[0], scores) for scores in self.references)
        aucs, losses = zip(*figures, strict=True)
        pairs = self.options.seeds
        return replace(
            found, auc=with_chance(found.auc, aucs, pairs), logloss=with_chance(found.logloss, losses, pairs)
        )


def _train_reference(job: Job, predictions: Path) -> int:
    """Train sequentially in this process and write predictions; return the number of pushes."""
    assert job.test_data is not None
    with own_cluster(servers=1) as cluster:
        trainer = make_trainer(job, cluster)
        begin_with(job, trainer)
        trainer.fit(job.train_data, epochs=job.training.epochs)
        trainer.evaluate(job.test_data, predictions=predictions)
        return int(cluster.client.stats()["pushes_applied"])


def _train_cluster(job: Job, out: Path, kill: str | None) -> tuple[int, int, int]:
    """Train with processes and write predictions; return pushes sent and applied, and killed processes.

    Raises
    ------
    ConfigurationError
        When the run has failed, so that there is nothing to compare.
    """
    effective = out / "job.yaml"
    effective.write_text(job.to_yaml(), encoding="utf-8")
    arguments = ("--job", str(effective))
    config = job.cluster_config
    logs = log_folder(config, None, out)
    plan = Plan(config, secrets.token_hex(8), arguments, out / "logs", log=logs)
    killer = _Killer(kill, out / "logs")
    outcome: Outcome = run_cluster(
        LocalLauncher(job.cluster.trainers, hold_port()), plan, observe=killer.observe
    )
    end_as_asked(outcome)
    if outcome.exit_code != EXIT_DONE:
        why = outcome.reason or f"exit code {outcome.exit_code}"
        raise ConfigurationError(f"verify: the run in {out} has failed: {why}")
    evaluate_checkpoint(job, saved_place(job), None, str(out / "predictions"))
    return int(outcome.status["pushes_sent"]), int(outcome.status["pushes_applied"]), killer.killed


class _Killer:
    """Kill the last process of a role once, after a share of the training."""

    def __init__(self, role: str | None, logs: Path) -> None:
        self._role, self._logs = role, logs
        self.killed = 0

    def observe(self, status: dict[str, Any]) -> None:
        """Check the status of the run; kill the process when the share is reached."""
        due = status["examples"] > KILL_AT * status["examples_total"] > 0
        if self._role is None or self.killed or not due:
            return
        log = sorted(self._logs.glob(f"{self._role}*.log"))[-1]
        pid = int(log.read_text(encoding="utf-8").partition("pslib-started ")[2].split()[0])
        os.kill(pid, signal.SIGKILL)
        self.killed += 1


def _scores(folder: Path) -> tuple[Any, Any]:
    """Read labels and predictions of an evaluation, in the order of the data."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob("part-*.parquet"))])
    return table.column("label").to_numpy(), table.column("prediction").to_numpy()


def verdict_of(verified: Sequence[Verified], tolerance: float) -> tuple[str, int]:
    """Return a line and the exit code: 1 if an interval is worse than the tolerance or counts differ."""
    problems = []
    for one in verified:
        if not one.balances:
            problems.append(
                f"{one.mode} applied {one.pushes_applied:,} of {counted(one.pushes_due, 'push', 'pushes')}, "
                f"{one.pushes_sent:,} sent"
            )
        if one.auc.high < -tolerance:
            problems.append(f"{one.mode} has {one.auc.value:+.5f} AUC, at most {one.auc.high:+.5f}")
        if one.logloss.low > tolerance:
            least = f"at least {one.logloss.low:+.5f}"
            problems.append(f"{one.mode} has {one.logloss.value:+.5f} log loss, {least}")
    if problems:
        return f"verify: DIFFERS: {'; '.join(problems)}", EXIT_DIFFERS
    modes = " and ".join(one.mode for one in verified)
    train = "trains" if len(verified) == 1 else "train"
    return f"verify: ok: {modes} {train} what one after the other does; each push counts once", EXIT_DONE


def line_of(one: Verified) -> str:
    """Return the line of a comparison for the user."""
    killed = f", {one.killed} killed" if one.killed else ""
    if one.step_batches > 1:  # so it differs from the reference by more than chance
        killed += f"; {one.step_batches} batches a step, the reference has 1"
    return (
        f"{one.mode:<6} AUC {_told_difference(one.auc)}, log loss {_told_difference(one.logloss)}; pushes: "
        f"{one.pushes_due:,} due, {one.pushes_sent:,} sent, {one.pushes_applied:,} applied{killed}"
    )


def _told_difference(difference: Difference) -> str:
    return f"{difference.value:+.5f} [{difference.low:+.5f}, {difference.high:+.5f}]"
