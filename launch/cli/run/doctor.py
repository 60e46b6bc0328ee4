"""``pslib doctor``: inspect a running cluster, and report its waits with advice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from launch.cli.command import command, json_option, key_option, show, where_options
from launch.supervisor.discovery import end_line, find_cluster
from pslib.errors import EXIT_DONE, AccessError, PslibError
from pslib.monitor.run_folder import ended_run
from pslib.storage import shown
from pslib.text import counted, epoch_text

if TYPE_CHECKING:
    from launch.supervisor.diagnosis import Finding

EXIT_UNHEALTHY = 1
PATIENCE_S = 3.0
"""Time limit of each of two requests, to the coordinator and to all servers at once; in all at most 10 s."""


@command(
    "doctor",
    """
pslib doctor runs/clicks
pslib doctor tcp://10.0.0.1:7000 --cluster-id 5f3a91c0
""",
)
@where_options
@key_option("a key of the cluster; a reader's will do")
@json_option
def doctor_command(where: str | None, cluster_id: str | None, key_file: str | None, as_json: bool) -> int:
    """Say who waits for whom in a running cluster, and why.

    Exit code 1: something is wrong, or the run ended with an error.
    """
    ended = ended_run(where) if where and "://" not in where else None
    if ended is not None:
        show({"ended": asdict(ended)}, [end_line(ended)], as_json)
        return EXIT_DONE if ended.exit_code == EXIT_DONE else EXIT_UNHEALTHY
    address, found_id = find_cluster(where, cluster_id)
    status, stats, findings = _look(address, found_id, key_file)
    plain = {"coordinator": address, "healthy": not findings, "findings": [asdict(one) for one in findings]}
    lines = doctor_lines(address, status, findings)
    show(plain | {"status": status, "servers": stats}, lines, as_json)
    return EXIT_UNHEALTHY if findings else EXIT_DONE


def _look(
    address: str, cluster_id: str, keys: str | None
) -> tuple[dict[str, Any], list[dict[str, Any] | None], list[Finding]]:
    """Return status, replies of the servers, and findings."""
    from launch.supervisor.diagnosis import Finding, diagnose
    from pslib.cluster import watch

    watcher = watch(address, cluster_id, keys)
    try:
        status = watcher.status(PATIENCE_S, details=True)
        status["saved"] = shown(status["saved"])
        members = [one for one in status["members"] if one["role"] == "server"]
        servers = [one["address"] if one["state"] == "live" else "" for one in members]
        stats = watcher.server_stats(servers, PATIENCE_S)
        return status, stats, diagnose(status, stats, address)
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
    """Return the lines of the report."""
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
    """Describe the progress: epochs, or windows of a stream."""
    if not status["epochs"] and status["epoch"]:
        return f"a stream of files, {counted(int(status['epoch']), 'window')} finished"
    return f"{epoch_text(status['epoch'], status['epochs'])}, {status['epoch']} finished"


def _of_before(status: Mapping[str, Any]) -> str:
    """Describe the examples of the earlier run that this one continues."""
    before = int(status.get("examples_before", 0))
    return f", {before:,} of them before this run" if before else ""


def _missing(status: Mapping[str, Any]) -> str:
    """Describe acknowledged pushes that servers have lost, if any are known."""
    missing = int(status.get("pushes_missing", 0))
    return f"; {missing:,} LOST that were acknowledged" if missing else ""


def _moves(moves: Mapping[str, Any]) -> list[str]:
    """Describe units that move to other servers, if a move was requested."""
    if not moves["units"] and not moves["awaited"]:
        return []
    line = f"moves         {moves['moved']:,} of {counted(moves['units'], 'unit')}"
    line += f", {moves['bytes'] / 1e6:,.1f} MB"
    waits = f"; waiting for {counted(moves['awaited'], 'more server')} to join" if moves["awaited"] else ""
    return [line + waits + (f"; {moves['stopped']}" if moves["stopped"] else "")]


def _line_of(member: Mapping[str, Any]) -> str:
    """Describe one member in a line."""
    head = f"{member['role']} {member['rank']}".ljust(13) + f" {member['state']}, {member['where']}"
    head += f", heard {member['silent_s']:.1f} s ago" if member["state"] == "live" else ""
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
