"""Server of the status page, in a thread of the process that shows it."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from errno import EACCES, EADDRINUSE
from pathlib import Path
from typing import TYPE_CHECKING

from pslib.errors import ConfigurationError
from pslib.monitor.access import TOKEN, Access, is_loopback
from pslib.process.listening import EVERYWHERE, listening_socket, url_host

if TYPE_CHECKING:
    from pslib.monitor.app import Source

HOST = "127.0.0.1"
"""Default address of the page."""

CONNECTIONS = 64
"""Connections at once, those included that a dropped client has not closed."""

STOP_S = 3.0
"""Time limit for the thread to end."""

TOKEN_CHARS_MIN = 20
"""Shortest token of a file: shorter ones can be guessed."""


def check_page(host: str = HOST, port: int = 0) -> None:
    """Check that the page can be served there, before a run begins.

    Raises
    ------
    ConfigurationError
        If Starlette or uvicorn is not installed, or the address can't be listened on.
    """
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            f"the page of a run needs {error.name}, which is not installed; "
            "`pip install starlette uvicorn` brings all it needs"
        ) from error
    _listen(host, port).close()


class PageServer:
    """Status page of a run, served until it is closed.

    Parameters
    ----------
    source : Source
        States of the run; not closed here.
    host : str
        Address or name to listen on; beyond loopback the page has a token.
    port : int
        0 is any free one.
    token : str or None
        Token that a reader needs; None: a random one beyond loopback, none on it.

    Raises
    ------
    ConfigurationError
        When the address can't be listened on, or the extra ``ui`` is not installed.
    """

    def __init__(self, source: Source, host: str = HOST, port: int = 0, token: str | None = None) -> None:
        check_page(host, port)
        import uvicorn

        from pslib.monitor.app import page_app

        self._socket = _listen(host, port)
        here = is_loopback(self._socket.getsockname()[0])
        token = token or (None if here else secrets.token_urlsafe(32))
        port = self._socket.getsockname()[1]
        self.url = _url(host, port, token)
        """Address of the page, for the reader."""
        config = uvicorn.Config(
            page_app(source, Access(here, token, port)),
            log_config=None,
            access_log=False,  # it would show the token
            log_level="critical",
            lifespan="on",
            http="h11",
            ws="none",
            loop="asyncio",
            server_header=False,
            proxy_headers=False,
            limit_concurrency=CONNECTIONS,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="pslib-page", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.should_exit = True
        self._thread.join(STOP_S)
        self._socket.close()

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])


def _listen(host: str, port: int) -> socket.socket:
    try:
        return listening_socket(host, port, CONNECTIONS)  # a reader that is quicker than the thread waits
    except OSError as error:
        why = str(error.strerror).partition(" (while")[0]  # of Python, which repeats the address
        of_port = error.errno in (EADDRINUSE, EACCES)
        hint = "give another port, or 0 for any" if of_port else "give an address of this machine"
        raise ConfigurationError(f"the page can't listen on {host}, port {port}: {why}; {hint}") from error


def _url(host: str, port: int, token: str | None) -> str:
    """Return the page's address; one that stands for all addresses is replaced by this machine's name."""
    name = socket.gethostname() if host in (*EVERYWHERE, "0.0.0.0") else host
    return f"http://{url_host(name)}:{port}/" + (f"?{TOKEN}={token}" if token else "")


def token_of(path: str | os.PathLike[str]) -> str:
    """Read the token in a file; one that does not exist is made, readable by its owner alone.

    Raises
    ------
    ConfigurationError
        When others can read the file, or what is in it can be guessed.
    """
    file = Path(path)
    try:
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as made:
            made.write(f"{secrets.token_urlsafe(32)}\n")
    except FileExistsError:
        pass
    except OSError as error:
        raise ConfigurationError(f"--token-file {file}: {error.strerror}") from error
    if not file.is_file():
        raise ConfigurationError(f"--token-file {file}: expected a file, or a name of one that is made")
    try:
        if file.stat().st_mode & 0o077:
            raise ConfigurationError(
                f"--token-file {file}: others than its owner can use it; try: chmod 600 {file}"
            )
        token = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--token-file {file}: it can't be read: {error}") from error
    if len(token) < TOKEN_CHARS_MIN or not all(one.isalnum() or one in "-_" for one in token):
        raise ConfigurationError(
            f"--token-file {file}: expected {TOKEN_CHARS_MIN} or more letters, digits, - and _; "
            "remove the file, and a token is made"
        )
    return token
