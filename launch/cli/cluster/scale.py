"""``pslib scale`` and ``pslib server``: change the number of servers of a running cluster."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from launch.cli.command import (
    FOLDER,
    command,
    flag,
    json_option,
    key_option,
    option,
    say,
    show,
    where_options,
)
from launch.supervisor.discovery import end_line, find_cluster
from pslib.clock import Clock, SystemClock
from pslib.errors import EXIT_DONE, ConfigurationError, UnavailableError
from pslib.monitor.run_folder import RunEnd, ended_run
from pslib.text import counted

LOOK_S = 0.2
REPORT_S = 1.0
PATIENCE_S = 30.0
STARTED_S = 4.0
"""Wait before telling how to start a server; a launcher on this machine starts one much sooner."""


class Scaling(Protocol):
    """Part of `pslib.cluster.Watcher` used here."""

    def status(self, timeout_s: float = 3.0, *, details: bool = False) -> dict[str, Any]:
        """Return the status of the whole cluster."""
        ...

    def server_stats(self, addresses: Sequence[str], timeout_s: float = 3.0) -> list[dict[str, Any] | None]:
        """Return the statistics of each server."""
        ...


@command(
    "server", "pslib server --coordinator tcp://10.0.0.1:7000 --cluster-id 5f3a91c0 --listen tcp://10.0.0.9:0"
)
@option("--coordinator", "ADDRESS", "tcp://host:port", required=True)
@option("--cluster-id", "ID", "of the cluster to join", required=True)
@option("--listen", "ADDRESS", "default: any port of this machine", default="tcp://127.0.0.1:0")
@key_option("a server's key of the cluster")
@flag("--insecure-network", "listen beyond this machine")
@option("--rank", "R", "the rank to take, perhaps of one that has died (default: any)", int)
@option("--log", "DIR", "folder of the cluster's logs; what is in it for this rank comes back", FOLDER)
def server_command(
    coordinator: str,
    cluster_id: str,
    listen: str,
    key_file: str | None,
    insecure_network: bool,
    rank: int | None,
    log: str | None,
) -> int:
    """Join a running cluster as one more server, until it leaves."""
    from pslib.client.membership import FREE_RANK, RankRequest
    from pslib.process.shutdown import preemption
    from pslib.server.server import run_server
    from pslib.storage import check_local
    from pslib.transport.keys import read_keys

    if not cluster_id:
        raise ConfigurationError("--cluster-id: expected that of a run, see its logs/cluster.json; got ''")
    check_local("--log", log)
    preemption.install()
    return run_server(
        coordinator,
        cluster_id,
        listen,
        insecure_network,
        keys=None if key_file is None else read_keys(key_file),
        rank_request=FREE_RANK if rank is None else RankRequest(rank),
        log=None if log is None else str(Path(log).absolute()),
    )


@command(
    "scale",
    """
