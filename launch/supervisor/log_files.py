"""Log files of a run, read together: the lines of all its processes, in the order of their times."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from pathlib import Path

from launch.supervisor.launcher_process import gone_launcher
from launch.worker.log_lines import MESSAGE
from pslib.clock import SystemClock
from pslib.errors import ConfigurationError
from pslib.monitor.run_folder import ended_run, records_of_script

LOOK_S = 0.2


class LogFiles:
    """Reader of the logs of a run, each from where it was read before.

    Parameters
    ----------
    folder : Path
        Folder of the run, or of its logs.
    role : str or None
        One process, as ``server-1``, or all of a role, as ``trainer``; None: all.

    Raises
    ------
    ConfigurationError
        When there are no logs, or none of that process.
    """

    def __init__(self, folder: Path, role: str | None) -> None:
        self._folder = folder
        self._logs = folder / "logs" if (folder / "logs").is_dir() else folder
        self._role = role
        self._read: dict[Path, int] = {}
        if not self._files():
            names = ", ".join(file.stem for file in sorted(self._logs.glob("*.log")))
            if role is not None and names:
                raise ConfigurationError(f"--role: expected one of {names}, or a role of them; got {role!r}")
            if about := records_of_script(folder):
                raise ConfigurationError(f"{about}; its lines went to that script's standard error")
            raise ConfigurationError(f"{folder}: expected the folder of a started run, with logs/*.log")

    def _files(self) -> list[Path]:
        files = sorted(self._logs.glob("*.log"))
        return [one for one in files if self._role in (None, one.stem, one.stem.rpartition("-")[0])]

    def news(self) -> Iterator[str]:
        """Yield the whole lines since the last call, by time, without messages to the launcher."""
        lines = heapq.merge(*map(self._news_of, self._files()), key=_time_of)
        yield from (line for line in lines if line.split(" ", 2)[1:2] != [MESSAGE])

    def _news_of(self, file: Path) -> Iterator[str]:
        with file.open("rb") as opened:
            opened.seek(self._read.get(file, 0))
            for line in opened:  # bytes end at a line feed only, text at other characters too
                if not line.endswith(b"\n"):
                    return
                self._read[file] = self._read.get(file, 0) + len(line)
                text = line.decode("utf-8", "replace").rstrip("\r\n")
                yield text.replace("\r", " ")  # of a bar, which would overwrite the beginning

    def follow(self, show: Callable[[str], object]) -> str | None:
        """Show the lines as they come until the run has ended; return a line if its launcher was killed."""
        while True:
            # Looked up in this order: a launcher writes its summary, and then ends; no line is missed.
            gone = gone_launcher(self._folder)
            ended = ended_run(self._folder)
            for line in self.news():
                show(line)
            if ended or gone:
                return None if ended else gone
            SystemClock().sleep_s(LOOK_S)


def _time_of(line: str) -> str:
    """Return the time at the beginning of a line, as text, which sorts alike."""
    return line.partition(" ")[0]
