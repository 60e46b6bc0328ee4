"""``pslib launch``: run a user's script in every trainer of a cluster, on one machine or several."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from launch.job.preflight import check_log, hold_port, prepare_out
from launch.places.keys import keys_of_run
from launch.places.local import LocalLauncher
from launch.places.options import HostOptions, RunOptions, selected_launcher
from launch.runs.folders import folder_of_run
from launch.runs.train import ENDED_EARLY, log_folder
from launch.supervisor.discovery import TARGETS
from launch.supervisor.resume import identity_of
from launch.supervisor.run_records import keep_log, run_recorded, say
from launch.supervisor.run_spec import Launcher, MetricsPlan, Plan
from pslib.config import ClusterConfig
from pslib.errors import EXIT_DONE, ConfigurationError
from pslib.monitor.page_server import check_page
from pslib.process.own_packages import taken_names
from pslib.recorder.event_files import TensorBoard, check_event_files
from pslib.storage import check_local, shown

if TYPE_CHECKING:
    from pslib.transport import Keys


def run_script(
    script: str,
    arguments: Sequence[str],
    machines: HostOptions,
    config: ClusterConfig,
    log: str | None,
    run: RunOptions,
    metrics_port: int | None = None,
) -> int:
    """Run a script and return the run's exit code.

    Parameters
    ----------
    script, arguments : str, sequence of str
        Python file, and its own arguments.
    machines : HostOptions
    config : ClusterConfig
        Settings of the cluster; numbers of processes are those of ``machines``.
    log : str or None
        Folder of update logs; None: ``log`` in that of the run.
    run : RunOptions
    metrics_port : int or None
        Port of the coordinator's metrics; 0 is any free one; None: no metrics.

    Raises
    ------
    ConfigurationError
        When script, hosts or options are invalid; no process has been started then.
    """
    if run.tensorboard:
        check_event_files()
        if run.out is None:
            raise ConfigurationError("--tensorboard: expected --out beside it, the folder of its files")
    if run.ui is not None:
        check_page(port=run.ui)
    check_local("--log", log)
    if log and config.durability == "memory":
        raise ConfigurationError("--log: expected --durability log or disk with it; else nothing is logged")
    launcher, servers, trainers = _place(script, machines, log, run.resume)
    config = replace(config, servers=servers, trainers=trainers)
    keys = keys_of_run(run.keys, getattr(launcher, "open_addresses", ()), machines.insecure_network)
    with launcher.hold(servers, trainers):
        return _launch(script, arguments, config, log, run, launcher, keys, metrics_port)


def _launch(
    script: str,
    arguments: Sequence[str],
    config: ClusterConfig,
    log: str | None,
    run: RunOptions,
    launcher: Launcher,
    keys: Mapping[str, Keys] | None,
    metrics_port: int | None,
) -> int:
    """Run a script whose options are checked."""
    folder = None if run.out is None else _folder(run.out, run)
    launch = identity_of(folder, config, run.resume)
    logs = Path(tempfile.mkdtemp(prefix="pslib-launch-")) if folder is None else folder / "logs"
    keep_log(logs, launch.cluster_id, run.json_logs)
    update_log = launch.log or log_folder(config, log, folder or logs)
    plan = Plan(
        config=config,
        cluster_id=launch.cluster_id,
        launch=launch,
        trainer_arguments=(script, *arguments),
        logs=logs,
        echo=True,
        keys=keys,
        saves=update_log is None,
        log=update_log,
        json_logs=run.json_logs,
        metrics=None if metrics_port is None else MetricsPlan(metrics_port, (folder or logs) / TARGETS),
    )
    facts = {"job": Path(script).name}
    outcome, _ = run_recorded(
        launcher,
        plan,
        folder,
        progress=not run.quiet,
        facts=facts,
        callbacks=[TensorBoard()] if run.tensorboard else [],
        ui=run.ui,
    )
    saved = shown(outcome.status.get("saved") or "")
    if outcome.exit_code in ENDED_EARLY and folder is not None and plan.log is not None:
        go_on = "go on, when there is room, with" if outcome.final else "go on with"
        say(f"all that was acknowledged is in its logs, {plan.log}; {go_on} the same command and --resume")
    elif outcome.exit_code in ENDED_EARLY and saved:
        say(
            f"the checkpoint is {saved}; a script goes on with trainer.load({saved!r}) before its other calls"
        )
    if folder is None and outcome.exit_code == EXIT_DONE:
        shutil.rmtree(logs, ignore_errors=True)
    return outcome.exit_code


def _folder(out: str, run: RunOptions) -> Path:
    """Make the folder of the run: with a number where another run has it."""
    check_local("out", out)
    with folder_of_run(Path(out), run.overwrite, run.resume) as folder:
        return prepare_out(folder, run.overwrite, run.resume)


def _place(script: str, machines: HostOptions, log: str | None, resume: bool) -> tuple[Launcher, int, int]:
    """Return the selected launcher, and the numbers of its servers and trainers."""
    # elsewhere the script is a file of each host
    is_there = os.path.isfile(script) or machines.on != "local"
    if is_there and Path(script).suffix in (".yaml", ".yml"):
        raise ConfigurationError(f"{script}: expected a Python script; pslib train runs a job file")
    if hosts := selected_launcher(machines):
        servers, trainers = (hosts.count(role) for role in ("server", "trainer"))
        return hosts, 1 if servers is None else servers, 1 if trainers is None else trainers
    if not is_there:
        raise ConfigurationError(f"{script}: no such script")
    for line in taken_names(Path(script).parent):
        say(line)
    servers = 1 if machines.servers is None else machines.servers
    trainers = 1 if machines.trainers is None else machines.trainers
    check_log("--log", log, resume)
    return LocalLauncher(trainers, hold_port(machines.port)), servers, trainers
