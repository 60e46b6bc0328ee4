"""The process of `pslib serve`: loads models, listens, looks for newer checkpoints, leaves in order."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import uvicorn

from pslib.checkpoint import newest, newest_of_run
from pslib.clock import Clock, SystemClock
from pslib.errors import CheckpointError, ConfigurationError
from pslib.process.blas import blas_threads
from pslib.process.listening import listening_socket, url_host
from pslib.serving.http_server import HttpServer
from pslib.serving.repository import Follow, Load, Repository
from pslib.serving.settings import ServeSettings
from pslib.serving.zmq_server import ZmqServer
from pslib.transport import ServerLink

CONNECTIONS_WAITING = 2048
LOOK_S = 2.0
"""Interval of looks for a first checkpoint."""

_log = logging.getLogger(__name__)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; see `listening_socket`.

    Raises
    ------
    ConfigurationError
        If the address is wrong or taken.
    """
    try:
        return listening_socket(host, port, CONNECTIONS_WAITING)
    except OSError as error:
        raise ConfigurationError(
            f"--host {host} --port {port}: can't listen there: {error.strerror}"
        ) from error


def serve(
    sources: Mapping[str, str],
    load: Load,
    settings: ServeSettings,
    listener: socket.socket,
    tell: Callable[[str], None],
    admin_token: str = "",
    release: str = "",
    link: ServerLink | None = None,
    follow: Follow | None = None,
) -> None:
    """Serve models until SIGTERM or Ctrl-C; requests under way are answered.

    Parameters
    ----------
    sources : mapping of str to str
        Checkpoint, folder of numbered ones, or folder of a run of each model, by its name.
    load : callable
        Opens the model of a checkpoint.
    settings : ServeSettings
    listener : socket
    tell : callable
        Gets lines for people.
    admin_token, release : str
        See `HttpServer`.
    link : ServerLink or None
        Of a `ZmqServer` beside it.
    follow : callable or None
        Opens models that follow the cluster of their run; no newer checkpoint is looked for then.

    Raises
    ------
    CheckpointError
        If a model can't be loaded.
    """
    clock = SystemClock()
    await_checkpoints(sources, settings.wait_s, clock, tell)
    with blas_threads(1):  # requests are small: a second thread a product would wait for the first
        repository = Repository(sources, load, settings, clock, follow)
        server = HttpServer(repository, settings, admin_token, release)
        for name in repository.names:
            one = repository.model(name).current
            tell(f"{name}: version {one.number}, {one.model.rows:,} rows, {one.path}")
        host, port = listener.getsockname()[:2]
        tell(f"serving at http://{url_host(host)}:{port}")
        beside = ZmqServer(repository, settings, link, clock) if link is not None else None
        if beside is not None:
            tell(f"serving at {beside.address}")
        over = threading.Event()
        watcher = threading.Thread(
            target=_watch,
            args=(repository, settings.refresh_s, over, tell),
            name="pslib-versions",
            daemon=True,
        )
        refreshes = settings.refresh_s > 0 and follow is None
        if refreshes:
            watcher.start()

        def leave() -> None:
            server.leaving = True
            if beside is not None:
                beside.leave()

        try:
            asyncio.run(_listen(server, settings, listener, leave))
        finally:
            over.set()
            if beside is not None:
                beside.close()
            if refreshes:
                watcher.join()  # it may be loading a version, whose threads would outlive the repository's
            repository.close()


def await_checkpoints(
    sources: Mapping[str, str], wait_s: float, clock: Clock, tell: Callable[[str], None]
) -> None:
    """Wait until each source has a checkpoint, for some seconds altogether; why there is none is told once.

    Raises
    ------
    CheckpointError
        If one has none by then.
    """
    until_s, told = clock.now_s() + wait_s, ""
    for name, source in sources.items():
        while True:
            try:
                newest(newest_of_run(source))
                break
            except CheckpointError as error:
                if clock.now_s() >= until_s:
                    raise
                line = f"{name}: waits up to {wait_s:g} s for a checkpoint: {error}"
                if line != told:
                    tell(line)
                told = line
            clock.sleep_s(LOOK_S)


async def _listen(
    server: HttpServer, settings: ServeSettings, listener: socket.socket, leave: Callable[[], None]
) -> None:
    config = uvicorn.Config(
        server.app,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=max(1, int(settings.drain_s)),
        timeout_keep_alive=75,  # above the 60 s of usual load balancers, so that they close first
        lifespan="off",
        server_header=False,
    )
    uvicorn_server = _Server(config)

    def begin_to_leave() -> None:
        leave()
        uvicorn_server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, begin_to_leave)
    await uvicorn_server.serve([listener])


class _Server(uvicorn.Server):
    """uvicorn's server without signal handlers of its own: they would raise the signal again at the end."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def _watch(
    repository: Repository, every_s: float, over: threading.Event, tell: Callable[[str], None]
) -> None:
    last: list[str] = []
    while not over.wait(every_s):
        try:
            lines = repository.refresh()
            for line in lines:
                if line not in last:  # a failure is told once, not every time
                    tell(line)
            last = lines
        except Exception:  # or a model would stay as old as it is, and no one would know why
            _log.exception("newer checkpoints could not be looked for; the next try is in %g s", every_s)
