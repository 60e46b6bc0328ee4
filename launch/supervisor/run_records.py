"""Records of a run under a launcher, for all its trainers together, and the summary that it prints."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launch.job.job import Job
from launch.job.paths import from_here
from launch.supervisor.resume import earlier_metrics
from launch.supervisor.run_spec import Launcher, Outcome, Plan, Task
from launch.supervisor.supervisor import run_cluster
from launch.worker.json_output import identify
from launch.worker.json_output import show as show_entry
from launch.worker.log_lines import PEOPLE_PREFIX, Entry, Origin, log_text
from pslib.clock import SystemClock
from pslib.config import ClusterConfig
from pslib.coordinator.results import EVALUATIONS, fresh_results, of_kind
from pslib.errors import EXIT_DONE, EXIT_INTERRUPTED, ConfigurationError, PreemptedError
from pslib.monitor.run_folder import read_record
from pslib.recorder.callback import Callback
from pslib.storage import shown
from pslib.text import behind_text, counted
from pslib.wire.counters import TABLE_COUNTERS

if TYPE_CHECKING:
    from pslib.monitor.page_server import PageServer
    from pslib.monitor.sources import LiveRun

_ENDS = {EXIT_DONE: "done", PreemptedError.exit_code: "preempted", EXIT_INTERRUPTED: "interrupted"}


def run_recorded(
    launcher: Launcher,
    plan: Plan,
    out: Path | None,
    *,
    progress: bool,
    facts: Mapping[str, Any],
    callbacks: Sequence[Callback] = (),
    settings: Mapping[str, str] | None = None,
    ui: int | None = None,
) -> tuple[Outcome, dict[str, Any]]:
    """Run a cluster and write its records.

    Parameters
    ----------
    launcher : Launcher
    plan : Plan
    out : Path or None
        Folder of the records; None: no records.
    progress : bool
        True to show a bar.
    facts : mapping
        Further entries of the summary, beside the figures of the run.
    callbacks : sequence of Callback
        Trackers: the recorder calls their methods of a run.
    settings : mapping, optional
        Those of the job, for the callbacks; see `pslib.recorder.environment.flat_settings`.
    ui : int or None
        Port of the run's page on this machine, 0 for any; None: no page.

    Returns
    -------
    outcome : Outcome
    summary : dict
        Contents of ``summary.json``.

    Raises
    ------
    OSError
        When the records of a finished run can't be written.
    """
    from pslib.recorder import RunRecorder

    recorder = RunRecorder(
        out,
        SystemClock(),
        progress=progress,
        stream=sys.stderr,
        callbacks=callbacks,
        about={
            "name": out.name if out else facts.get("job"),
            "run_id": plan.cluster_id,
            "settings": settings or {},
        },
        earlier=[] if out is None else earlier_metrics(out),
    )
    with recorder:
        rankings = Rankings()

        kept = _Kept(plan, out, ui)

        def observe(status: dict[str, Any]) -> None:
            recorder.observe(kept.with_events(of_kind(status, *EVALUATIONS)))
            for line in rankings.news(status):
                say(line)

        try:
            outcome = run_cluster(
                launcher,
                plan,
                observe=observe,
                say=say,
                show=partial(show, plan.cluster_id),
                began=kept.begin,
            )
        finally:
            kept.close()
        kept.finish(outcome)
        for line in rankings.news(outcome.status):
            say(line)
        figures = summary_of(outcome.status, outcome.results, plan.config)
        phase = _ENDS.get(outcome.exit_code, "failed")  # for the coordinator, leaving in order is "done"
        ending = {"exit_code": outcome.exit_code, "phase": phase, "error": outcome.reason}
        try:
            if outcome.status:  # newer than the last observed one if the end came in between
                recorder.observe(kept.with_events(of_kind(outcome.status, *EVALUATIONS)))
            summary = recorder.finish({**figures, **facts, **ending})
        except OSError as error:
            if outcome.exit_code == EXIT_DONE and recorder.written is None:
                raise OSError(error.errno, _left_out(error, outcome), error.filename or str(out)) from error
            if outcome.exit_code == EXIT_DONE:
                say(f"{out}: {error.strerror}: run.png was not written; all else is there")
            # the cause of an earlier failure, often the same full disk, is reported
            summary = recorder.written or {**figures, **facts, **ending}
            with suppress(OSError):
                recorder.close()
    return outcome, summary


class _Kept:
    """Writer of a run's ``monitor.json`` and server of its page, once its coordinator listens.

    Parameters
    ----------
    plan : Plan
    out : Path or None
        Folder of the run; None writes nothing.
    ui : int or None
        Port of the page; None serves none.
    """

    def __init__(self, plan: Plan, out: Path | None, ui: int | None) -> None:
        self._plan, self._out, self._ui = plan, out, ui
        self._live: LiveRun | None = None
        self._page: PageServer | None = None

    def begin(self, address: str) -> None:
        """Begin to ask the coordinator."""
        if self._out is None and self._ui is None:
            return
        from pslib.cluster import Watcher
        from pslib.monitor.sources import LiveRun

        plan, folder = self._plan, None if self._out is None else self._out.absolute()
        facts = {"cluster_id": plan.cluster_id, "name": plan.cluster_id}
        facts |= {"name": folder.name, "folder": str(folder)} if folder else {}
        watcher = Watcher(address, plan.cluster_id, plan.key_of("admin"))
        self._live = LiveRun(watcher, facts, address, folder, keeps=True)
        if self._ui is None:
            return
        from pslib.monitor.page_server import PageServer

        try:
            self._page = PageServer(self._live, port=self._ui)
        except ConfigurationError as error:  # taken since it was checked: the run is worth more
            say(str(error))
        else:
            say(f"the page of this run: {self._page.url}")

    def with_events(self, status: dict[str, Any]) -> dict[str, Any]:
        """Return a status with the run's events in place of the lines for people, if they are known."""
        if self._out is None:
            return status
        return status | {"events": self._live.state()["events"] if self._live else ()}

    def close(self) -> None:
        """End asking: the coordinator is gone."""
        if self._live is not None:
            self._live.close()

    def finish(self, outcome: Outcome) -> None:
        """Write the end of the run, and show it in the pages that are open."""
        if self._live is not None:
            self._live.finish(outcome.status, outcome.reason, outcome.exit_code == EXIT_DONE)
        if self._page is not None:
            self._page.close()


