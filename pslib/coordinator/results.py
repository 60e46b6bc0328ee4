"""Results of a run's calls, as reported in a status: the last results, and the number of earlier ones.

A stream of files yields a result every few seconds without end, and a status must fit a message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

RESULTS_TOLD = 500
"""Results kept: 100 bytes each, 600 for a ranking at twenty places; a third of a header's limit."""

EVALUATIONS = ("evaluate", "rank")
"""Kinds of calls whose results are figures of the model."""

Result: TypeAlias = Mapping[str, Any]


def of_kind(status: Mapping[str, Any], *kinds: str) -> dict[str, Any]:
    """Return a status with the results of these kinds only; ``results_before`` is then a number."""
    results = [one for one in status.get("results", ()) if one.get("kind") in kinds]
    before = status.get("results_before", {})
    return {**status, "results": results, "results_before": sum(before.get(kind, 0) for kind in kinds)}


def fresh_results(results: Sequence[Result], before: int, seen: int) -> tuple[Sequence[Result], int]:
    """Return the results since the first ``seen`` ones, and the number of results now.

    A run that goes back to a checkpoint has fewer than before: those it still has were already seen.
    """
    return results[max(0, seen - before) :], before + len(results)
