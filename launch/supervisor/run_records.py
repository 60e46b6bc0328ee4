"""Records of a run: progress bar, metrics.jsonl, summary.json, and a picture at the end."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from launch.supervisor.run_spec import Launcher, Outcome, Plan
from launch.supervisor.summary import summary_of
from launch.supervisor.supervisor import run_cluster
from pslib.clock import SystemClock
from pslib.coordinator.results import fresh_results, of_kind
from pslib.errors import EXIT_DONE, EXIT_INTERRUPTED, PreemptedError
from pslib.storage import shown
from pslib.text import behind_text, counted

__all__ = ["Rankings", "run_recorded", "say"]

_ENDS = {EXIT_DONE: "done", PreemptedError.exit_code: "preempted", EXIT_INTERRUPTED: "interrupted"}


def run_recorded(
    launcher: Launcher,
    plan: Plan,
    out: Path | None,
    *,
    progress: bool,
    facts: Mapping[str, Any],
    tensorboard: bool = False,
) -> tuple[Outcome, dict[str, Any]]:
    """Run a cluster and write its records.

    Parameters
    ----------
    launcher : Launcher
    plan : Plan
    out : Path or None
        Folder of the records; None: no records.
    progress : bool
        Whether to show a bar.
    facts : mapping
        Further entries of the summary, beside the figures of the run.
    tensorboard : bool
        Whether to write event files for TensorBoard too.

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

    recorder = RunRecorder(out, SystemClock(), progress=progress, stream=sys.stderr, tensorboard=tensorboard)
    with recorder:
        rankings = Rankings()

        def observe(status: dict[str, Any]) -> None:
            recorder.observe(of_kind(status, "evaluate"))
            for line in rankings.news(status):
                say(line)

        outcome = run_cluster(launcher, plan, observe=observe, say=say)
        for line in rankings.news(outcome.status):
            say(line)
        figures = summary_of(outcome.status, outcome.results, plan.config)
        phase = _ENDS.get(outcome.exit_code, "failed")  # for the coordinator, leaving in order is "done"
        ending = {"exit_code": outcome.exit_code, "phase": phase, "error": outcome.reason}
        try:
            if outcome.status:  # newer than the last observed one if the end came in between
                recorder.observe(of_kind(outcome.status, "evaluate"))
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


def say(line: str) -> None:
    """Print a line for the user, above the progress bar if there is one."""
    from tqdm import tqdm

    tqdm.write(f"pslib: {line}", file=sys.stderr)