def _left_out(error: OSError, outcome: Outcome) -> str:
    """Describe the existing and missing records of a finished run whose summary can't be written."""
    saved = outcome.status.get("saved")
    there = f"its checkpoint {shown(saved)} is complete" if saved else "nothing was saved"
    return (
        f"{error.strerror}; the training is done and {there}, but summary.json and run.png were not written: "
        "make space, and pslib eval gives the figures again"
    )


class Rankings:
    """Results of rankings, each reported once."""

    def __init__(self) -> None:
        self._told = 0

    def news(self, status: Mapping[str, Any]) -> list[str]:
        """Return a line for each k of each new ranking in a coordinator's status."""
        ranked = of_kind(status, "rank")
        fresh, self._told = fresh_results(ranked["results"], ranked["results_before"], self._told)
        return [
            f"{one.get('name', 'ranking')}{behind_text(one)}: Recall@{k} {recall:.4f}, "
            f"MRR@{k} {mrr:.4f}, NDCG@{k} {ndcg:.4f} on {counted(one['examples'], 'example')}"
            for one in fresh
            for k, recall, mrr, ndcg in zip(one["at"], one["recall"], one["mrr"], one["ndcg"], strict=True)
        ]


@dataclass(slots=True)
class _Log:
    """Log of this launcher, which has one run."""

    file: Path | None = None
    origin: Origin = Origin("launcher")
    as_json: bool = False


_log = _Log()


def keep_log(logs: Path, run: str | None, as_json: bool) -> None:
    """Let `say` write its lines into the folder of a run's logs too, from now on."""
    _log.file, _log.origin, _log.as_json = logs / "launcher.log", Origin("launcher", run=run), as_json
    identify(_log.origin)


