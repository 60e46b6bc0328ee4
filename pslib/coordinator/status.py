"""Cluster status: cumulative counters, and the current activity."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslib.config import ClusterConfig
from pslib.coordinator.jobs import JobRegistry, epochs_done, examples_of, planned_of, results_of
from pslib.coordinator.membership import Member, Membership
from pslib.metrics.metrics import LOGIT_BINS
from pslib.storage import shown
from pslib.text import counted
from pslib.wire.counters import (
    APPLIED_COUNTERS,
    LARGEST_COUNTERS,
    SERVER_COUNTERS,
    TRAINER_COUNTERS,
    is_sound,
    merge_results,
)

_PHASES = {
    "fit": "training",
    "evaluate": "evaluating",
    "predict": "predicting",
    "rank": "ranking",
    "save": "saving",
    "load": "loading",
    "window": "waiting for files",
    "vote": "agreeing whether to stop",
}
_LONG = ("bins_", "staleness_counts", "tables", "field_")
"""Beginnings of the names of lists and mappings that details have not of each member."""
RUNS_MAX = 20_000
"""Longest list of owners in details, in runs of partitions with one owner; it must fit a message."""

WHOLE_MAX = 1 << 50
"""Largest whole number of an entry of a heartbeat: the sum of those of 4,096 processes fits 64 bits."""


def _is_whole(value: object) -> bool:
    return type(value) is int and abs(value) <= WHOLE_MAX


def _are_counts(value: object, length: int | None = None) -> bool:
    """Return whether a value is a list of counts; without a call for each: bins of a heartbeat are 1,024."""
    if not isinstance(value, list | tuple) or length not in (None, len(value)):
        return False
    try:
        return max(array("Q", value), default=0) <= WHOLE_MAX
    except (TypeError, OverflowError):  # one is no whole number, or is negative
        return False


def _is_list(value: object, is_one: Callable[[Any], bool]) -> bool:
    return isinstance(value, list | tuple) and all(map(is_one, value))


def _is_mapping(value: object, is_one: Callable[[Any], bool]) -> bool:
    return isinstance(value, Mapping) and all(map(is_one, value.values()))


def _is_wait(value: object) -> bool:
    """Return whether a value is a peer, what is waited for, and seconds."""
    kinds = tuple(map(type, value)) if isinstance(value, list | tuple) else ()
    return kinds in ((str, str, float), (str, str, int))


_SHAPES: Mapping[str, Callable[[Any], bool]] = {
    "bins_positive": lambda value: _are_counts(value, LOGIT_BINS),
    "bins_negative": lambda value: _are_counts(value, LOGIT_BINS),
    "tables": lambda value: _is_mapping(value, lambda table: _is_mapping(table, _is_whole)),
    "field_names": lambda value: _is_list(value, lambda name: type(name) is str),
    "field_keys": _are_counts,
    "field_distinct": _are_counts,
    "field_batches": _is_whole,
    "waits": lambda value: _is_list(value, _is_wait),
    "jobs_waiting": _are_counts,
    "held_pushes": _is_whole,
    "step_waits": lambda value: _is_list(
        value, lambda one: isinstance(one, list | tuple) and len(one) == 2 and _are_counts(one[1])
    ),
    **dict.fromkeys(("credit_bytes", "credit_granted_bytes", "credit_wished_bytes"), _is_whole),
}
"""Checks of the entries of heartbeats that are no counters, and that a status or its readers compute with."""


def sound_entries(progress: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a heartbeat that a status can be made of; those of another kind are left out."""
    return {
        name: value
        for name, value in progress.items()
        if is_sound(name, value) and (name not in _SHAPES or _SHAPES[name](value))
    }


