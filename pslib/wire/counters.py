"""Counters of heartbeats: each is defined once, with its kind, unit and help.

Heartbeats carry them by name. The sums and checks of the coordinator (`is_sound`) and the metrics of
`pslib.monitor.prometheus` are read from these definitions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal

Kind = Literal["counter", "gauge", "histogram"]
Total = Literal["sum", "max", ""]

BOUNDS_S = tuple(2.0**power for power in range(-13, 6))
"""Upper bounds of durations, 0.12 ms to 32 s, each twice the one before; longer ones are in a last bucket."""

STALENESS_BINS = 33
"""Histogram bins of staleness: 0, 1, ... 31, and more."""


@dataclass(frozen=True, slots=True)
class Counter:
    """Definition of a counter.

    Attributes
    ----------
    name : str
        Name in heartbeats.
    kind : {"counter", "gauge", "histogram"}
        A counter only grows while its process lives, a gauge is a value of now. A histogram is a list of
        counts, one for each of ``bounds`` and one for what is larger.
    unit : str
        "seconds", "bytes", or the thing that is counted.
    help : str
        One sentence.
    total : {"sum", "max", ""}
        How the coordinator joins the members' values in its status; empty: it keeps them by member.
    bounds : tuple of float
        Upper bounds of a histogram's buckets.
    sum_name : str
        Name of the counter with a histogram's sum.
    metric : str or None
        Name of the metric, without ``pslib_``, unit and ``_total``; empty: ``name`` without its unit; None:
        none, since another one tells the same.
    """

    name: str
    kind: Kind
    unit: str
    help: str
    total: Total = ""
    bounds: tuple[float, ...] = ()
    sum_name: str = ""
    metric: str | None = ""

    def is_sound(self, value: Any) -> bool:
        """Return whether a value has the type and range of this counter; a loss may be nan."""
        if self.kind == "histogram":
            return (
                isinstance(value, list | tuple)
                and len(value) == len(self.bounds) + 1
                and all(type(count) is int and count >= 0 for count in value)
            )
        return type(value) in (int, float) and (self.name == "loss_sum" or isfinite(value))


STORE = (
    Counter("narrow_rows", "gauge", "rows", "Rows without their wide part.", "sum"),
    Counter("index_bytes", "gauge", "bytes", "Memory of the index of keys.", "sum"),
    Counter("row_bytes", "gauge", "bytes", "Memory of rows in use.", "sum"),
    Counter("free_bytes", "gauge", "bytes", "Memory of erased and evicted rows, for new ones.", "sum"),
    Counter("spare_bytes", "gauge", "bytes", "Memory of rows that were never in use.", "sum"),
    Counter("filter_bytes", "gauge", "bytes", "Memory of the counts of keys without a row.", "sum"),
    Counter("directory_bytes", "gauge", "bytes", "Memory of the tables' directories.", "sum"),
    Counter("counted_keys", "gauge", "keys", "Keys without a row that are counted for admission.", "sum"),
    Counter("turned_away", "counter", "keys", "Keys of pushes that earned no row.", "sum"),
    Counter("admitted", "counter", "rows", "Rows that admission has made.", "sum"),
    Counter("promoted", "counter", "rows", "Rows that have got their wide part.", "sum"),
    Counter("evicted_age", "counter", "rows", "Rows evicted for their age.", "sum"),
    Counter("evicted_norm", "counter", "rows", "Rows evicted for their norm.", "sum"),
    Counter("evicted_score", "counter", "rows", "Rows evicted for their score.", "sum"),
    Counter("evicted_share", "counter", "rows", "Rows evicted as the oldest share at the limit.", "sum"),
    Counter("steps_refused", "counter", "steps", "Optimizer steps that gave no finite weight.", "sum"),
)
"""Counters of `Store.stats` that heartbeats, status and records show of every table."""

_LIMITS = (
    Counter("memory_limit_bytes", "gauge", "bytes", "Memory that tables may take; 0: no limit.", "sum"),
    Counter("maintained", "counter", "units", "Decays and evictions of a partition.", "sum"),
)

_APPLIED = (
    Counter("pushes_applied", "counter", "pushes", "Pushes that are applied, each at one server.", "sum"),
    Counter("updates_applied", "counter", "units", "Units of pushes that are applied.", "sum"),
)

SERVER = (
    Counter("rows", "gauge", "rows", "Rows in the tables.", "sum"),
    Counter("parameters", "gauge", "parameters", "Weights in the tables, and dense ones.", "sum"),
    Counter("memory_bytes", "gauge", "bytes", "Memory that the tables have taken.", "sum"),
    *_APPLIED,
    *_LIMITS,
    *STORE,
    Counter("rows_pushed", "counter", "rows", "Rows of pushes."),
    Counter("rows_pulled", "counter", "rows", "Rows of pulls."),
    Counter("busy_s", "counter", "seconds", "Work on requests, of all threads."),
    Counter("requests", "counter", "requests", "Requests that have come, with second copies."),
    Counter("pulls", "counter", "requests", "Pulls that have come.", metric="pull_requests"),
    Counter("pushes", "counter", "requests", "Pushes that have come.", metric="push_requests"),
    Counter(
        "request_counts",
        "histogram",
        "seconds",
        "From the arrival of a request to its answer, without the wait for a disk.",
        bounds=BOUNDS_S,
        sum_name="request_s",
        metric="request_duration",
    ),
    Counter("request_s", "counter", "seconds", "Sum of the times in request_counts."),
    Counter("log_bytes", "gauge", "bytes", "Update logs on the disk."),
    Counter("log_replay_bytes", "gauge", "bytes", "Part of the logs that a restart would replay."),
    Counter("log_free_bytes", "gauge", "bytes", "Free space on the disk of the logs."),
    Counter("hot_share", "gauge", "ratio", "Share of pulled keys that fall on the hottest 1 %, by a sample."),
    Counter("rss_bytes", "gauge", "bytes", "Memory of the process.", metric="resident_memory"),
)
"""Counters of a server's heartbeats."""