def say(line: str) -> None:
    """Print a line for the user, above the progress block if there is one; write it to the launcher's log."""
    sys.stderr.write(f"{PEOPLE_PREFIX}{line}\n")
    sys.stderr.flush()
    if _log.file is not None:
        entry = Entry(line, "warning", "pslib")
        with suppress(OSError), _log.file.open("ab") as log:  # a full disk does not end the run
            log.write(log_text(entry, _log.origin, _log.as_json).encode())


def show(run: str, task: Task, entry: Entry) -> None:
    """Print what a process says to the user, which the log of that process has."""
    lines = "".join(f"{PEOPLE_PREFIX}{task.name}: {line}\n" for line in entry.message.split("\n"))
    show_entry(sys.stderr, entry, task.origin(run), lines)


COUNTERS = (
    "rows",
    "parameters",
    "memory_bytes",
    *TABLE_COUNTERS,
    "pushes_sent",
    "pushes_applied",
    "updates_sent",
    "updates_applied",
    "pushes_missing",
    "bytes_sent",
    "bytes_received",
    "cache_lookups",
    "cache_hits",
    "cache_bytes_saved",
    "staleness_max",
    "lead_max",
)
"""Entries copied from the status."""

RANKING = ("recall", "mrr", "ndcg")
"""Metrics of models that rank items, each by k."""

RECORDS = {
    "picture": "run.png",
    "checkpoint": "checkpoint",
    "metrics": "metrics.jsonl",
    "summary": "summary.json",
}


def summary_of(
    status: Mapping[str, Any], results: Sequence[Mapping[str, Any]], config: ClusterConfig
) -> dict[str, Any]:
    """Compute the figures of a run.

    Parameters
    ----------
    status : mapping
        Last status of the coordinator.
    results : sequence of mapping
        Results of the trainers; all that evaluated report the same merged figures.
    config : ClusterConfig
        Number of processes, since none is left at the end of a run.

    Returns
    -------
    dict
        ``auc`` and ``logloss`` are those of the test data, else of the last evaluation; None without either.
        A model that ranks items has ``recall``, ``mrr`` and ``ndcg`` on the test data, by k, instead.
        ``tasks`` has the test figures of the schema's further labels, by label, where there are any.
        ``examples`` and ``epochs`` are of the whole training, ``examples_before`` of them were trained before
        the run, which went on with them. ``examples_per_s`` is of this run alone and counts the time of
        training, ``seconds`` all from its first process on.
    """
    outcomes = status.get("results", ())
    tested = next((result["test"] for result in results if result.get("test")), None)
    scores: Mapping[str, Any] = tested or next(
        (one for one in reversed(outcomes) if one.get("kind") == "evaluate"), {}
    )
    fit_s = float(status.get("fit_seconds", 0.0))
    examples, before = (int(status.get(name, 0)) for name in ("examples", "examples_before"))
    count, measured = (int(status.get(name, 0)) for name in ("staleness_count", "between_count"))
    figures = {name: scores.get(name) for name in ("auc", "logloss", "calibration")}
    figures |= {name: scores[name] for name in RANKING if name in scores}
    tasks = next((result["test_tasks"] for result in results if result.get("test_tasks")), None)
    figures |= {"tasks": tasks} if tasks else {}
    figures |= {
        "examples": examples,
        "examples_before": before,
        "epochs": int(status.get("epoch", 0)),  # trained epochs: a fit may have stopped early
        "seconds": round(float(status.get("seconds", 0.0)), 3),
        "fit_seconds": round(fit_s, 3),
        "examples_per_s": round((examples - before) / fit_s, 1) if fit_s else 0.0,
        "servers": config.servers,
        "trainers": config.trainers,
        "staleness_mean": round(status.get("staleness_sum", 0) / count, 3) if count else 0.0,
        "staleness_counts": list(status.get("staleness_counts", ())),
        "pushes_between_mean": round(status.get("between_sum", 0) / measured, 3) if measured else 0.0,
        "pushes_between_max": int(status.get("between_max", 0)),
    }
    return figures | {name: int(status.get(name, 0)) for name in COUNTERS}


