"""State of a run for people: a pure function of two statuses of its coordinator, with details.

Rates are those between the two statuses, some ten seconds apart; counters that a process does not report are
null, not zero. The keys of the result are those of ``docs/reference/metrics.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from math import isfinite, nan
from statistics import median
from typing import Any

import numpy as np

from pslib.recorder.status import bins_of
from pslib.wire.counters import BOUNDS_S

FORMAT = 1
"""Version of the keys; a reader refuses others."""

STRAGGLER_SHARE, STRAGGLER_TRAINERS = 0.7, 3
"""A live trainer is a straggler if its examples/s of the last ten seconds are below this share of the median,
of at least so many live trainers. Trainers on like machines stay within some percent of each other."""

SILENT_S = 3.0
"""Silence that is marked: heartbeats come each second, in a large cluster every two."""

FULL_SHARE = 0.9
"""Share of a limit of memory that is marked."""

IMBALANCED = 1.5
"""Largest over mean of servers that is marked; hashing keeps 100,000 rows within 1.05."""

FACTS = ("name", "folder", "cluster_id", "pslib")
"""Entries of a state that the coordinator's status does not have."""

Status = Mapping[str, Any]

_STAGES = {
    "read": "read_s",
    "wait_batch": "wait_batch_s",
    "wait_rows": "wait_rows_s",
    "compute": "compute_s",
    "push": "push_wait_s",
}
"""Stages of a trainer's pipeline, and the counters with their seconds."""

_OF_TRAINER = ("examples", "ack_counts", *_STAGES.values(), "keys", "distinct_keys")
_OF_SERVER = ("busy_s", "requests", "request_counts")
_OF_MEMBER = ("role", "rank", "where", "silent_s", *_OF_TRAINER, *_OF_SERVER)
_OF_RUN = (
    *(
        "seconds",
        "examples",
        "examples_before",
        "loss_sum",
        "loss_examples",
        "bins_positive",
        "bins_negative",
    ),
    *("staleness_sum", "staleness_count", "bytes_sent", "bytes_received", "cache_lookups", "cache_hits"),
)


def basis_of(status: Status) -> dict[str, Any]:
    """Return the small part of a status that `run_state` needs of the one before."""
    members = [
        {name: member[name] for name in _OF_MEMBER if name in member} for member in status.get("members", ())
    ]
    return {name: status[name] for name in _OF_RUN if name in status} | {"members": members}


def run_state(
    status: Status,
    before: Status | None = None,
    now_s: float = 0.0,
    *,
    facts: Mapping[str, Any] | None = None,
    address: str = "",
) -> dict[str, Any]:
    """Return the state of a run.

    Parameters
    ----------
    status : mapping
        Status of the coordinator with details, and its events (``event_log``).
    before : mapping, optional
        An earlier one, or what `basis_of` keeps of it; without it there are no rates.
    now_s : float
        Unix time.
    facts : mapping, optional
        `FACTS` of the run.
    address : str
        That of the coordinator.

    Returns
    -------
    dict
        Plain values, for JSON.
    """
    change = _Change(status, before or {})
    members = [_Member(one, change) for one in status.get("members", ())]
    servers, trainers = ([one for one in members if one.role == role] for role in ("server", "trainer"))
    slow = _stragglers(trainers)
    found = [_server(one) for one in servers]
    return {
        "format": FORMAT,
        "now_s": now_s,
        "run": _run(status, change, now_s, facts or {}),
        "processes": [
            _unseen("coordinator", 0, "live")
            | {"address": address or None, "silent_s": 0.0, **status.get("coordinator", {})},
            *(_process(one, one.busy_shares()) for one in servers),
            *_absent(status, "server", servers),
            *(_process(one, one.stage_shares(), one in slow) for one in trainers),
            *_absent(status, "trainer", trainers),
        ],
        "servers": found,
        "imbalance": _imbalance([line for one, line in zip(servers, found, strict=True) if one.is_live]),
        "partitions": _partitions(status),
        "traffic": _traffic(status, change, trainers),
        "tables": [_table(name, counts) for name, counts in sorted(status.get("tables", {}).items())],
        "keys": _keys(status, change, servers, trainers),
        "ledger": {
            "sent": status.get("pushes_sent", 0),
            "applied": status.get("pushes_applied", 0),
            "resent": status.get("pushes_resent"),
            "missing": status.get("pushes_missing", 0),
        },
        "checkpoints": list(status.get("checkpoints", ())),
        "log": {
            "durability": status.get("durability"),
            "bytes": _sum(one.get("log_bytes") for one in servers),
            "replay_bytes": _sum(one.get("log_replay_bytes") for one in servers),
        },
        "events": list(status.get("event_log", ())),
    }