TRAINER = (
    Counter("examples", "counter", "examples", "Examples trained.", "sum"),
    Counter("loss_sum", "counter", "", "Sum of the examples' log loss.", "sum", metric="loss"),
    Counter("staleness_sum", "counter", "batches", "Sum of staleness.", "sum"),
    Counter("staleness_count", "counter", "batches", "Batches in the sum of staleness.", "sum", metric=None),
    Counter(
        "between_sum",
        "counter",
        "pushes",
        "Pushes between a pull and its push.",
        "sum",
        metric="pushes_between",
    ),
    Counter(
        "between_count",
        "counter",
        "answers",
        "Answers to pushes that told it.",
        "sum",
        metric="pushes_between_answers",
    ),
    Counter("pushes_sent", "counter", "pushes", "Pushes begun.", "sum"),
    Counter("updates_sent", "counter", "units", "Units of the pushes begun.", "sum"),
    Counter("bytes_sent", "counter", "bytes", "Bytes sent to all peers.", "sum", metric="sent"),
    Counter("bytes_received", "counter", "bytes", "Bytes received from all peers.", "sum", metric="received"),
    Counter("cache_lookups", "counter", "keys", "Keys looked up in the row cache.", "sum"),
    Counter("cache_hits", "counter", "keys", "Keys that were in the row cache.", "sum"),
    Counter(
        "cache_bytes_saved",
        "counter",
        "bytes",
        "Bytes that the row cache has saved.",
        "sum",
        metric="cache_saved",
    ),
    Counter("staleness_max", "gauge", "batches", "Largest staleness.", "max"),
    Counter(
        "between_max",
        "gauge",
        "pushes",
        "Most pushes between a pull and its push.",
        "max",
        metric="pushes_between_max",
    ),
    Counter("lead_max", "gauge", "batches", "Largest lead over the slowest trainer (ssp).", "max"),
    Counter(
        "staleness_counts",
        "histogram",
        "batches",
        "Batches of the same trainer that a pull has missed.",
        bounds=tuple(map(float, range(STALENESS_BINS - 1))),
        sum_name="staleness_sum",
        metric="staleness",
    ),
    Counter("pushes_resent", "counter", "messages", "Messages of pushes that were sent again.", "sum"),
    Counter("batches", "counter", "batches", "Batches trained."),
    Counter("keys", "counter", "keys", "Keys of the examples."),
    Counter("distinct_keys", "counter", "keys", "Distinct keys of the batches."),
    Counter("read_s", "counter", "seconds", "Reader at work: decoding, keys, distinct keys."),
    Counter("wait_batch_s", "counter", "seconds", "Computing thread waits for the reader."),
    Counter("wait_rows_s", "counter", "seconds", "Computing thread waits for rows."),
    Counter("compute_s", "counter", "seconds", "Computing thread computes."),
    Counter(
        "push_wait_s",
        "counter",
        "seconds",
        "Computing thread waits for pushes: the staleness bound, flow control, or gradients to be sent.",
    ),
    Counter(
        "ack_counts",
        "histogram",
        "seconds",
        "From the begin of a push to its last acknowledgement.",
        bounds=BOUNDS_S,
        sum_name="ack_s",
        metric="push_acknowledgement",
    ),
    Counter("ack_s", "counter", "seconds", "Sum of the times in ack_counts."),
    Counter("bytes_in_flight", "gauge", "bytes", "Requests and answers on their way.", metric="in_flight"),
    Counter("rss_bytes", "gauge", "bytes", "Memory of the process.", metric="resident_memory"),
)
"""Counters of a trainer's heartbeats."""

