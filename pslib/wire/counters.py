"""Counters of heartbeats, summed over shards and servers."""

from __future__ import annotations

from math import isfinite
from typing import Any

BOUNDS_S = tuple(2.0**power for power in range(-13, 6))
"""Upper bounds of durations, 0.12 ms to 32 s, each twice the one before; a last bucket has the rest."""

STORE_COUNTERS = (
    "narrow_rows",
    "index_bytes",
    "row_bytes",
    "free_bytes",
    "spare_bytes",
    "filter_bytes",
    "directory_bytes",
    "counted_keys",
    "turned_away",
    "admitted",
    "promoted",
    "evicted_age",
    "evicted_norm",
    "evicted_score",
    "evicted_share",
    "steps_refused",
)
"""Counters of `Store.stats` that heartbeats, status and records show of every table."""

TABLE_COUNTERS = ("memory_limit_bytes", "maintained", *STORE_COUNTERS)
"""Counters that records show of tables beside rows, parameters and memory_bytes."""

APPLIED_COUNTERS = ("pushes_applied", "updates_applied")
"""Counters of completed work, whatever happened to the rows afterwards."""

SERVER_COUNTERS = (
    "rows",
    "parameters",
    "memory_bytes",
    *APPLIED_COUNTERS,
    *TABLE_COUNTERS,
)
"""Counters that the coordinator sums over servers."""

TRAINER_COUNTERS = (
    "examples",
    "loss_sum",
    "staleness_sum",
    "staleness_count",
    "between_sum",
    "between_count",
    "pushes_sent",
    "updates_sent",
    "bytes_sent",
    "bytes_received",
    "cache_lookups",
    "cache_hits",
    "cache_bytes_saved",
)
"""Counters that the coordinator sums over trainers."""

LARGEST_COUNTERS = ("staleness_max", "between_max", "lead_max")
"""Counters of which the coordinator reports the maximum."""

_NUMBERS = frozenset((*SERVER_COUNTERS, *TRAINER_COUNTERS, *LARGEST_COUNTERS))


def is_sound(name: str, value: Any) -> bool:
    """Return whether a heartbeat's value is a number where the coordinator needs one; a loss may be nan.

    Parameters
    ----------
    name : str
        Name of a counter, or of another entry of a heartbeat.
    value : object
    """
    if name not in _NUMBERS:
        return True
    return type(value) in (int, float) and (name == "loss_sum" or isfinite(value))


def merge_results(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Sum numbers, join lists and merge mappings of the shards' results."""
    merged: dict[str, Any] = {}
    for result in results:
        for key, value in result.items():
            if isinstance(value, dict):
                merged[key] = merge_results([merged.get(key, {}), value])
            else:
                merged[key] = merged[key] + value if key in merged else value
    return merged