class _Change:
    """Differences of two statuses.

    Parameters
    ----------
    status, before : mapping
        ``before`` is empty where there is none.
    """

    def __init__(self, status: Status, before: Status) -> None:
        self.now, self.before = status, before
        self.seconds = float(status.get("seconds", 0.0)) - float(before.get("seconds", 0.0))
        if not before or self.seconds <= 0:  # a resumed run begins at 0
            self.before, self.seconds = {}, 0.0
        self.members = {(one["role"], one["rank"]): one for one in self.before.get("members", ())}

    def of(self, name: str) -> float | None:
        """Return how much a counter of the run has grown; None if unknown."""
        return _grown(self.now, self.before, name)

    def rate(self, name: str) -> float | None:
        """Return the growth of a counter of the run by second."""
        grown = self.of(name)
        return None if grown is None or not self.seconds else grown / self.seconds

    def mean(self, total: str, count: str) -> float | None:
        """Return the mean of what was counted in between; without a change, of all."""
        counted, summed = self.of(count), self.of(total)
        if counted and summed is not None:
            return summed / counted
        whole = self.now.get(count, 0)
        return self.now.get(total, 0) / whole if whole else None


class _Member:
    """A server or trainer, and what it was before.

    Parameters
    ----------
    now : mapping
        Its entry in the details of a status.
    change : _Change
    """

    def __init__(self, now: Mapping[str, Any], change: _Change) -> None:
        self.now, self.get = now, now.get
        self.role, self.rank = str(now["role"]), int(now["rank"])
        self.is_live = now["state"] == "live"
        before = change.members.get((self.role, self.rank), {})
        self.before = before if before.get("where") == now["where"] else {}  # else of its predecessor
        # Between two heartbeats, not two statuses: in a large cluster they come every two seconds.
        passed_s = change.seconds + self.before.get("silent_s", 0.0) - float(now.get("silent_s", 0.0))
        self.passed_s = passed_s if self.before and self.is_live else 0.0

    def grown(self, name: str) -> float | None:
        """Return how much a counter has grown; None if unknown."""
        return _grown(self.now, self.before, name)

    def rate(self, name: str) -> float | None:
        """Return the growth of a counter by second."""
        grown = self.grown(name)
        return None if grown is None or self.passed_s <= 0 else grown / self.passed_s

    def counts(self, name: str) -> list[int]:
        """Return what a histogram has grown by, or all of it without a status before; empty if unknown."""
        now, before = self.now.get(name, ()), self.before.get(name, ())
        if len(before) != len(now):
            return list(now)
        grown = [new - old for new, old in zip(now, before, strict=True)]
        return grown if min(grown, default=0) >= 0 else list(now)

    def stage_shares(self) -> dict[str, float] | None:
        """Return the shares of time that a trainer's stages took."""
        return _shares({stage: self.rate(name) for stage, name in _STAGES.items()})

    def busy_shares(self) -> dict[str, float] | None:
        """Return the share of time in which a server's shard threads worked, and the rest."""
        rate, threads = self.rate("busy_s"), max(1, len(self.now.get("jobs_waiting", ())))
        busy = None if rate is None else min(1.0, rate / threads)
        return None if busy is None else {"busy": busy, "idle": 1.0 - busy}


def _grown(now: Mapping[str, Any], before: Mapping[str, Any], name: str) -> float | None:
    """Return how much a counter has grown; None where it is unknown or has fallen."""
    if name not in now or name not in before:
        return None
    grown = float(now[name]) - float(before[name])
    return grown if grown >= 0 else None


def _shares(rates: Mapping[str, float | None]) -> dict[str, float] | None:
    known = {name: min(1.0, rate) for name, rate in rates.items() if rate is not None}
    return known or None


