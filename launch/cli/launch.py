"""``pslib launch``: run a script in every trainer of a cluster."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from launch.cli.command import FILE, FOLDER, command, machine_options, run_options
from launch.cli.errors import behind_the_script, options_of
from launch.places.options import HostOptions

__all__ = ["launch_command"]


@command(
    "launch",
    """
pslib launch --servers 2 --trainers 2 train.py data/
pslib launch --on ssh --hosts hosts.txt train.py data/
""",
    context_settings={"allow_interspersed_args": False},
)
@click.argument("script", type=FILE, metavar="SCRIPT", help="a Python file that calls pslib.connect()")
@click.argument(
    "arguments",
    nargs=-1,
    type=click.UNPROCESSED,
    metavar="[ARGS]...",
    help="the script's own arguments, options included",
)
@click.option("--servers", type=int, metavar="N", help="server processes (local; default 1)")
@click.option("--trainers", type=int, metavar="N", help="trainer processes (local; default 1)")
@click.option("--shard-threads", type=int, default=1, metavar="N", help="threads of a server (default 1)")
@click.option(
    "--server-memory-bytes",
    type=int,
    default=0,
    metavar="N",
    help="what the tables of a server may take (default: no limit)",
)
@click.option(
    "--drain-s",
    type=float,
    default=20.0,
    metavar="S",
    help="what a trainer may take to leave on SIGTERM (default 20)",
)
@click.option(
    "--durability",
    type=click.Choice(("memory", "log", "disk")),
    default="memory",
    help="what an acknowledged push survives: nothing, the end of its server, a loss of power",
)
@click.option(
    "--recovery",
    type=click.Choice(("log", "partial")),
    default="log",
    help="a lost server comes back from its log; or, where there is none, at the last checkpoint",
)
@click.option(
    "--log",
    type=FOLDER,
    metavar="DIR",
    help="folder of the logs, where servers run (default: log below --out)",
)
@click.option(
    "--restarts",
    type=int,
    metavar="N",
    help="how often a process that dies is started again (default 3)",
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
    out: str | None,
    keys: str | None,
    overwrite: bool,
    resume: bool,
    tensorboard: bool,
    quiet: bool,
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
    return run_script(
        script,
        arguments,
        machines,
        config,
        log=log,
        out=out,
        keys=keys,
        overwrite=overwrite,
        resume=resume,
        tensorboard=tensorboard,
        progress=not quiet,
    )
