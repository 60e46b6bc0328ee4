"""Diagnosis of a running cluster: findings with advice, a pure function of its members' reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pslib.monitor.run_state import FULL_SHARE, IMBALANCED, SILENT_S
from pslib.text import counted

WAIT_S = 3.0
"""Wait that is a finding; a request normally takes milliseconds, a long push some hundred."""

QUEUE_JOBS = 64
"""Normal queue of one shard thread: 64 trainers with a push each."""

DISK_BYTES = 256 << 20
"""Free bytes of a disk with logs; compaction of a log needs as much again as its images."""
IMBALANCE_ROWS = 10_000
"""Rows from which on servers can be uneven: few rows always are."""

GONE = "a process that is no member any more,"
SUCCESSOR = "a server that has ended? that trainer learns the address of its successor in a heartbeat or two"

Stats = Sequence[Mapping[str, Any] | None]


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of a cluster.

    Attributes
    ----------
    what : str
        Waiting process and its peer, or the scarce resource, and since when.
    advice : str
        Action to take.
    """

    what: str
    advice: str


def diagnose(status: Mapping[str, Any], stats: Stats, coordinator: str = "") -> list[Finding]:
    """Return all findings, the likeliest cause first; none for a healthy cluster.

    Parameters
    ----------
    status : mapping
        Status of the coordinator, with details.
    stats : sequence of mapping or None
        Reply of each server, by rank; None: no reply in time.
    coordinator : str
        Address of the coordinator.
    """
    rules: tuple[Callable[[Mapping[str, Any], Stats], Iterator[Finding]], ...] = (
        _failed,
        _absent,
        _silent,
        _mute,
        _steps,
        partial(_waits, coordinator=coordinator),
        _queues,
        _memory,
        _disk,
        _balance,
    )
    return [finding for rule in rules for finding in rule(status, stats)]


def _members(status: Mapping[str, Any], role: str) -> list[Mapping[str, Any]]:
    return [one for one in status.get("members", ()) if one["role"] == role]


def _name(member: Mapping[str, Any]) -> str:
    where = f" at {member['address']}" if member["address"] else ""
    return f"{member['role']} {member['rank']}{where} ({member['where']})"


def _failed(status: Mapping[str, Any], stats: Stats) -> Iterator[Finding]:
    if status.get("error"):
        yield Finding(f"the run has failed: {status['error']}", "start it again; its logs say more")
    for member in status.get("members", ()):
        if member["state"] == "lost" and not status.get("error"):
            yield Finding(f"{_name(member)} is lost", "its work goes on elsewhere; its log says how it ended")


def _absent(status: Mapping[str, Any], stats: Stats) -> Iterator[Finding]:
    for role in ("server", "trainer"):
        wanted, here = int(status[f"{role}s_configured"]), len(_members(status, role))
        if here < wanted:
            yield Finding(
                f"the cluster waits for {wanted - here} of {wanted} {role}s to join, for "
                f"{status['seconds']:.0f} s",
                "look at their logs; do they have this coordinator's address, cluster id and key?",
            )


def _silent(status: Mapping[str, Any], stats: Stats) -> Iterator[Finding]:
    limit_s = status["timing"]["silence_s"]
    for member in status.get("members", ()):
        if member["state"] == "live" and member["silent_s"] > SILENT_S:
            yield Finding(
                f"the coordinator has not heard {_name(member)} for {member['silent_s']:.1f} s; after "
                f"{limit_s:g} s it counts as lost",
                "is it stopped (kill -CONT), swapping, or cut off?",
            )


def _mute(status: Mapping[str, Any], stats: Stats) -> Iterator[Finding]:
    for server, answer in zip(_members(status, "server"), stats, strict=False):
        if server["state"] != "live" or answer is not None:
            continue
        waiting = sum(server.get("jobs_waiting", ()))
        if server["silent_s"] > SILENT_S:
            continue  # reported by `_silent`
        yield Finding(
            f"{_name(server)} beats but answers nothing; {waiting} pieces of work wait in it",
            "it is in a long request (a checkpoint?) or overloaded: more shard_threads or servers",
        )