def _sum(values: Iterable[float | None]) -> float | None:
    """Sum the values that are known; None if none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _stragglers(trainers: Sequence[_Member]) -> list[_Member]:
    """Return the trainers that hold the others up, or their own share of the data; see `STRAGGLER_SHARE`."""
    rates = [(one, rate) for one in trainers if (rate := one.rate("examples")) is not None]
    if len(rates) < STRAGGLER_TRAINERS:
        return []
    least = STRAGGLER_SHARE * median(rate for _, rate in rates)
    return [one for one, rate in rates if rate < least]


def quantile(counts: Sequence[int], share: float) -> float | None:
    """Return the upper bound of the bucket below which this share of a histogram over `BOUNDS_S` lies.

    The last bucket has no upper bound: of it the lower one is returned. None for an empty histogram.
    """
    if not (total := sum(counts)):
        return None
    below = accumulate(counts)
    place = next(place for place, count in enumerate(below) if count >= share * total)
    return BOUNDS_S[min(place, len(BOUNDS_S) - 1)]


def _joined(members: Iterable[_Member], name: str) -> list[int]:
    """Sum a histogram of several members."""
    found = [counts for one in members if (counts := one.counts(name))]
    return [sum(column) for column in zip(*found, strict=False)]


# --- the parts -------------------------------------------------------------------------------------------


def _run(status: Status, change: _Change, now_s: float, facts: Mapping[str, Any]) -> dict[str, Any]:
    phase, error = status.get("phase"), status.get("error")
    examples, total = int(status.get("examples", 0)), int(status.get("examples_total", 0))
    trained, carried = change.of("examples"), change.of("examples_before")
    own = None if trained is None else max(0.0, trained - (carried or 0.0))
    rate = None if own is None or not change.seconds else own / change.seconds
    left = total - examples
    loss, auc, calibration = _quality(change)
    return {
        **{name: facts.get(name) for name in FACTS},
        "model": status.get("model"),
        "state": "failed" if error or phase == "failed" else "ended" if phase == "done" else "running",
        "phase": phase,
        "error": error,
        "epoch": int(status.get("epoch", 0)),
        "epochs": int(status.get("epochs", 0)),
        "examples": examples,
        "examples_total": total,
        "seconds": float(status.get("seconds", 0.0)),
        "eta_s": left / rate if rate and left > 0 else None,
        "examples_per_s": rate,
        "loss": loss,
        "auc": auc,
        "calibration": calibration,
        "checkpoint": _checkpoint(status, now_s),
    }


def _quality(change: _Change) -> tuple[float | None, float | None, float | None]:
    """Return loss, AUC and calibration of the examples in between, each predicted before it was learnt."""
    names = ("bins_positive", "bins_negative")
    if not change.before or any(not len(change.now.get(name, ())) for name in names):
        return None, None, None
    now, before = (
        [np.asarray(one.get(name) or 0, np.int64) for name in names] for one in (change.now, change.before)
    )
    bins = bins_of(now[0] - before[0], now[1] - before[1])
    summed, count = (float(one) for one in (change.now.get("loss_sum", 0), change.of("loss_examples") or 0))
    summed -= float(change.before.get("loss_sum", 0))
    loss = summed / count if count else nan
    found = [value if isfinite(value) else None for value in (loss, bins.auc(), bins.calibration())]
    return found[0], found[1], found[2]


def _checkpoint(status: Status, now_s: float) -> dict[str, Any] | None:
    last = next(iter(reversed(status.get("checkpoints", ()))), None)
    if last is not None:
        age_s = max(0.0, now_s - last["at_s"])
        return {"path": last["path"], "age_s": age_s, "bytes": last["bytes"], "took_s": last["took_s"]}
    saved = status.get("saved")
    return {"path": saved, "age_s": None, "bytes": None, "took_s": None} if saved else None


def _process(member: _Member, time: Mapping[str, float] | None, straggler: bool = False) -> dict[str, Any]:
    waits = [f"{what} to {peer} for {seconds:.0f} s" for peer, what, seconds in member.get("waits", ())]
    return {
        "role": member.role,
        "rank": member.rank,
        "state": member.now["state"],
        "where": member.get("where"),
        "address": member.get("address") or None,
        "silent_s": float(member.get("silent_s", 0.0)) if member.is_live else None,
        "rss_bytes": member.get("rss_bytes"),
        "examples_per_s": member.rate("examples") if member.role == "trainer" else None,
        "time": time,
        "straggler": straggler,
        "waits": waits if member.is_live else [],
    }


def _unseen(role: str, rank: int, state: str) -> dict[str, Any]:
    """Return the line of a process without counters."""
    names = ("where", "address", "silent_s", "rss_bytes", "examples_per_s", "time")
    return {
        **{"role": role, "rank": rank, "state": state},
        **dict.fromkeys(names),
        **{"straggler": False, "waits": []},
    }


def _absent(status: Status, role: str, members: Sequence[_Member]) -> list[dict[str, Any]]:
    """Return a line for each process that has never joined, as long as details tell who has."""
    known = {one.rank for one in members}
    wanted = range(int(status.get(f"{role}s_configured", 0))) if "members" in status else range(0)
    return [_unseen(role, rank, "absent") for rank in wanted if rank not in known]


def _server(member: _Member) -> dict[str, Any]:
    counts = member.counts("request_counts")
    return {
        "rank": member.rank,
        "partitions": int(member.get("partitions", 0)),
        "rows": int(member.get("rows", 0)),
        "memory_bytes": int(member.get("memory_bytes", 0)),
        "memory_limit_bytes": member.get("memory_limit_bytes") or None,
        "requests_per_s": member.rate("requests"),
        "queue": sum(member.get("jobs_waiting", ())),
        "request_p50_s": quantile(counts, 0.5),
        "request_p99_s": quantile(counts, 0.99),
        "log_bytes": member.get("log_bytes"),
        "log_replay_bytes": member.get("log_replay_bytes"),
        "hot_share": member.get("hot_share"),
    }


def _imbalance(servers: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the largest over the mean of the live servers' figures; null where there is nothing yet."""
    names = {"rows": "rows", "bytes": "memory_bytes", "requests": "requests_per_s"}
    return {what: _largest_over_mean([one[name] for one in servers]) for what, name in names.items()}