def figures_of(members: Membership, registry: JobRegistry, over: bool, now_s: float) -> dict[str, Any]:
    """Return counters, results and progress for the reply to `Status`; ``over``: no work is left."""
    jobs, config = registry.jobs, members.config
    counters = _counters(members)
    fits = [job for job in jobs if job.what == "fit"]
    running = fits[-1] if fits else None
    counters["loss_examples"] = counters["examples"]
    counters["examples"], counters["examples_before"] = examples_of(fits)
    epochs, examples_total = planned_of(fits, over)
    if running is not None and "files" in running.details:  # a stream has none
        epochs = 0
    return {
        **counters,
        **results_of(jobs, _trained_until_s(members, now_s)),
        "job": max(len(jobs) - 1, 0),
        "model": None if running is None else running.details.get("model"),
        "epochs": epochs,
        "epoch": epochs_done(fits),
        "examples_total": examples_total,
        "leases_done": running.book.done_count if running else 0,
        "leases": running.book.windows.size if running else 0,
        "servers": len(members.live("server")),
        "trainers": len(members.live("trainer")),
        "servers_lost": [one.where for one in members.servers if one.state == "lost"],
        "trainers_lost": [one.where for one in members.trainers if one.state == "lost"],
        "trainers_left": [one.where for one in members.trainers if one.state == "left"],
        "guests": _guests(members),
        "servers_configured": config.servers,
        "trainers_configured": config.trainers,
        "saved": shown(registry.saved),
        "saves": registry.saves,
    }


def _trained_until_s(members: Membership, now_s: float) -> float:
    """Return the time until which any trainer was active: servers and the coordinator stay longer."""
    if members.live("trainer"):
        return now_s
    return max((one.heard_s for one in members.ever("trainer")), default=now_s)


def phase_of(members: Membership, registry: JobRegistry, now_s: float) -> str:
    """Return the activity of a run that has not ended, for its progress line."""
    open_jobs = [job for job in registry.jobs[registry.first_open :] if not job.over]
    if not open_jobs:
        return _waiting(members, registry, now_s)
    what = next((job.what for job in open_jobs if not job.paused_s), "interrupted")
    return _PHASES.get(what, what)


def _waiting(members: Membership, registry: JobRegistry, now_s: float) -> str:
    """Describe which processes an idle cluster waits for."""
    if registry.jobs and not members.live("trainer"):
        servers = members.live("server")
        return f"waiting for {counted(len(servers), 'server')} to leave"
    if lacking := members.lacking(now_s):
        return f"waiting for {lacking}"
    own = [one for one in members.trainers if not members.is_guest(one.rank)]
    may_call = [one for one in own if one.state == "live"] + members.awaited(now_s, "trainer")
    if own and not may_call and (guests := _guests(members)):
        return f"waiting for {', '.join(guests)} to leave"
    return _between_calls(registry)


def _between_calls(registry: JobRegistry) -> str:
    """Describe an idle cluster by its last call: the end of an epoch is called that."""
    if not registry.jobs:
        return "waiting for the first call of the trainers"
    last, fits = registry.jobs[-1], [job for job in registry.jobs if job.what == "fit"]
    if last.what == "fit" and "files" not in last.details and (done := epochs_done(fits)):
        return f"epoch {done} done"
    return "waiting for the next call of the trainers"


def _guests(members: Membership) -> list[str]:
    """List the live guests beside the run's own trainers: the run ends when they have left."""
    guests = [one for one in members.live("trainer") if members.is_guest(one.rank)]
    return [f"trainer {one.rank} ({one.where})" for one in guests]


def _counters(members: Membership) -> dict[str, Any]:
    """Sum the counters that members report in heartbeats (maximum where that is meaningful)."""
    values: dict[str, Any] = dict.fromkeys(TRAINER_COUNTERS + LARGEST_COUNTERS, 0)
    positive, negative = np.zeros(LOGIT_BINS, np.int64), np.zeros(LOGIT_BINS, np.int64)
    staleness_counts = np.zeros(0, np.int64)
    for member in members.ever("trainer"):
        for key in TRAINER_COUNTERS:
            values[key] += member.progress.get(key, 0)
        positive += np.asarray(member.progress.get("bins_positive", 0), np.int64)
        negative += np.asarray(member.progress.get("bins_negative", 0), np.int64)
        for key in LARGEST_COUNTERS:
            values[key] = max(values[key], member.progress.get(key, 0))
        counts = np.asarray(member.progress.get("staleness_counts", ()), np.int64)
        if counts.size:
            staleness_counts = counts + staleness_counts if staleness_counts.size else counts
    return (
        values
        | _server_counters(members)
        | {
            "bins_positive": positive.tolist(),
            "bins_negative": negative.tolist(),
            "staleness_counts": staleness_counts.tolist(),
        }
    )


