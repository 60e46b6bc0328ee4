"""``python -m launch.worker.main ROLE``: one process of a cluster, started by a launcher.

It prints lines for its launcher: ``pslib-started PID HOST``, ``pslib-listening ADDRESS``, ``pslib-result
JSON``, ``pslib-metrics HOST:PORT``, as a coordinator at its end ``pslib-over JSON``, ``pslib-final`` with an
error that its successor would meet again, and ``pslib-asked`` when a signal to all processes asks it to leave
(`pslib.process.shutdown`). Lines ``pslib-log JSON`` on standard error are records of its log
(`launch.worker.log_records`). All other output is for the user. Errors are one line on standard error and an
exit code, see `pslib.errors`.
"""

from __future__ import annotations

import argparse
import os
import runpy
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from launch.worker.log_records import send_crash, send_error, send_records
from launch.worker.watchdog import FROM_INPUT, die_with_launcher
from pslib.config import ANY_RANK, CLUSTER_ID_VARIABLE, COORDINATOR_VARIABLE, DEBUG_VARIABLE, KEYS_VARIABLE
from pslib.process.blas import TRAINERS_HERE, kernels_for
from pslib.process.machine import cores
from pslib.process.platform import set_allocator
from pslib.process.shutdown import ASKED, preemption

if TYPE_CHECKING:
    from pslib.errors import PslibError

_THREAD_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)

_ALLOCATOR = (
    (-3, 32 << 20),  # M_MMAP_THRESHOLD: the largest accepted value
    (-1, 256 << 20),  # M_TRIM_THRESHOLD: unused bytes that a trainer may keep at the top of its heap
    (-2, 64 << 20),  # M_TOP_PAD: growth step
)
"""``(parameter, bytes)`` for glibc's mallopt; parameter numbers as in its malloc.h."""

SWITCH_S = 0.0005
"""Time after which a thread that computes lets another one have the interpreter; Python's default is 5 ms.

A batch of 512 takes 20 ms, and threads that receive rows or send gradients wait for a part of it. DeepFM and
DNN at 512 are 3 % faster (median of 12 pairs of runs); at 4,096 nothing changes.
"""

LOGGER = "pslib.worker"
"""Logger of the errors with which a worker ends."""

EXIT_SCRIPT_FAILED = 1
"""Python's exit code for a script that ended with an exception."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one role to its end; returns the exit code."""
    options = _parser().parse_args(arguments)
    line = _first_line() if options.keys == FROM_INPUT else ""  # the watchdog takes over standard input
    if options.guarded:
        die_with_launcher()
    os.environ.pop(KEYS_VARIABLE, None)  # of another cluster: keys come from the launcher or not at all
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a script's lines appear at once
    send_records()
    return _run_reporting(lambda: _run(options, line))


def _run(options: argparse.Namespace, line: str) -> int:
    """Set up this process and run its role; `PreemptedError` at any time when asked to leave."""
    roles: dict[str, Callable[[argparse.Namespace], int]] = {
        "coordinator": _coordinator,
        "server": _server,
        "trainer": _trainer,
    }
    preemption.install()
    try:
        _tell("started", f"{os.getpid()} {socket.gethostname()}")
        set_threads(options.role)
        sys.setswitchinterval(SWITCH_S)
        if options.role != "coordinator":
            keep_memory()
        if options.metrics:
            from launch.worker.health_server import serve_metrics

            _tell("metrics", serve_metrics(options.metrics))
        return _with_keys(roles[options.role], options, line)
    finally:
        preemption.over()


