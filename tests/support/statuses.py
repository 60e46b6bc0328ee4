"""Statuses of a coordinator with details, as large as one likes."""

from __future__ import annotations

from typing import Any

from pslib.wire.counters import BOUNDS_S

__all__ = ["server", "status", "trainer"]

BUCKETS = len(BOUNDS_S) + 1


def status(members: list[dict[str, Any]], seconds: float = 10.0, **more: Any) -> dict[str, Any]:
    """A status with details of these members, after some seconds of training."""
    count = {role: sum(one["role"] == role for one in members) for role in ("server", "trainer")}
    bins = [0] * 512
    return {
        "phase": "training",
        "error": None,
        "model": "deepfm",
        "epoch": 0,
        "epochs": 2,
        "examples": 1000,
        "examples_before": 0,
        "examples_total": 10_000,
        "seconds": seconds,
        "loss_sum": 500.0,
        "loss_examples": 1000,
        "bins_positive": bins,
        "bins_negative": bins,
        "servers_configured": count["server"],
        "trainers_configured": count["trainer"],
        "members": members,
        "partition_bits": 4,
        "durability": "log",
    } | more


def member(role: str, rank: int, **counters: Any) -> dict[str, Any]:
    where = f"pid {100 + rank} on node-{rank}"
    about = {"role": role, "rank": rank, "state": "live", "where": where, "address": f"tcp://{role}-{rank}:1"}
    return about | {"silent_s": 0.5} | counters


def server(rank: int, **counters: Any) -> dict[str, Any]:
    """A server's entry."""
    return member("server", rank, **{"rows": 100, "memory_bytes": 1000, "jobs_waiting": [0, 2], **counters})


def trainer(rank: int, **counters: Any) -> dict[str, Any]:
    """A trainer's entry."""
    return member("trainer", rank, **{"examples": 0, "waits": [], **counters})
