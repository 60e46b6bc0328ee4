"""The status page as a web application over a source of states: its files, its JSON, its events.

`/api/events` has no queue: a client is sent the newest state when it has taken the one before. A state is
written as JSON once, whatever the number of clients; without clients none is.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pslib.errors import PslibError
from pslib.monitor.access import HEADERS, Access
from pslib.text import json_value

CLIENTS = 16
"""Pages that may be open at once."""

BEAT_S = 5.0
"""Time without news after which a client is told that the connection lives."""

SLOW_S = 10.0
"""Time in which a client must take a state; one that does not is dropped."""

LOOK_S = 1.0
"""Longest wait for a newer state; the end of the page waits for it."""

PAUSE_S = 0.05
"""Pause after a look without news: a source that is closed returns at once."""

FOLDER = Path(__file__).parent / "web"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
"""Types of the page's files."""


class Source(Protocol):
    """States of a run; `pslib.monitor.sources` has those of a running and of an ended one."""

    def state(self) -> dict[str, Any]:
        """Return the present state."""
        ...

    def samples(self) -> dict[str, Any]:
        """Return the samples of the run so far."""
        ...

    def changed(self, number: int, timeout_s: float) -> int:
        """Wait until there is a state after that number; return the number of the present one."""
        ...

    def dump(self, role: str, rank: int) -> str:
        """Return the stacks of a process."""
        ...


class States:
    """Newest state as JSON, for all clients.

    Parameters
    ----------
    source : Source
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._number, self._text = -1, b""
        self._is_new, self._wanted = asyncio.Event(), asyncio.Event()
        self.clients = 0

    @asynccontextmanager
    async def client(self) -> AsyncIterator[None]:
        """Count a client while the block runs: states are looked for while there is one."""
        self.clients += 1
        self._wanted.set()
        try:
            yield
        finally:
            self.clients -= 1
            if not self.clients:
                self._wanted.clear()

    async def follow(self) -> None:
        """Take each new state of the source while there are clients."""
        while True:
            await self._wanted.wait()
            number = await run_in_threadpool(self._source.changed, self._number, LOOK_S)
            if number == self._number:
                await asyncio.sleep(PAUSE_S)
                continue
            text = await run_in_threadpool(lambda: json_of(self._source.state()))
            self._number, self._text = number, text
            self._is_new.set()
            self._is_new = asyncio.Event()

    async def after(self, number: int, timeout_s: float) -> tuple[int, bytes] | None:
        """Return number and text of the newest state when it is another one; None after a time without."""
        if self._number == number:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_new.wait(), timeout_s)
        return None if self._number in (number, -1) else (self._number, self._text)


class Events:
    """``/api/events``: server-sent events, each a whole state whose id is its number.

    Parameters
    ----------
    states : States
    limit : int
        Clients at once; the next one is refused.
    slow_s : float
        As `SLOW_S`.
    beat_s : float
        As `BEAT_S`.
    """

    def __init__(self, states: States, limit: int, slow_s: float, beat_s: float) -> None:
        self._states, self._limit = states, limit
        self._slow_s, self._beat_s = slow_s, beat_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one client until it leaves, is too slow, or the page ends."""
        if self._states.clients >= self._limit:
            line = f"{self._limit} pages are open, the most there may be; close one"
            await JSONResponse({"error": line}, 503, {"retry-after": "5"})(scope, receive, send)
            return
        async with self._states.client():
            tasks = [asyncio.create_task(self._write(send)), asyncio.create_task(_gone(receive))]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _write(self, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        number, text = -1, b"retry: 1000\n\n"
        with suppress(TimeoutError):
            while True:
                body: Message = {"type": "http.response.body", "body": text, "more_body": True}
                await asyncio.wait_for(send(body), self._slow_s)
                newest = await self._states.after(number, self._beat_s)
                text = b"event: beat\ndata:\n\n"
                if newest is not None:
                    number, state = newest
                    text = b"event: state\nid: %d\ndata: %s\n\n" % (number, state)


async def _gone(receive: Receive) -> None:
    """Wait until the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


class Guard:
    """Application around another one: refuses what `Access` refuses, and adds the headers.

    Parameters
    ----------
    app : ASGIApp
    access : Access
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        query = scope["query_string"].decode("latin-1")
        headers = {name: value for name, value in Headers(scope=scope).items()}  # the last of a name counts
        refused = self._access.refusal(scope["method"], scope["path"], query, headers)
        shown = not refused and scope["path"] == "/" and self._access.is_token(query)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
                if shown:
                    MutableHeaders(scope=message).append("set-cookie", self._access.cookie)
            await send(message)

        answer = PlainTextResponse(f"{refused.line}\n", refused.status) if refused else self._app
        await answer(scope, receive, with_headers)


class Answers:
    """Answers to all requests but those of ``/api/events``.

    Parameters
    ----------
    source : Source
    """

    def __init__(self, source: Source) -> None:
        self._source, self._files = source, files_of(FOLDER)

    async def page(self, request: Request) -> Response:
        """Answer with the page."""
        return Response(self._files["index.html"], media_type=TYPES[".html"])

    async def static(self, request: Request) -> Response:
        """Answer with a file of the page."""
        name = request.path_params["name"]
        if name not in self._files:
            return PlainTextResponse("no such file\n", 404)
        return Response(self._files[name], media_type=TYPES[Path(name).suffix])

    async def state(self, request: Request) -> Response:
        """Answer with the present state."""
        return _json(await run_in_threadpool(lambda: json_of(self._source.state())))

    async def samples(self, request: Request) -> Response:
        """Answer with the samples."""
        return _json(await run_in_threadpool(lambda: json_of(self._source.samples())))

    async def stacks(self, request: Request) -> Response:
        """Answer with the stacks of a process."""
        role, rank = request.path_params["role"], request.path_params["rank"]
        try:
            return JSONResponse({"text": await run_in_threadpool(self._source.dump, role, rank)})
        except PslibError as error:
            return JSONResponse({"error": str(error)}, 409)


def page_app(
    source: Source,
    access: Access,
    *,
    clients: int = CLIENTS,
    slow_s: float = SLOW_S,
    beat_s: float = BEAT_S,
) -> ASGIApp:
    """Return the page of a run.

    Parameters
    ----------
    source : Source
        Not closed here.
    access : Access
    clients : int
        As `CLIENTS`.
    slow_s, beat_s : float
        As `SLOW_S` and `BEAT_S`.
    """
    states, answers = States(source), Answers(source)

    @asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        follower = asyncio.create_task(states.follow())
        try:
            yield
        finally:
            follower.cancel()

    routes = [
        Route("/", answers.page),
        Route("/static/{name:path}", answers.static),
        Route("/api/state", answers.state),
        Route("/api/samples", answers.samples),
        Route("/api/events", Events(states, clients, slow_s, beat_s)),
        Route("/api/stacks/{role}/{rank:int}", answers.stacks, methods=["POST"]),
    ]
    return Guard(Starlette(routes=routes, lifespan=life), access)


def files_of(folder: Path) -> Mapping[str, bytes]:
    """Read the page's files by their names: no other file can be asked for."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in TYPES}


def json_of(value: Any) -> bytes:
    """Return a value as JSON; what is no finite number, as the loss of a training that diverged, is null."""
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(json_value(value), allow_nan=False, separators=(",", ":"))
    return text.encode()


def _json(text: bytes) -> Response:
    return Response(text, media_type="application/json")