def _server_counters(members: Membership) -> dict[str, Any]:
    """Sum over servers; a restarted one continues from its log's counters, or from zero without a log."""
    values: dict[str, Any] = dict.fromkeys(SERVER_COUNTERS, 0)
    for member in members.ever("server"):
        has_place = members.at("server", member.rank) is member
        for key in SERVER_COUNTERS if has_place else APPLIED_COUNTERS if member.followed_bare else ():
            values[key] += member.progress.get(key, 0)
    return values


def details_of(
    members: Membership, registry: JobRegistry, config: ClusterConfig, now_s: float
) -> dict[str, Any]:
    """Return the details for `pslib doctor`: every member, and the holder of each lease."""
    running = None if registry.all_done else registry.jobs[registry.first_open]
    held = running.book.held_by_rank() if running else {}
    book = running.book if running else None
    owned = _partitions_owned(members)
    return {
        "members": [
            *(
                _member(one, now_s)
                | {"units": members.units_of(one), "partitions": int(owned[one.rank : one.rank + 1].sum())}
                for one in members.servers
            ),
            *(_member(one, now_s) for one in members.trainers),
        ],
        "owners": _owners(members),
        "tables": merge_results([one.progress.get("tables", {}) for one in members.servers]),
        "fields": _fields(members),
        "timing": {"silence_s": config.timing.silence_s, "report_s": config.timing.report_s},
        "durability": config.durability,
        "partition_bits": config.partition_bits,
        "dense_blocks": config.dense_blocks,
        "work": {
            "what": running.what if running else None,
            "held": [[rank, count] for rank, count in sorted(held.items())],
            "free": book.windows.size - book.done_count - sum(held.values()) if book else 0,
        },
    }


def _partitions_owned(members: Membership) -> NDArray[np.int64]:
    """Return the number of partitions of each server, by rank."""
    if members.map is None:
        return np.zeros(0, np.int64)
    return np.bincount(members.map.owners[: members.map.partitions])


def _owners(members: Membership) -> list[list[int]]:
    """Return ``[owner, count]`` of partitions in a row with one owner; empty where there are too many."""
    if members.map is None:
        return []
    owners = members.map.owners[: members.map.partitions]
    starts = np.flatnonzero(np.diff(owners, prepend=owners[0] ^ 1))
    if starts.size > RUNS_MAX:
        return []
    counts = np.diff(starts, append=owners.size)
    return np.stack([owners[starts].astype(np.int64), counts], axis=1).tolist()


def _fields(members: Membership) -> dict[str, Any]:
    """Return the keys of fields that trainers have counted: sums over those with the same fields."""
    told = [one.progress for one in members.trainers if one.progress.get("field_names")]
    names = told[0]["field_names"] if told else []
    alike = [one for one in told if one["field_names"] == names]
    sums: dict[str, list[int]] = {}
    for name in ("keys", "distinct"):
        lists = [one[f"field_{name}"] for one in alike if len(one.get(f"field_{name}", ())) == len(names)]
        sums[name] = [sum(column) for column in zip(*lists, strict=True)]
    batches = sum(one.get("field_batches", 0) for one in alike)
    return {"names": names, "batches": batches, **sums} if told else {}


def _member(member: Member, now_s: float) -> dict[str, Any]:
    """Describe one process; its counters without the long lists."""
    counters = {key: value for key, value in member.progress.items() if not key.startswith(_LONG)}
    return counters | {
        "role": member.role,
        "rank": member.rank,
        "state": member.state,
        "address": member.address,
        "where": member.where,
        "silent_s": now_s - member.heard_s if member.state == "live" else 0.0,
        "map_version": member.map_version,
    }
