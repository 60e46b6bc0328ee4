"""``pslib launch``: run a user's script in every trainer of a cluster, on one machine or several."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path

from launch.job.preflight import check_log, hold_port, prepare_out
from launch.job.suggestions import behind_the_script
from launch.places.keys import keys_of_run
from launch.places.local import LocalLauncher
from launch.places.options import hosts_of
from launch.runs.log_options import durability_settings, log_folder
from launch.runs.train import ENDED_EARLY
from launch.supervisor.resume import identity_of
from launch.supervisor.run_records import run_recorded, say
from launch.supervisor.run_spec import Launcher, Plan
from pslib.config import ClusterConfig, Timing
from pslib.errors import EXIT_DONE, ConfigurationError
from pslib.recorder.event_files import check_event_files

__all__ = ["run_script"]


def run_script(options: argparse.Namespace) -> int:
    """Run the script of ``pslib launch`` and return the run's exit code.

    Raises
    ------
    ConfigurationError
        When script, hosts or options are invalid; no process has been started then.
    """
    if options.tensorboard:
        check_event_files()
        if options.out is None:
            raise ConfigurationError("--tensorboard: expected --out beside it, the folder of its files")
    launcher, servers, trainers = _place(options)
    if behind := behind_the_script(options.arguments, options.launch_options):
        script = Path(options.script).name
        say(
            f"{', '.join(behind)} after {script} go to {script}; "
            "options of pslib launch stand before the script"
        )
    keys = keys_of_run(options.keys, getattr(launcher, "open_addresses", ()), options.insecure_network)
    config = ClusterConfig(
        servers=servers,
        trainers=trainers,
        shard_threads=options.shard_threads,
        server_memory_bytes=options.server_memory_bytes,
        timing=Timing(drain_s=options.drain_s),
        **durability_settings(options),
    )
    out = None if options.out is None else prepare_out(options.out, options.overwrite, options.resume)
    launch = identity_of(out, config, options.resume)
    logs = Path(tempfile.mkdtemp(prefix="pslib-launch-")) if out is None else out / "logs"
    plan = Plan(
        config=config,
        cluster_id=launch.cluster_id,
        launch=launch,
        trainer_arguments=(options.script, *options.arguments),
        logs=logs,
        echo=True,
        keys=keys,
        log=launch.log or log_folder(config, options.log, logs.parent if out else logs),
    )
    facts = {"job": Path(options.script).name}
    outcome, _ = run_recorded(
        launcher, plan, out, progress=not options.quiet, facts=facts, tensorboard=options.tensorboard
    )
    if outcome.exit_code in ENDED_EARLY and out is not None and plan.log is not None:
        go_on = "go on, when there is room, with" if outcome.final else "go on with"
        say(f"all that was acknowledged is in its logs, {plan.log}; {go_on} the same command and --resume")
    if out is None and outcome.exit_code == EXIT_DONE:
        shutil.rmtree(logs, ignore_errors=True)
    return outcome.exit_code


def _place(options: argparse.Namespace) -> tuple[Launcher, int, int]:
    """Return the selected launcher, and the numbers of its servers and trainers."""
    is_there = (
        os.path.isfile(options.script) or options.on != "local"
    )  # elsewhere the script is a file of each host
    if is_there and Path(options.script).suffix in (".yaml", ".yml"):
        raise ConfigurationError(f"{options.script}: expected a Python script; pslib train runs a job file")
    if hosts := hosts_of(options):
        return hosts, hosts.count("server"), hosts.count("trainer")
    if not is_there:
        raise ConfigurationError(f"{options.script}: no such script")
    servers = 1 if options.servers is None else options.servers
    trainers = 1 if options.trainers is None else options.trainers
    check_log("--log", options.log, options.resume)
    return LocalLauncher(trainers, hold_port(options.port)), servers, trainers
