"""``pslib doctor``: look at a running cluster and say who waits for whom, and what to do about it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from launch.cli.diagnosis import Finding, diagnose
from launch.supervisor.discovery import ended_run, find_cluster
from pslib.errors import EXIT_DONE, AccessError, PslibError
from pslib.storage import shown
from pslib.text import counted, epoch_text

__all__ = ["add_doctor", "doctor_lines", "run_doctor"]

EXIT_UNHEALTHY = 1
PATIENCE_S = 3.0
"""For each of two questions: the coordinator, then all servers at once. It never takes more than 10 s."""


def add_doctor(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``pslib doctor``."""
    parser.add_argument(
        "where", nargs="?", metavar="WHERE", help="a run's folder, or the coordinator's tcp://host:port"
    )
    parser.add_argument("--cluster-id", metavar="ID", help="of the cluster at an address")
    parser.add_argument("--keys", metavar="FILE", help="a key of the cluster; a reader's will do")
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of text")


def run_doctor(options: argparse.Namespace) -> int:
    """Look, tell, and return 0 when nothing is wrong, 1 when something is, or a run has ended with an error.

    Raises
    ------
    ConfigurationError
        When it is not clear which cluster is meant, or its key does not fit.
    """
    ended = ended_run(options.where) if options.where and "://" not in options.where else None
    if ended is not None:
        print(json.dumps({"ended": asdict(ended)}, default=str) if options.json else ended.line())
        return EXIT_DONE if ended.exit_code == EXIT_DONE else EXIT_UNHEALTHY
    address, cluster_id = find_cluster(options.where, options.cluster_id)
    status, stats, findings = _look(address, cluster_id, options.keys)
    if options.json:
        found = [{"what": one.what, "advice": one.advice} for one in findings]
        plain = {"coordinator": address, "healthy": not findings, "findings": found}
        print(json.dumps(plain | {"status": status, "servers": stats}, indent=2))
    else:
        print("\n".join(doctor_lines(address, status, findings)))
    return EXIT_UNHEALTHY if findings else EXIT_DONE


def _look(
    address: str, cluster_id: str, keys: str | None
) -> tuple[dict[str, Any], list[dict[str, Any] | None], list[Finding]]:
    """Status, what servers answer themselves, and the findings."""
    from pslib.cluster import watch

    watcher = watch(address, cluster_id, keys)
    try:
        status = watcher.status(PATIENCE_S, details=True)
        status["saved"] = shown(status["saved"])
        members = [one for one in status["members"] if one["role"] == "server"]
        servers = [one["address"] if one["state"] == "live" else "" for one in members]
        stats = watcher.server_stats(servers, PATIENCE_S)
        return status, stats, diagnose(status, stats)
    except AccessError:
        raise
    except PslibError as error:
        gone = Finding(
            f"the coordinator at {address} does not answer: {error}",
            "has the run ended? is that process stopped, or on a machine that is out of reach? or does "
            "something else listen at that address?",
        )
        return {}, [], [gone]
    finally:
        watcher.close()


def doctor_lines(address: str, status: Mapping[str, Any], findings: Sequence[Finding]) -> list[str]:
    """The report, for people."""
    lines = [f"coordinator   {address}"]
    if status:
        lines += _summary(status) + [_line_of(one) for one in status["members"]]
    lines += [""]
    for number, finding in enumerate(findings, 1):
        lines += [f"{number}. {finding.what}", f"   -> {finding.advice}"]
    return [*lines, "nothing is wrong" if not findings else counted(len(findings), "finding")]


def _summary(status: Mapping[str, Any]) -> list[str]:
    work = status["work"]
    held = ", ".join(f"trainer {rank}: {leases}" for rank, leases in work["held"]) or "nobody"
    stale, between = (_mean_and_max(status, name) for name in ("staleness", "between"))
    return [
        f"phase         {status['phase']} for {status['seconds']:.0f} s, durability {status['durability']}",
        f"training      {_training(status)}",
        f"examples      {status['examples']:,} of {status['examples_total']:,}{_of_before(status)}",
        f"leases        {status['leases_done']}/{status['leases']} done, {work['free']} free; held: {held}",
        f"staleness     {stale}; pushes of all trainers between a pull and its push: {between}",
        f"pushes        {status['pushes_sent']:,} sent, {status['pushes_applied']:,} applied"
        + _missing(status),
        f"checkpoint    {status['saved'] or 'none yet'}",
        *_moves(status["moves"]),
    ]


def _mean_and_max(status: Mapping[str, Any], name: str) -> str:
    count = status.get(f"{name}_count", 0)
    mean = status.get(f"{name}_sum", 0) / count if count else 0.0
    return f"{mean:.2f} on average, {status.get(f'{name}_max', 0)} at most"


def _training(status: Mapping[str, Any]) -> str:
    """How far it is: by epochs, or by the windows of a stream."""
    if not status["epochs"] and status["epoch"]:
        return f"a stream of files, {counted(int(status['epoch']), 'window')} finished"
    return f"{epoch_text(status['epoch'], status['epochs'])}, {status['epoch']} finished"


def _of_before(status: Mapping[str, Any]) -> str:
    """How many examples an earlier run has trained, with which this one goes on."""
    before = int(status.get("examples_before", 0))
    return f", {before:,} of them before this run" if before else ""


def _missing(status: Mapping[str, Any]) -> str:
    """How many pushes servers have lost that they had acknowledged, where that is known of any."""
    missing = int(status.get("pushes_missing", 0))
    return f"; {missing:,} LOST that were acknowledged" if missing else ""


def _moves(moves: Mapping[str, Any]) -> list[str]:
    """A line on units that move to other servers, where somebody has asked for it."""
    if not moves["units"] and not moves["awaited"]:
        return []
    line = f"moves         {moves['moved']:,} of {counted(moves['units'], 'unit')}"
    line += f", {moves['bytes'] / 1e6:,.1f} MB"
    waits = f"; waiting for {counted(moves['awaited'], 'more server')} to join" if moves["awaited"] else ""
    return [line + waits + (f"; {moves['stopped']}" if moves["stopped"] else "")]


def _line_of(member: Mapping[str, Any]) -> str:
    """One member in a line."""
    head = f"{member['role']} {member['rank']}".ljust(13) + f" {member['state']}, "
    head += f"heard {member['silent_s']:.1f} s ago" if member["state"] == "live" else member["where"]
    if member["role"] == "trainer":
        waits = [f"{what} to {peer} for {seconds:.0f} s" for peer, what, seconds in member.get("waits", ())]
        examples = counted(member.get("examples", 0), "example")
        return f"{head}; {examples}; waits: {'; '.join(waits) or 'no'}"
    limit = member.get("memory_limit_bytes", 0)
    left = f", {limit - member.get('memory_bytes', 0):,} left" if limit else ""
    free = f", {member['log_free_bytes']:,} free" if "log_free_bytes" in member else ""
    log = f"; log {member['log_bytes']:,} bytes{free}" if member.get("log_bytes") else ""
    return (
        f"{head}; {counted(member.get('rows', 0), 'row')}, {member.get('memory_bytes', 0):,} bytes{left}; "
        f"{counted(sum(member.get('jobs_waiting', ())), 'job waits', 'jobs wait')}, "
        f"{counted(member.get('held_pushes', 0), 'push', 'pushes')} held; "
        f"credit {member.get('credit_granted_bytes', 0):,} of {member.get('credit_bytes', 0):,} granted, "
        f"{member.get('credit_wished_bytes', 0):,} wished{log}"
    )
