"""``pslib launch``: run a script in every trainer of a cluster."""

from __future__ import annotations

from pathlib import Path

import rich_click as click
from click.shell_completion import CompletionItem

from launch.cli.command import (
    FILE,
    FOLDER,
    PASSED,
    Command,
    argument,
    choice,
    command,
    machine_options,
    option,
    run_options,
)
from launch.cli.errors import behind_the_script, options_of
from launch.places.options import HostOptions, RunOptions


class _Launch(Command):
    """Command whose options end at the script: what stands behind it is the script's own."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """Complete no option behind the script."""
        return [] if ctx.params.get("script") else super().shell_complete(ctx, incomplete)


@command(
    "launch",
    """
pslib launch --servers 2 --trainers 2 train.py data/
pslib launch --on ssh --hosts hosts.txt train.py data/
pslib launch --on ray --servers 4 --trainers 8 train.py data/
""",
    cls=_Launch,
    context_settings={"allow_interspersed_args": False},
)
@argument("script", "SCRIPT", "a Python file that calls pslib.connect()", FILE)
@argument("arguments", "[ARGS]...", "the script's own arguments, options included", PASSED, nargs=-1)
@option("--servers", "N", "server processes (local, ray; default 1)", int)
@option("--trainers", "N", "trainer processes (local, ray; default 1)", int)
@option("--shard-threads", "N", "threads of a server (default 1)", int, default=1)
@option(
    "--server-memory-bytes", "N", "what the tables of a server may take (default: no limit)", int, default=0
)
@option("--drain-s", "S", "what a trainer may take to leave on SIGTERM (default 20)", float, default=20.0)
@choice(
    "--durability",
    ("memory", "log", "disk"),
    "what an acknowledged push survives: nothing, the end of its server, a loss of power (default memory)",
    default="memory",
)
@choice(
    "--recovery",
    ("log", "partial"),
    "a lost server comes back from its log; or, where there is none, at the last checkpoint (default log)",
    default="log",
)
@option("--log", "DIR", "folder of the logs, where servers run (default: log below --out)", FOLDER)
@option("--restarts", "N", "how often a process that dies is started again (default 3)", int)
@option(
    "--metrics-port",
    "PORT",
    "serve /metrics for Prometheus, the coordinator there, others at free ports (0: it too)",
    click.IntRange(0, 65535),
)
@run_options("folder for logs and records (default: logs in a temporary one)")
@machine_options
@click.pass_context
def launch_command(
    context: click.Context,
    script: str,
    arguments: tuple[str, ...],
    machines: HostOptions,
    shard_threads: int,
    server_memory_bytes: int,
    drain_s: float,
    durability: str,
    recovery: str,
    log: str | None,
    restarts: int | None,
    metrics_port: int | None,
    run: RunOptions,
) -> int:
    """Run a script of yours in every trainer of a cluster, unchanged.

    Options of pslib launch stand before the script; all that stands behind it goes to the script.
    """
    from launch.job.sections import RESTARTS
    from launch.runs.script import run_script
    from launch.supervisor.run_records import say
    from pslib.config import ClusterConfig, Timing

    if behind := behind_the_script(arguments, options_of(context)):
        name = Path(script).name
        say(f"{', '.join(behind)} after {name} go to {name}; options of pslib launch stand before the script")
    config = ClusterConfig(
        shard_threads=shard_threads,
        server_memory_bytes=server_memory_bytes,
        timing=Timing(drain_s=drain_s),
        durability=durability,
        recovery=recovery,
        restarts=RESTARTS if restarts is None else restarts,
    )
    return run_script(script, arguments, machines, config, log, run, metrics_port)