def _steps(status: Mapping[str, Any], stats: Stats) -> Iterator[Finding]:
    stuck = [one for one in _members(status, "trainer") if _longest(one) > WAIT_S]
    if not stuck:  # a step in progress always waits for some trainer
        return
    for server in _members(status, "server"):
        for step, ranks in server.get("step_waits", ()):
            if ranks:
                names = ", ".join(f"trainer {rank}" for rank in ranks)
                yield Finding(
                    f"sync step {step} on server {server['rank']} waits for {names}; it holds "
                    f"{counted(server.get('held_pushes', 0), 'push', 'pushes')} of the others",
                    "that trainer is slower than all others, or stuck: its log and its machine",
                )


def _longest(trainer: Mapping[str, Any]) -> float:
    return max((float(wait[2]) for wait in trainer.get("waits", ())), default=0.0)


def _waits(status: Mapping[str, Any], stats: Stats, coordinator: str) -> Iterator[Finding]:
    servers = {one["address"]: one for one in _members(status, "server")}
    for trainer in _members(status, "trainer"):
        if trainer["state"] != "live":
            continue
        for peer, what, seconds in trainer.get("waits", ()):
            if seconds <= WAIT_S:
                continue
            server = servers.get(peer)
            # One machine has several addresses, but not two processes at one port.
            is_coordinator = peer.rpartition(":")[2] == coordinator.rpartition(":")[2]
            whom = _name(server) if server else f"{'the coordinator' if is_coordinator else GONE} at {peer}"
            line = f"{_name(trainer)} waits {seconds:.0f} s for {whom}: {what}"
            yield Finding(line, _why(server, what) if server or is_coordinator else SUCCESSOR)


def _why(server: Mapping[str, Any] | None, what: str) -> str:
    if server is None:
        return "is the coordinator overloaded, or cut off from that trainer?"
    if server["state"] != "live" or server["silent_s"] > SILENT_S:
        return "that server is silent, see above"
    if "for credit" in what:
        return "that server takes less than trainers send: more servers, or more credit_bytes for bursts"
    return "it answers others: a cut or slow connection, or a queue, see jobs_waiting"


def _queues(status: Mapping[str, Any], stats: Stats) -> Iterator[Finding]:
    for server in _members(status, "server"):
        deepest = max(server.get("jobs_waiting", ()), default=0)
        if deepest > QUEUE_JOBS:
            yield Finding(
                f"{deepest} pieces of work wait for a shard thread of server {server['rank']}",
                "servers are the bottleneck: more shard_threads (up to the cores), or more servers",
            )


def _memory(status: Mapping[str, Any], stats: Stats) -> Iterator[Finding]:
    for server in _members(status, "server"):
        limit, taken = server.get("memory_limit_bytes", 0), server.get("memory_bytes", 0)
        if limit and taken > FULL_SHARE * limit:
            yield Finding(
                f"server {server['rank']} has {limit - taken:,} of {limit:,} bytes left for rows",
                "raise server_memory_bytes, add servers, or set admission, eviction or when_full of a table",
            )


def _disk(status: Mapping[str, Any], stats: Stats) -> Iterator[Finding]:
    for server in _members(status, "server"):
        free, log = server.get("log_free_bytes"), server.get("log_bytes", 0)
        if free is not None and free < max(DISK_BYTES, log):
            yield Finding(
                f"the disk of server {server['rank']}'s log has {free:,} bytes left; the log takes {log:,}",
                "free some, or lower cluster.log_bytes; when it is full, pushes wait until there is space",
            )


def _balance(status: Mapping[str, Any], stats: Stats) -> Iterator[Finding]:
    servers = [one for one in _members(status, "server") if one["state"] == "live"]
    for what in ("rows", "memory_bytes"):
        numbers = [int(one.get(what, 0)) for one in servers]
        rows = sum(int(one.get("rows", 0)) for one in servers)
        mean = sum(numbers) / max(1, len(numbers))
        if rows > IMBALANCE_ROWS and max(numbers) > IMBALANCED * mean:
            heaviest = servers[numbers.index(max(numbers))]["rank"]
            yield Finding(
                f"server {heaviest} has {max(numbers) / mean:.2f} times the mean of {what}",
                "move partitions to others (pslib scale)",
            )
