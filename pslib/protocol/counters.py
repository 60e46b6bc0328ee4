"""Counters that travel with heartbeats, summed over shards and servers."""

from __future__ import annotations

__all__ = ["APPLIED_COUNTERS", "SERVER_COUNTERS", "STORE_COUNTERS", "TABLE_COUNTERS"]

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
)
"""Of `Store.stats`: what heartbeats, status and records show of every table."""

TABLE_COUNTERS = ("memory_limit_bytes", "maintained", *STORE_COUNTERS)
"""All that records show of tables beside rows, parameters and memory_bytes."""

APPLIED_COUNTERS = ("pushes_applied", "updates_applied")
"""Those that count what was done, whatever has become of it."""

SERVER_COUNTERS = (
    "rows",
    "parameters",
    "memory_bytes",
    *APPLIED_COUNTERS,
    *TABLE_COUNTERS,
)
"""What the coordinator sums over servers."""