COORDINATOR = (
    Counter("servers", "gauge", "servers", "Servers that are live.", metric="live_servers"),
    Counter("trainers", "gauge", "trainers", "Trainers that are live.", metric="live_trainers"),
    Counter("lost_servers", "gauge", "servers", "Servers that count as lost and have not come back."),
    Counter("lost_trainers", "gauge", "trainers", "Trainers that count as lost and have not come back."),
    Counter("servers_configured", "gauge", "servers", "Servers of the cluster's settings."),
    Counter("trainers_configured", "gauge", "trainers", "Trainers of the cluster's settings."),
    Counter("training", "gauge", "", "1 while the run trains, else 0."),
    Counter("epoch", "gauge", "epochs", "Epochs that are done.", metric="done_epochs"),
    Counter("epochs", "gauge", "epochs", "Epochs of the run; 0: a stream.", metric="planned_epochs"),
    Counter("examples_done", "gauge", "examples", "Examples of finished batches, earlier runs included."),
    Counter(
        "examples_total", "gauge", "examples", "Examples of the whole training.", metric="planned_examples"
    ),
    Counter("checkpoints", "counter", "checkpoints", "Checkpoints saved."),
    Counter(
        "checkpoint_s",
        "gauge",
        "seconds",
        "Time of the last checkpoint, or of the coordinator's start if that was later, since 1970.",
        metric="checkpoint_timestamp",
    ),
    Counter("rss_bytes", "gauge", "bytes", "Memory of the process.", metric="resident_memory"),
)
"""Figures of a coordinator, which no heartbeat carries."""


def _names(counters: Iterable[Counter], total: str | None = None) -> tuple[str, ...]:
    return tuple(one.name for one in counters if total is None or one.total == total)


STORE_COUNTERS = _names(STORE)
"""Names of `STORE`."""

TABLE_COUNTERS = _names((*_LIMITS, *STORE))
"""Counters that records show of tables beside rows, parameters and memory_bytes."""

APPLIED_COUNTERS = _names(_APPLIED)
"""Counters of completed work, whatever happened to the rows afterwards."""

SERVER_COUNTERS = _names(SERVER, "sum")
"""Counters that the coordinator sums over servers."""

TRAINER_COUNTERS = _names(TRAINER, "sum")
"""Counters that the coordinator sums over trainers."""

LARGEST_COUNTERS = _names(TRAINER, "max")
"""Counters of which the coordinator reports the maximum."""

_BY_NAME = {one.name: one for one in (*SERVER, *TRAINER)}


def is_sound(name: str, value: Any) -> bool:
    """Return whether a heartbeat's value is of the kind that its counter has; others are sound.

    Parameters
    ----------
    name : str
        Name of a counter, or of another entry of a heartbeat.
    value : object
    """
    counter = _BY_NAME.get(name)
    return counter is None or counter.is_sound(value)


class Durations:
    """Histogram of durations with the bounds `BOUNDS_S`, and their sum."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float, times: int = 1) -> None:
        """Count a duration, ``times`` often."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += times
        self.sum_s += seconds * times


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
