"""Local end of a worker in an actor of Ray: a thread that places the actor and relays what it prints."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from launch.worker.log_lines import MESSAGE_PREFIX, PEOPLE_PREFIX
from pslib.clock import SystemClock
from pslib.errors import ConfigurationError, UnavailableError

PLACE_S = 45.0
"""Time limit to find room on a node. Ray takes 15 s to notice that a node is lost, and until then it sends an
actor there; a lost server's peers wait for it for `pslib.config.Timing.restart_s`, 60 s."""
PAUSE_S = 1.0
"""Pause before the next actor, after one that has never run."""

LOST = 255
"""Exit code of a worker whose actor is lost; ssh's code for a lost connection."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start of a worker on a node.

    Attributes
    ----------
    arguments : sequence of str
        Arguments of Python.
    variables : mapping
        Environment variables beside those of the node.
    folder : str
        Folder to run in.
    """

    arguments: Sequence[str]
    variables: Mapping[str, str]
    folder: str


class _Input:
    """Standard input of a worker; kept here until the worker has been started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._actor: Any = None
        self._kept: list[bytes] = []
        self._closed = False

    def write(self, data: bytes, /) -> None:
        with self._lock:
            if self._actor is None:
                self._kept.append(data)
            else:
                self._actor.write.remote(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        with self._lock:
            if self._actor is not None and not self._closed:
                self._actor.close.remote()
            self._closed = True

    def begin(self, actor: Any) -> None:
        """Send to a started worker what has come before."""
        with self._lock:
            self._actor = actor
            for data in self._kept:
                actor.write.remote(data)
            if self._closed:
                actor.close.remote()

    def end(self) -> None:
        """Drop what comes from now on: Ray would begin a new cluster when it is called after the end."""
        with self._lock:
            self._actor, self._kept = None, []


class RayProcess:
    """Worker in an actor of Ray (`launch.supervisor.run_spec.Process`).

    It ends with the worker's exit code; with `LOST` when the actor is lost, with that of `UnavailableError`
    when no node has room within `PLACE_S`.

    Parameters
    ----------
    make_actor : callable
        Makes an actor, a `launch.places.ray_actor.ProcessActor`.
    start_on : callable
        Returns the start of the worker on a node, given by its id and address.
    needed : bool
        True if the run ends when no node has room; False for a trainer, without which others go on.
    """

    def __init__(
        self, make_actor: Callable[[], Any], start_on: Callable[[str, str], Start], needed: bool
    ) -> None:
        self.where = "Ray"
        read, write = os.pipe()
        self._input = _Input()
        self.stdin = self._input
        self.stdout: IO[bytes] = os.fdopen(read, "rb")
        self._output: IO[bytes] = os.fdopen(write, "wb", buffering=0)
        self._make_actor, self._start_on, self._needed = make_actor, start_on, needed
        self._clock = SystemClock()
        self._lock = threading.Lock()
        self._actor: Any = None
        self._killed = False
        self._code: int | None = None
        self.thread = threading.Thread(target=self._run, name="actor of Ray", daemon=True)
        self.thread.start()

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        return self._code

    def kill(self) -> None:
        """Kill the actor, whose end ends the worker."""
        with self._lock:
            self._killed = True
            self._let_go()

    def _let_go(self) -> None:
        """End the actor; Ray counts it as ended at once, also one on an unreachable node."""
        import ray

        if self._actor is not None:
            ray.kill(self._actor)
            self._actor = None

    def _run(self) -> None:
        import ray

        code = LOST
        try:
            code = self._relay()
        except ray.exceptions.RayError as error:
            if not self._killed:
                self._say(f"{PEOPLE_PREFIX}its actor of Ray is lost: {_in_a_line(error)}")
        finally:
            self._input.end()
            with self._lock:
                self._let_go()
                code = -signal.SIGKILL if self._killed else code
            self._output.close()
            self._code = code

    def _relay(self) -> int:
        """Run the worker to its end; return its exit code."""
        import ray

        placed = self._placed()
        if placed is None:
            return UnavailableError.exit_code
        actor, node, address = placed
        self.where = address
        start = self._start_on(node, address)
        if problem := ray.get(actor.start.remote(start.arguments, start.variables, start.folder)):
            self._say(f"{PEOPLE_PREFIX}it can't be started on {address}: {problem}")
            return ConfigurationError.exit_code
        self._input.begin(actor)
        read = actor.read.options(concurrency_group="output")
        while True:
            data, code = ray.get(read.remote())
            self._output.write(data)
            if code is not None:
                return int(code)

    def _placed(self) -> tuple[Any, str, str] | None:
        """Return an actor with id and address of its node; None when there was no room in time."""
        import ray

        end_s = self._clock.now_s() + PLACE_S
        why = no_room = "none has room"
        while (left_s := end_s - self._clock.now_s()) > 0:
            with self._lock:
                if self._killed:
                    return None
                actor = self._actor = self._make_actor()
            try:
                node, address = ray.get(actor.node.remote(), timeout=left_s)
                return actor, node, address
            except ray.exceptions.GetTimeoutError:
                why = no_room
                break
            except (
                ray.exceptions.RayActorError
            ) as error:  # sent to a node of which Ray learns that it is lost
                why = _in_a_line(error)
                self._clock.sleep_s(PAUSE_S)
        if self._needed:
            self._say(f"{MESSAGE_PREFIX}final ")  # a successor would wait as well
        self._say(f"{PEOPLE_PREFIX}no node of Ray took it in {PLACE_S:.0f} s: {why}; see ray status")
        return None

    def _say(self, line: str) -> None:
        self._output.write(f"{line}\n".encode())


def _in_a_line(error: Exception) -> str:
    """Return an error of Ray without its table of the actor."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("\t")]
    return " ".join(line.strip() for line in lines)
