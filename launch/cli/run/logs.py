"""``pslib logs`` and ``pslib stop``."""

from __future__ import annotations

import sys
from pathlib import Path
from shlex import quote

from launch.cli.command import FOLDER, argument, command, flag, option
from pslib.errors import EXIT_DONE


@command(
    "logs",
    """
pslib logs runs/clicks
pslib logs runs/clicks --follow --role server-1
""",
)
@argument("run", "RUN", "the run's folder", FOLDER)
@flag("--follow", "show lines as they come, until the run has ended or its launcher was killed")
@option("--role", "NAME", "one process, as server-1, or all of a role, as trainer", str)
def logs_command(run: str, follow: bool, role: str | None) -> int:
    """Print the logs of all processes of a run, the launcher included, in the order of time.

    A line has its time (UTC), its level, and the process that wrote it. Logs in JSON are shown as the same
    text.
    """
    from launch.supervisor.log_files import LogFiles

    files = LogFiles(Path(run), role)
    if follow:
        if gone := files.follow(lambda line: print(line, flush=True)):
            print(f"pslib: {gone}", file=sys.stderr)
    else:
        for line in files.news():
            print(line)
    return EXIT_DONE


@command("stop", "pslib stop runs/clicks")
@argument("run", "RUN", "the run's folder", FOLDER)
def stop_command(run: str) -> int:
    """Let a run save what it has trained and end, as SIGTERM to its launcher does.

    It returns when the run has ended. pslib train --resume goes on with it.
    """
    from launch.job.paths import from_here
    from launch.supervisor.discovery import end_line
    from launch.supervisor.launcher_process import stop_launcher
    from pslib.monitor.run_folder import ended_run

    if ended := ended_run(run):
        print(end_line(ended))
        return EXIT_DONE
    pid = stop_launcher(run, lambda line: print(f"pslib: {line}", file=sys.stderr, flush=True))
    ended = ended_run(run)
    if ended is None:
        print(f"pid {pid}, the launcher of {run}, has ended without a summary")
        return EXIT_DONE
    print(end_line(ended))
    if ended.exit_code != EXIT_DONE and (ended.folder / "job.yaml").exists():
        print(f"go on with: pslib train --resume {quote(from_here(ended.folder))}")
    return EXIT_DONE