def best_possible(job: Job) -> dict[str, float] | None:
    """Return AUC and log loss of the true probabilities for generated test data; None for other data."""
    from pslib.data.synthetic.generator import SIDECAR

    path = Path((job.data.test or [""])[0])
    part = read_record(path.parent / SIDECAR).get("test")
    if isinstance(part, dict) and part.get("file") == path.name:
        with suppress(ValueError, KeyError, TypeError):
            return {"auc": float(part["best_auc"]), "logloss": float(part["best_logloss"])}
    return None


def summary_lines(
    summary: Mapping[str, Any], out: Path, best: Mapping[str, float] | None = None
) -> list[str]:
    """Return the lines of the printed summary.

    Parameters
    ----------
    summary : mapping
        From `summary_of`.
    out : Path
        Folder of the run.
    best : mapping, optional
        From `best_possible`.
    """
    lines = []
    if summary["auc"] is not None:
        of = f" (best possible {best['auc']:.4f})" if best else ""
        loss_of = f" (best possible {best['logloss']:.4f})" if best else ""
        lines.append(f"AUC           {summary['auc']:.4f}{of}")
        lines.append(f"log loss      {summary['logloss']:.4f}{loss_of}")
    for k, recall in summary.get("recall", {}).items():
        lines.append(
            f"at {k:<10} Recall {recall:.4f}, MRR {summary['mrr'][k]:.4f}, NDCG {summary['ndcg'][k]:.4f}"
        )
    lines.append(f"examples/s    {summary['examples_per_s']:,.0f} ({_trained(summary)})")
    lines.append(f"rows          {summary['rows']:,} on {counted(summary['servers'], 'server')}")
    lines += _table_lines(summary)
    moved = summary["bytes_sent"] + summary["bytes_received"]
    lines.append(f"bytes         {moved / 1e6:,.1f} MB between trainers and servers")
    if summary["cache_lookups"]:
        share, saved = summary["cache_hits"] / summary["cache_lookups"], summary["cache_bytes_saved"]
        lines.append(f"cache         {share:.1%} of rows were not pulled: {saved / 1e6:,.1f} MB saved")
    found, told = records_of(out), ("picture", "checkpoint", "summary")
    return [*lines, *(f"{what:13} {found[what]}" for what in told if what in found)]


def _trained(summary: Mapping[str, Any]) -> str:
    """Describe the examples behind the speed, and the total with those of the resumed run."""
    examples, before = summary["examples"], summary["examples_before"]
    return counted(examples - before, "example") + (f", {examples:,} with those before" if before else "")


def records_of(out: Path) -> dict[str, str]:
    """Describe the records in a run's folder, with typeable paths, alike for all runs."""
    return {what: from_here(out / name) for what, name in RECORDS.items() if (out / name).exists()}


def records_line(out: Path) -> str:
    """Return the records of an unfinished run as a line; empty if there are none."""
    found = records_of(out)
    return ", ".join(f"{what} {found[what]}" for what in ("picture", "metrics", "summary") if what in found)


def _table_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return lines on the effects of limits and policies on the table; none for a table without them."""
    lines = []
    if limit := summary["memory_limit_bytes"]:
        lines.append(f"tables        {summary['memory_bytes'] / 1e6:,.1f} of {limit / 1e6:,.1f} MB")
    acted = {
        "narrow rows": "narrow_rows",
        "keys counted without a row": "counted_keys",
        "promoted": "promoted",
        "left by age": "evicted_age",
        "left by norm": "evicted_norm",
        "left by score": "evicted_score",
        "left at the limit": "evicted_share",
    }
    if told := [f"{summary[name]:,} {what}" for what, name in acted.items() if summary[name]]:
        lines.append(f"policies      {', '.join(told)}; {counted(summary['maintained'], 'maintenance')}")
    return lines