def _first_line() -> str:
    """Read the first line of standard input, and no byte beyond it."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(0, 1)):
        line += byte
    return line.decode("utf-8", "replace")


def _with_keys(role: Callable[[argparse.Namespace], int], options: argparse.Namespace, line: str) -> int:
    """Run the role with the key from the launcher or from a file, in ``options.keys``."""
    if options.keys is not None:
        from pslib.transport.keys import Keys, read_keys

        options.keys = Keys.from_text(line, "the launcher's key") if line else read_keys(options.keys)
    return role(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m launch.worker.main")
    parser.add_argument("--guarded", action="store_true", help="end when standard input is closed")
    roles = parser.add_subparsers(dest="role", required=True)
    for name in ("coordinator", "server", "trainer"):
        role = roles.add_parser(name)
        role.add_argument("--cluster-id", required=True)
        role.add_argument("--metrics", metavar="ADDRESS", help="serve /metrics at tcp://address:port")
        role.add_argument("--keys", metavar="FILE", help="a key file; -: the first line of standard input")
        if name != "trainer":
            role.add_argument("--listen", required=True, help="tcp://address:port, port 0 for any")
            role.add_argument("--insecure-network", action="store_true", help="listen beyond this machine")
        if name != "coordinator":
            role.add_argument("--coordinator", required=True, help="tcp://address:port")
            role.add_argument("--rank", type=int, default=ANY_RANK, help="the rank to take (default: any)")
            if name == "server":
                role.add_argument("--log", metavar="DIR", help="folder of the cluster's logs; needs --rank")
            role.add_argument("--generation", type=int, default=0, help="how often it was started there")
        else:
            role.add_argument("--config", required=True, help="ClusterConfig as JSON")
            role.add_argument("--resume", action="store_true", help="of a run that had ended")
            role.add_argument("--journal", metavar="DIR", help="where to write what a successor must know")
        if name == "trainer":
            role.add_argument("--job", help="a checked job file to train")
            role.add_argument("script", nargs=argparse.REMAINDER, help="a script and its arguments")
    return parser


def _tell(word: str, text: str) -> None:
    print(f"pslib-{word} {text}", flush=True)


def set_threads(role: str) -> None:
    """Share the cores among the trainers of this machine, before any library has counted them.

    For models that are computed as a whole; others use their own threads (`pslib.trainer.pipeline.compute`).
    One core stays with servers and reading threads. OpenBLAS busy-waits for its slowest thread: with 2
    threads on 2 shared cores, DeepFM fell from 22,000 to 5,000 examples/s.
    """
    sharing = int(os.environ.get(TRAINERS_HERE, "1"))
    threads = max(1, (cores() - 1) // sharing) if role == "trainer" else 1
    for variable in _THREAD_VARIABLES:
        os.environ.setdefault(variable, str(threads))
    if role == "trainer":
        for variable, value in kernels_for().items():
            os.environ.setdefault(variable, value)


def keep_memory() -> None:
    """Make glibc's allocator keep the memory of a step for the next one.

    Every step allocates the same activations again. Above 128 KiB to 32 MiB glibc maps them, or trims the
    heap when they are freed, and the kernel clears the pages again: 7,400 page faults a step of DeepFM
    400-400-400 with batches of 4,096, 131 ms instead of 116 ms (2 cores, 2026-11-21). Arrow's own allocators
    also return the memory of a decoded row group: with glibc's the reader thread takes 3.5 ms a batch of
    4,096 instead of 4.6. Other C libraries are not configured.
    """
    if set_allocator(_ALLOCATOR):
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # before Arrow is loaded


def _run_reporting(role: Callable[[], int]) -> int:
    from pslib.errors import EXIT_INTERRUPTED, PreemptedError, PslibError

    try:
        return role()
    except PslibError as error:
        return _reported(error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
        if preemption.asked:  # raised during an import, for example, it may surface as another error
            send_error(f"asked to leave (SIGTERM): {error}", LOGGER, trace=False)
            return PreemptedError.exit_code
        send_error(f"{type(error).__name__}: {error}", LOGGER, trace=True)
        return PslibError.exit_code


def _reported(error: PslibError) -> int:
    """Print the lines of an error; return the exit code."""
    from pslib.coordinator.jobs import IN_STEP
    from pslib.errors import PreemptedError

    if preemption.asked and IN_STEP in str(error):  # all were asked, and another one has left first
        error = PreemptedError(ASKED)
    if is_final(error):
        _tell("final", "")  # before its lines: the launcher shows those of the first such error only
    level = "warning" if isinstance(error, PreemptedError) else "error"
    send_error(str(error), LOGGER, trace=os.environ.get(DEBUG_VARIABLE) == "1", level=level)
    return error.exit_code


def is_final(error: Exception) -> bool:
    """Return whether a successor of this process would end with the same error.

    A full disk of logs or of the last checkpoint has been waited for. A server at its memory limit is still
    there a second later, when the successor sends the refused batch: eviction runs at the end of a trainer's
    window, after this batch, unless another trainer's window happens to end first, and ``when_full`` evicts
    before any request is refused. A server that joins takes units only after a command of the user, which
    takes longer than all restarts.
    """
    from pslib.errors import CheckpointFullError, LogStillFullError, MemoryLimitError

    return isinstance(error, CheckpointFullError | LogStillFullError | MemoryLimitError)


def _coordinator(options: argparse.Namespace) -> int:
    import json

    from pslib.config import ClusterConfig
    from pslib.coordinator.coordinator import run_coordinator

    config = ClusterConfig.from_dict(json.loads(options.config))
    return run_coordinator(
        config,
        options.cluster_id,
        options.listen,
        lambda address: _tell("listening", address),
        insecure_network=options.insecure_network,
        keys=options.keys,
        journal=options.journal,
        resume=options.resume,
        tell_end=lambda status: _tell("over", json.dumps(status)),
        ranks_named=options.guarded,  # a launcher gives each of its trainers a rank
    )


def _server(options: argparse.Namespace) -> int:
    from pslib.client.membership import RankRequest
    from pslib.server.server import run_server

    return run_server(
        options.coordinator,
        options.cluster_id,
        options.listen,
        insecure_network=options.insecure_network,
        keys=options.keys,
        rank_request=RankRequest(options.rank, options.generation),
        log=options.log,
    )


def _trainer(options: argparse.Namespace) -> int:
    os.environ[COORDINATOR_VARIABLE] = options.coordinator
    os.environ[CLUSTER_ID_VARIABLE] = options.cluster_id
    from pslib.client.membership import FREE_RANK, RankRequest
    from pslib.cluster import take_rank, use_keys, use_rank
    from pslib.errors import ConfigurationError

    if options.keys is not None:
        use_keys(options.keys)
    use_rank(RankRequest(options.rank, options.generation))
    if options.job is not None:
        from launch.job.job import read_job
        from launch.worker.train_job import train_job

        _tell("result", train_job(read_job(options.job)))
        return 0
    code = _run_script(options.script)
    if code == 0 and take_rank() != FREE_RANK:
        raise ConfigurationError(
            f"{options.script[0]}: it has ended without pslib.connect(), and all others wait for that"
        )
    return code


def _run_script(arguments: Sequence[str]) -> int:
    """Run a user's script like ``python SCRIPT ARGUMENTS``."""
    from pslib.errors import ConfigurationError, PslibError

    script = arguments[0]
    if not Path(script).is_file():
        raise ConfigurationError(f"{Path(script).absolute()}: no such script")
    sys.argv = list(arguments)
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        runpy.run_path(script, run_name="__main__")
    except (PslibError, KeyboardInterrupt):
        raise
    except SystemExit as ending:
        if ending.code is None or isinstance(ending.code, int):
            return ending.code or 0
        print(ending.code, file=sys.stderr, flush=True)
        return EXIT_SCRIPT_FAILED
    except BaseException:
        send_crash()
        return EXIT_SCRIPT_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