def _largest_over_mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known) * len(known) / sum(known) if sum(known) else None


def _partitions(status: Status) -> dict[str, Any]:
    """Return the owners of the partitions, as runs of those with one owner: there may be a million."""
    return {
        "bits": status.get("partition_bits"),
        "owners": [list(one) for one in status.get("owners", ())],
        "moving": [list(one) for one in status.get("moving", ())],
    }


def _traffic(status: Status, change: _Change, trainers: Sequence[_Member]) -> dict[str, Any]:
    counts = list(status.get("staleness_counts", ()))
    while counts and not counts[-1]:
        counts.pop()
    acks = _joined(trainers, "ack_counts")
    return {
        "staleness_counts": counts,
        "staleness_mean": change.mean("staleness_sum", "staleness_count"),
        "staleness_max": status.get("staleness_max"),
        "bytes_in_flight": _sum(one.get("bytes_in_flight") for one in trainers if one.is_live),
        "ack_p50_s": quantile(acks, 0.5),
        "ack_p99_s": quantile(acks, 0.99),
        "sent_per_s": change.rate("bytes_sent"),
        "received_per_s": change.rate("bytes_received"),
    }


def _table(name: str, counts: Mapping[str, int]) -> dict[str, Any]:
    rows, size = counts.get("rows", 0), counts.get("memory_bytes", 0)
    return {
        "name": name,
        "rows": rows,
        "memory_bytes": size,
        "bytes_per_row": size / rows if rows else None,
        "memory_limit_bytes": counts.get("memory_limit_bytes") or None,
        "admitted": counts.get("admitted"),
        "turned_away": counts.get("turned_away"),
        "evicted": counts.get("evicted"),
    }


def _keys(
    status: Status, change: _Change, servers: Sequence[_Member], trainers: Sequence[_Member]
) -> dict[str, Any]:
    hot = [share for one in servers if (share := one.get("hot_share")) is not None]
    return {
        "cache_hit_share": change.mean("cache_hits", "cache_lookups"),
        "hot_share": sum(hot) / len(hot) if hot else None,
        "distinct_share": _ratio(trainers, "distinct_keys", "keys"),
        "fields": _fields(status.get("fields", {})),
    }


def _ratio(members: Sequence[_Member], part: str, whole: str) -> float | None:
    """Return the ratio of two counters' growth, else of the counters themselves."""
    looks: tuple[Callable[[_Member, str], Any], ...] = (_Member.grown, lambda one, name: one.get(name))
    for look in looks:
        parts, wholes = (_sum(look(one, name) for one in members) for name in (part, whole))
        if wholes is not None and wholes >= 1 and parts is not None:  # counts
            return parts / wholes
    return None


def _fields(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return keys a batch of each field, from what trainers have counted of some batches."""
    batches = fields.get("batches", 0)
    if batches < 1:
        return []
    told = zip(fields["names"], fields["keys"], fields["distinct"], strict=False)
    return [
        {"name": name, "keys_per_batch": keys / batches, "distinct_per_batch": distinct / batches}
        for name, keys, distinct in told
    ]
