"""``pslib role``: one process of a cluster, started by a scheduler such as Kubernetes in place of a launcher.

The process finds out by itself who it is (`launch.places.identity`); the scheduler starts it again when it
ends early. So servers and coordinator have logs, from which their successors go on, and stay when all work is
done, since a scheduler would start them anew. Trainers end with exit code 0 then, also those that come later;
with 64 when the run would end in the same way for ever, with `EXIT_NO_ROOM` when it may.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launch.job.job import Job, settings_of_job
from launch.places.identity import ProcessIdentity
from launch.runs.train import log_folder
from launch.supervisor.discovery import note_cluster, note_saved
from launch.supervisor.resume import earlier_metrics, keep_records
from launch.supervisor.run_records import best_possible, say, summary_lines, summary_of
from launch.worker.health_server import serve_health, serve_metrics
from launch.worker.main import is_final, keep_memory, set_threads
from pslib.clock import SystemClock
from pslib.config import (
    CLUSTER_ID_VARIABLE,
    COORDINATOR_VARIABLE,
    KEYS_VARIABLE,
    NEXT_GENERATION,
    ClusterConfig,
)
from pslib.coordinator.jobs import START_AGAIN
from pslib.coordinator.results import EVALUATIONS, of_kind
from pslib.errors import (
    EXIT_DONE,
    EXIT_NO_ROOM,
    ConfigurationError,
    PreemptedError,
    PslibError,
    UnavailableError,
    WorkDoneError,
)
from pslib.monitor.run_folder import SUMMARY
from pslib.process.shutdown import preemption
from pslib.storage import unwritable
from pslib.transport.addresses import is_loopback

if TYPE_CHECKING:
    from pslib.monitor.sources import LiveRun
    from pslib.recorder import RunRecorder
    from pslib.transport import Keys

ROLES = ("coordinator", "server", "trainer")

ENDS = ("done", "failed")
"""Last phases of a run."""

DONE = {"coordinator": "all work is done", "server": "nothing is left for this server to do"}
"""Last line of a process that has ended well; a server also ends so when its rows are moved away."""
STAYS = "this process stays until it is asked to leave (SIGTERM)"

WAITING_MAX = 16
"""Statuses that wait for a slow disk: 8 s of them."""
LAST_S = 10.0
"""Wait for the last records at the end of a coordinator, whose disk may hang."""

RETURN_S = 600.0
"""Wait for a process that a scheduler places again: a new node, its image and its volume take minutes, where
a launcher starts a process at once."""


@dataclass(frozen=True, slots=True)
class RoleOptions:
    """Options of ``pslib role`` beside the job and the identity.

    Attributes
    ----------
    key_file : str or None
        Key of the process; None: the file that the environment's PSLIB_KEYS names, if any.
    log : str or None
        Folder of the update logs and of the coordinator's journal; None: that of the job.
    insecure_network : bool
        True to listen without encryption.
    health : int or None
        Port of the probes and metrics, on all addresses; None: no probes, and metrics as the job says.
    """

    key_file: str | None = None
    log: str | None = None
    insecure_network: bool = False
    health: int | None = None


def run_role(job: Job, identity: ProcessIdentity, options: RoleOptions) -> int:
    """Run one process of a job's cluster to its end; return its exit code.

    Parameters
    ----------
    job : Job
    identity : ProcessIdentity
    options : RoleOptions

    Raises
    ------
    ConfigurationError
        When the job can't run without a launcher.
    PreemptedError
        When the process was asked to leave before its work was done.
    """
    from pslib.transport.keys import read_keys

    config = _config_of(job)
    key_file = options.key_file or os.environ.pop(KEYS_VARIABLE, None)
    keys = None if key_file is None else read_keys(key_file)
    log = log_folder(config, options.log or job.cluster.log, Path(job.out))
    assert log is not None  # `_config_of` asks for one
    try:
        if options.health is not None:
            serve_health(options.health)
        say(identity.line())
        if options.health is None and job.metrics is not None:
            say(f"metrics: http://{serve_metrics(_metrics_address(identity, job.metrics.port))}/metrics")
        set_threads(identity.role)
        if identity.role == "trainer":
            return _trainer(job, identity, keys)
        code = (
            _coordinator(job, config, identity, options, keys, log)
            if identity.role == "coordinator"
            else _server(identity, options, keys, log)
        )
        if code == EXIT_DONE and not preemption.asked:
            say(f"{DONE[identity.role]}; {STAYS}")
            _await_signal()
        return code
    finally:
        preemption.over()


def _metrics_address(identity: ProcessIdentity, port: int) -> str:
    """Return the address for metrics: where it listens; of a trainer loopback if the coordinator is there."""
    if identity.listen:
        return f"{identity.listen.rpartition(':')[0]}:{port}"
    return f"tcp://{'127.0.0.1' if is_loopback(identity.coordinator) else '[::]'}:{port}"


def _config_of(job: Job) -> ClusterConfig:
    """Return the settings of a cluster whose processes a scheduler starts.

    Raises
    ------
    ConfigurationError
        When they need a launcher.
    """
    config = job.cluster_config
    if config.durability == "memory":
        raise ConfigurationError(
            "cluster.durability: expected log or disk where no launcher starts the processes: a server that "
            "comes back goes on from its log; got memory"
        )
    if config.recovery == "rollback":
        raise ConfigurationError(
            "cluster.recovery: expected log or partial where no launcher starts the processes, got rollback"
        )
    return replace(config, timing=replace(config.timing, restart_s=RETURN_S, start_s=RETURN_S))


def _await_signal() -> None:
    """Wait until this process is asked to leave."""
    try:
        while True:
            signal.pause()
    except PreemptedError:
        pass


def _server(identity: ProcessIdentity, options: RoleOptions, keys: Keys | None, log: str) -> int:
    from pslib.client.membership import RankRequest
    from pslib.server.server import run_server

    keep_memory()
    return run_server(
        identity.coordinator,
        identity.cluster_id,
        identity.listen,
        insecure_network=options.insecure_network,
        keys=keys,
        rank_request=RankRequest(identity.rank, NEXT_GENERATION),
        log=log,
        returns=True,
    )


def _trainer(job: Job, identity: ProcessIdentity, keys: Keys | None) -> int:
    from launch.worker.train_job import train_job
    from pslib.client.membership import RankRequest
    from pslib.cluster import use_keys, use_rank

    keep_memory()
    os.environ |= {COORDINATOR_VARIABLE: identity.coordinator, CLUSTER_ID_VARIABLE: identity.cluster_id}
    use_keys(keys)
    use_rank(RankRequest(identity.rank, NEXT_GENERATION))
    try:
        train_job(job)
    except WorkDoneError as error:
        say(f"nothing is left to train: {error}")
    except PslibError as error:
        if is_final(error):
            say(str(error))
            return EXIT_NO_ROOM
        if isinstance(error, UnavailableError) and START_AGAIN in str(error):
            raise ConfigurationError(str(error)) from error
        raise
    return EXIT_DONE


def _coordinator(
    job: Job,
    config: ClusterConfig,
    identity: ProcessIdentity,
    options: RoleOptions,
    keys: Keys | None,
    log: str,
) -> int:
    from pslib.coordinator.coordinator import run_coordinator

    job.trackers.check()
    logs = _folder_of_records(job)

    def announce(address: str) -> None:
        note_cluster(logs, address, identity.cluster_id, 0, log, config)
        records.address = address
        say(f"listening at {address}")

    with Records(job, config, identity.cluster_id, keys) as records:
        return run_coordinator(
            config,
            identity.cluster_id,
            identity.listen,
            announce,
            insecure_network=options.insecure_network,
            keys=keys,
            journal=f"{log}/coordinator",
            ranks_named=True,
            tell=records.put,
            alone=True,
        )


def _folder_of_records(job: Job) -> Path:
    """Make the folder of the run with the job file in it; return that of its logs.

    Raises
    ------
    ConfigurationError
        When it can't be written.
    """
    out = Path(job.out)
    if why := unwritable(out):
        raise ConfigurationError(f"out: {out} can't be written to: {why}; set another out")
    for folder in (out, out / "logs"):  # records quote data and settings
        folder.mkdir(0o700, parents=True, exist_ok=True)
    (out / "job.yaml").write_text(job.to_yaml(), encoding="utf-8")
    return out / "logs"


class Records:
    """Records of a run, written in a thread of their own: a slow disk must not delay a coordinator.

    Parameters
    ----------
    job : Job
    config : ClusterConfig
    run_id : str
        The cluster's.
    keys : Keys or None
        Of an encrypted one.

    Attributes
    ----------
    address : str
        That of the coordinator, set before the first status; empty: ``monitor.json`` is not written.
    """

    def __init__(self, job: Job, config: ClusterConfig, run_id: str, keys: Keys | None = None) -> None:
        self._job, self._config, self._run_id, self._keys = job, config, run_id, keys
        self.address = ""
        self._live: LiveRun | None = None
        self._statuses: queue.Queue[Mapping[str, Any] | None] = queue.Queue(WAITING_MAX)
        self._thread = threading.Thread(target=self._write, name="pslib-records", daemon=True)

    def __enter__(self) -> Records:
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        with suppress(queue.Full):
            self._statuses.put(None, timeout=LAST_S)
            self._thread.join(LAST_S)
        if self._live is not None:
            self._live.close()

    @property
    def is_recording(self) -> bool:
        """True until the records of the run are complete."""
        return self._thread.is_alive()

    @property
    def waiting(self) -> int:
        """Number of statuses that are not recorded yet."""
        return self._statuses.qsize()

    def put(self, status: Mapping[str, Any]) -> None:
        """Record a status soon, or drop it: counters are cumulative, and a run that is over is recorded."""
        if self.is_recording:
            with suppress(queue.Full):
                self._statuses.put_nowait(status)

    def _write(self) -> None:
        try:
            self._record()
        except OSError as error:  # training goes on without records
            say(f"{self._job.out}: the records can't be written: {error.strerror}")

    def _record(self) -> None:
        from pslib.recorder import RunRecorder

        out = Path(self._job.out)
        status = self._statuses.get()
        if status is None:
            return
        if status["phase"] == "done":  # a predecessor has written them; this start does not continue the run
            with suppress(FileNotFoundError):
                os.utime(out / SUMMARY)
            return
        keep_records(out)
        self._live = self._watched(out.absolute()) if self.address else None
        told: set[str] = set()
        with RunRecorder(
            out,
            SystemClock(),
            stream=sys.stderr,
            earlier=earlier_metrics(out),
            callbacks=self._job.trackers.callbacks,
            about={
                "name": out.name,
                "run_id": self._run_id,
                "settings": settings_of_job(self._job),
            },
        ) as recorder:
            while status is not None and status["phase"] not in ENDS:
                recorder.observe(of_kind(status, *EVALUATIONS) | {"events": status["event_log"]})
                for event in status["events"]:
                    if event not in told:
                        told.add(event)
                        say(event)
                status = self._statuses.get()
            if status is not None:
                self._finish(recorder, status)

    def _watched(self, folder: Path) -> LiveRun:
        """Return a source of the run's state that writes ``monitor.json`` into its folder."""
        from pslib.cluster import Watcher
        from pslib.monitor.sources import LiveRun

        facts = {"cluster_id": self._run_id, "name": folder.name, "folder": str(folder)}
        watcher = Watcher(self.address, self._run_id, self._keys)
        return LiveRun(watcher, facts, self.address, folder, keeps=True)

    def _finish(self, recorder: RunRecorder, status: Mapping[str, Any]) -> None:
        """Write the summary and the last state of a run that is over; print the summary."""
        if self._live is not None:
            self._live.finish(status, status["error"], not status["error"])
        model = self._job.model.name
        best = best_possible(self._job)
        facts = {"job": model, "model": model, "seed": self._job.training.seed}
        facts |= {"best_possible_auc": best and best["auc"]}
        recorder.observe(of_kind(status, *EVALUATIONS) | {"events": status["event_log"]})
        ending = {"exit_code": EXIT_DONE, "phase": status["phase"], "error": status["error"]}
        if status["error"]:
            ending["exit_code"] = UnavailableError.exit_code
            say(str(status["error"]))
        summary = recorder.finish({**summary_of(status, (), self._config), **facts, **ending})
        if not status["error"]:
            note_saved(self._job, Path(self._job.out))
            for line in summary_lines(summary, Path(self._job.out), best):
                print(line, flush=True)
            say(f"{DONE['coordinator']}; {STAYS}")
