"""``pslib scale``: change the number of servers of a running cluster, and follow the moves of units."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from launch.supervisor.discovery import EndedRun, ended_run, find_cluster
from pslib.clock import Clock, SystemClock
from pslib.errors import EXIT_DONE, ConfigurationError, UnavailableError
from pslib.text import counted

__all__ = ["Scaling", "add_scale", "add_server", "run_scale", "run_server_by_hand", "watch_moves"]

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


def add_scale(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``pslib scale``."""
    parser.add_argument(
        "where", nargs="?", metavar="WHERE", help="a run's folder, or the coordinator's tcp://host:port"
    )
    parser.add_argument(
        "--servers", type=int, metavar="N", help="so many shall own all rows (default: as many)"
    )
    parser.add_argument(
        "--drain",
        type=int,
        action="append",
        default=[],
        metavar="RANK",
        help="a server that shall own nothing and leave; may be repeated",
    )
    parser.add_argument("--cluster-id", metavar="ID", help="of the cluster at an address")
    parser.add_argument("--keys", metavar="FILE", help="an admin's key of the cluster")


def add_server(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``pslib server``."""
    parser.add_argument("--coordinator", required=True, metavar="ADDRESS", help="tcp://host:port")
    parser.add_argument("--cluster-id", required=True, metavar="ID", help="of the cluster to join")
    parser.add_argument(
        "--listen", default="tcp://127.0.0.1:0", metavar="ADDRESS", help="default: any port of this machine"
    )
    parser.add_argument("--keys", metavar="FILE", help="a server's key of the cluster")
    parser.add_argument("--insecure-network", action="store_true", help="listen beyond this machine")
    parser.add_argument(
        "--rank", type=int, metavar="R", help="the place to take, perhaps of one that has died (default: any)"
    )
    parser.add_argument(
        "--log", metavar="DIR", help="folder of the cluster's logs; what is in it for this rank comes back"
    )


def run_server_by_hand(options: argparse.Namespace) -> int:
    """Join a running cluster as a server until it leaves; return the exit code.

    Raises
    ------
    ConfigurationError
        When no cluster is named, the log is a URI or has no rank, or the file holds no key.
    """
    from pslib.client.membership import ANYWHERE, Place
    from pslib.process.shutdown import preemption
    from pslib.server.server import run_server
    from pslib.storage import check_local
    from pslib.transport.keys import read_keys

    if not options.cluster_id:
        raise ConfigurationError("--cluster-id: expected that of a run, see its logs/cluster.json; got ''")
    check_local("--log", options.log)
    preemption.install()
    keys = None if options.keys is None else read_keys(options.keys)
    return run_server(
        options.coordinator,
        options.cluster_id,
        options.listen,
        options.insecure_network,
        keys=keys,
        place=ANYWHERE if options.rank is None else Place(options.rank),
        log=None if options.log is None else str(Path(options.log).absolute()),
    )


def run_scale(options: argparse.Namespace) -> int:
    """Request the scale, follow the moves, and return 0 when shares are even.

    Raises
    ------
    ConfigurationError
        When the number of servers is impossible, or no single cluster is named.
    UnavailableError
        When units could not move, or the run ended before all had moved.
    """
    from pslib.cluster import watch

    if options.servers is not None and options.servers < 1:
        raise ConfigurationError(f"--servers: expected at least 1, got {options.servers}")
    address, cluster_id = find_cluster(options.where, options.cluster_id)
    keys = "" if options.keys is None else " --keys FILE"
    more = f"pslib server --coordinator {shlex.quote(address)} --cluster-id {shlex.quote(cluster_id)}{keys}"
    watcher = watch(address, cluster_id, options.keys)
    try:
        watcher.scale(options.servers or 0, options.drain)
        watch_moves(
            watcher,
            lambda line: print(line, flush=True),
            f"{more} --listen tcp://ITS_ADDRESS:0",
            lambda: ended_run(options.where) if options.where else None,
        )
    finally:
        watcher.close()
    return EXIT_DONE


def watch_moves(
    watcher: Scaling,
    say: Callable[[str], None],
    more: str,
    ended: Callable[[], EndedRun | None],
    clock: Clock | None = None,
) -> None:
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
        if isinstance(status, EndedRun):
            say(_end_of(status, moved))
            return
        moves, now_s = status["moves"], clock.now_s()
        moved = _have_moved(moves)
        if moves["stopped"]:
            raise UnavailableError(f"{moves['stopped']}; make room there or start more servers, then again")
        if is_over(status):
            say(_progress(moves))
            for line in _shares(watcher, status):
                say(line)
            return
        if moves["awaited"] and not told and now_s - began_s > STARTED_S:
            told = True
            awaited = counted(moves["awaited"], "more server is", "more servers are")
            say(f"{awaited} awaited; start each of them with: {more}")
        if now_s - said_s >= REPORT_S:
            said_s = now_s
            say(_progress(moves))
        clock.sleep_s(LOOK_S)


def _status_of(
    watcher: Scaling, say: Callable[[str], None], ended: Callable[[], EndedRun | None], clock: Clock
) -> dict[str, Any] | EndedRun:
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


def _end_of(run: EndedRun, moved: bool) -> str:
    if not moved:
        raise UnavailableError(f"{run.line()}; it ended before all units had moved")
    return f"{run.line()}; all units had moved"


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


def _shares(watcher: Scaling, status: Mapping[str, Any]) -> list[str]:
    """Return a line for each server with units, and their balance; counts are current, not of a heartbeat."""
    servers = [one for one in status["members"] if one["role"] == "server" and one["units"]]
    stats = watcher.server_stats([one["address"] for one in servers])
    rows = [0 if one is None else int(one["rows"]) for one in stats]
    lines = [
        f"server {one['rank']} at {one['address']}: {counted(one['units'], 'unit')}, {counted(count, 'row')}"
        for one, count in zip(servers, rows, strict=True)
    ]
    if sum(rows):
        lines.append(f"imbalance of rows (most / mean): {max(rows) * len(rows) / sum(rows):.3f}")
    return lines