pslib scale --servers 4 runs/clicks
pslib scale --drain 1 runs/clicks
""",
)
@where_options
@option("--servers", "N", "so many shall own all rows (default: as many)", int)
@option("--drain", "RANK", "a server that shall own nothing and leave; may be repeated", int, multiple=True)
@key_option("an admin's key of the cluster")
@json_option
def scale_command(
    where: str | None,
    cluster_id: str | None,
    servers: int | None,
    drain: tuple[int, ...],
    key_file: str | None,
    as_json: bool,
) -> int:
    """Let more or fewer servers own the rows of a running cluster, and wait until shares are even."""
    from pslib.cluster import watch

    if servers is not None and servers < 1:
        raise ConfigurationError(f"--servers: expected at least 1, got {servers}")
    address, found_id = find_cluster(where, cluster_id)
    keys = "" if key_file is None else " --keys FILE"
    more = f"pslib server --coordinator {shlex.quote(address)} --cluster-id {shlex.quote(found_id)}{keys}"
    watcher = watch(address, found_id, key_file)
    try:
        watcher.scale(servers or 0, list(drain))
        plain = watch_moves(
            watcher,
            say(as_json),
            f"{more} --listen tcp://ITS_ADDRESS:0",
            lambda: ended_run(where) if where else None,
        )
    finally:
        watcher.close()
    show(plain, (), as_json)  # the lines have been printed on the way
    return EXIT_DONE


def watch_moves(
    watcher: Scaling,
    say: Callable[[str], None],
    more: str,
    ended: Callable[[], RunEnd | None],
    clock: Clock | None = None,
) -> dict[str, Any]:
    """Report the progress of moves until they are over.

    Parameters
    ----------
    watcher : Scaling
    say : callable
        Called with a line for the user.
    more : str
        Command that starts one more server.
    ended : callable
        Returns the end of the run; None while it goes on or if unknown.
    clock : Clock or None

    Returns
    -------
    dict
        ``moves`` and ``servers`` at the end, or ``ended`` if the run ended first.

    Raises
    ------
    UnavailableError
        When units could not move (the line names them and the reason), or the run ended before all requested
        units had moved.
    """
    clock = clock or SystemClock()
    said_s = began_s = clock.now_s()
    told = moved = False
    while True:
        status = _status_of(watcher, say, ended, clock)
        if isinstance(status, RunEnd):
            say(_end_of(status, moved))
            return {"ended": asdict(status)}
        moves, now_s = status["moves"], clock.now_s()
        moved = _have_moved(moves)
        if moves["stopped"]:
            raise UnavailableError(f"{moves['stopped']}; make room there or start more servers, then again")
        if is_over(status):
            say(_progress(moves))
            shares = _shares(watcher, status)
            for line in _share_lines(shares):
                say(line)
            return {"moves": moves, "servers": shares}
        if moves["awaited"] and not told and now_s - began_s > STARTED_S:
            told = True
            awaited = counted(moves["awaited"], "more server is", "more servers are")
            say(f"{awaited} awaited; start each of them with: {more}")
        if now_s - said_s >= REPORT_S:
            said_s = now_s
            say(_progress(moves))
        clock.sleep_s(LOOK_S)


def _status_of(
    watcher: Scaling, say: Callable[[str], None], ended: Callable[[], RunEnd | None], clock: Clock
) -> dict[str, Any] | RunEnd:
    """Return the status; wait for a coordinator that restarts, not for one whose run has ended."""
    end_s = clock.now_s() + PATIENCE_S
    while True:
        try:
            return watcher.status(details=True)
        except UnavailableError as error:
            if how := ended():
                return how
            if clock.now_s() > end_s:
                raise
            say(f"{error}; asking again")
            clock.sleep_s(LOOK_S)


def _end_of(run: RunEnd, moved: bool) -> str:
    if not moved:
        raise UnavailableError(f"{end_line(run)}; it ended before all units had moved")
    return f"{end_line(run)}; all units had moved"


def _have_moved(moves: Mapping[str, Any]) -> bool:
    return not moves["moving"] and not moves["awaited"] and bool(moves["moved"] == moves["units"])


def is_over(status: Mapping[str, Any]) -> bool:
    """Return whether the requested scale is reached, and all leaving servers have left."""
    moves = status["moves"]
    states = {one["rank"]: one["state"] for one in status["members"] if one["role"] == "server"}
    gone = all(states.get(rank) != "live" for rank in moves["leaving"])
    return _have_moved(moves) and gone


def _progress(moves: Mapping[str, Any]) -> str:
    """Return one line of progress."""
    if moves["awaited"]:
        return f"waiting for {counted(moves['awaited'], 'more server')} to join"
    size_mb, seconds = moves["bytes"] / 1e6, moves["seconds"]
    line = (
        f"moved {moves['moved']:,} of {counted(moves['units'], 'unit')}, {size_mb:,.1f} MB, {seconds:.1f} s"
    )
    if moves["moved"] == moves["units"] and moves["leaving"]:
        line += f"; servers {', '.join(map(str, moves['leaving']))} leave"
    return line


def _shares(watcher: Scaling, status: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the units and rows of each server with units; counts are current, not of a heartbeat."""
    servers = [one for one in status["members"] if one["role"] == "server" and one["units"]]
    stats = watcher.server_stats([one["address"] for one in servers])
    return [
        {name: one[name] for name in ("rank", "address", "units")}
        | {"rows": 0 if stat is None else int(stat["rows"])}
        for one, stat in zip(servers, stats, strict=True)
    ]


def _share_lines(shares: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each server, and their balance."""
    rows = [one["rows"] for one in shares]
    lines = [
        f"server {one['rank']} at {one['address']}: {counted(one['units'], 'unit')}, "
        f"{counted(one['rows'], 'row')}"
        for one in shares
    ]
    if sum(rows):
        lines.append(f"imbalance of rows (most / mean): {max(rows) * len(rows) / sum(rows):.3f}")
    return lines
