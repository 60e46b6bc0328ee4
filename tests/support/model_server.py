"""A server of models in a thread of the test, and a client for it."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import uvicorn

import pslib
from pslib.clock import SystemClock
from pslib.serving.http_server import HttpServer
from pslib.serving.process import listen
from pslib.serving.repository import Follow, Repository
from pslib.serving.settings import ServeSettings
from tests.support.waiting import PATIENCE_S

LISTS = ("genres", "liked")
KEPT = ("age", "user", "movie", "word", "year", *LISTS)
"""Columns of the examples of `tests.support.models.zoo` that models of clicks read, or ignore."""
ROW = {"age": np.float32([0.5]), "user": np.int64([3]), "movie": ["m1"]} | {
    f"{name}{end}": value for name in LISTS for end, value in (("", ["a"]), (".lengths", np.int32([1])))
}
"""One example, as `pslib.serving.client.ScoringClient` takes it."""


class Client:
    """Client of a server: one connection a request."""

    def __init__(self, port: int, repository: Repository, server: HttpServer) -> None:
        self.port, self.repository, self.server = port, repository, server

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any, http.client.HTTPMessage]:
        """Return status, body (JSON parsed, else bytes) and headers of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        connection.request(method, path, data, dict(headers or {}))
        answer = connection.getresponse()
        found = answer.read()
        connection.close()
        is_json = answer.headers.get_content_type() == "application/json"
        return answer.status, json.loads(found) if is_json else found, answer.headers


@contextmanager
def served(
    sources: Mapping[str, str],
    token: str = "",
    follow: Callable[[ServeSettings], Follow] | None = None,
    **settings: Any,
) -> Iterator[Client]:
    """Serve checkpoints while the block runs."""
    options = ServeSettings(**{"refresh_s": 0, **settings})
    opener = None if follow is None else follow(options)
    repository = Repository(sources, pslib.load, options, SystemClock(), opener)
    server = HttpServer(repository, options, token)
    listener = listen("127.0.0.1", 0)
    running = uvicorn.Server(uvicorn.Config(server.app, log_config=None, lifespan="off"))
    thread = threading.Thread(target=lambda: asyncio.run(running.serve([listener])), daemon=True)
    thread.start()
    try:
        yield Client(listener.getsockname()[1], repository, server)
    finally:
        running.should_exit = True
        thread.join(PATIENCE_S)
        repository.close()
        listener.close()
