"""Results of a run's calls, as reported in a status: the last results, and the number of earlier ones.

A stream of files yields a result every few seconds without end, and a status must fit a message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from pslib.coordinator.job import CollectiveJob

__all__ = ["RESULTS_TOLD", "fresh_results", "of_kind", "results_of"]

RESULTS_TOLD = 500
"""Results kept: 100 bytes each, 600 for a ranking at twenty places; a third of a header's limit."""

Result: TypeAlias = Mapping[str, Any]


def results_of(jobs: Sequence[CollectiveJob], until_s: float) -> dict[str, Any]:
    """Return the entries ``results``, ``results_before`` by kind, and ``fit_seconds`` of this run's fits.

    A fit under way counts until ``until_s``: an abandoned one has no other end.
    """
    under_way = (one for one in jobs if one.what == "fit" and not one.over)
    fit_s = next((max(0.0, until_s - one.opened_s) for one in under_way), 0.0)
    done = [(job.what, job.outcome) for job in jobs if job.outcome is not None and job.what != "window"]
    own = [job.outcome for job in jobs if job.what == "fit" and job.outcome and not job.is_of_before]
    return {
        "results": [outcome for _, outcome in done[-RESULTS_TOLD:]],
        "results_before": dict(Counter(what for what, _ in done[:-RESULTS_TOLD])),
        "fit_seconds": fit_s + sum(float(outcome.get("seconds", 0.0)) for outcome in own),
    }


def of_kind(status: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return a status with the results of one kind only; ``results_before`` is then a number."""
    results = [one for one in status.get("results", ()) if one.get("kind") == kind]
    return {**status, "results": results, "results_before": status.get("results_before", {}).get(kind, 0)}


def fresh_results(results: Sequence[Result], before: int, seen: int) -> tuple[Sequence[Result], int]:
    """Return the results since the first ``seen`` ones, and the number of results now.

    A run that goes back to a checkpoint has fewer than before: those it still has were already seen.
    """
    return results[max(0, seen - before) :], before + len(results)
