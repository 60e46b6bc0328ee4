"""Requests to a page that is served in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from typing import Any
from urllib.parse import urlsplit

from pslib.monitor.page_server import PageServer

TIMEOUT_S = 20.0


class Answer:
    """Status, headers and body of an answer."""

    def __init__(self, response: HTTPResponse) -> None:
        self.status, self.headers = response.status, response.headers
        self.text = response.read().decode()

    @property
    def plain(self) -> Any:
        """The body as JSON."""
        return json.loads(self.text)


def ask(
    url: str,
    path: str,
    headers: Mapping[str, str] | None = None,
    method: str = "GET",
    host: str | None = None,
) -> Answer:
    """Send one request as a browser would, and no header that is not given."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT_S)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        connection.putheader("Host", urlsplit(url).netloc if host is None else host)
        for name, value in (headers or {}).items():
            connection.putheader(name, value)
        connection.endheaders()
        return Answer(connection.getresponse())
    finally:
        connection.close()


@contextmanager
def events(url: str, headers: Mapping[str, str] | None = None) -> Iterator[Iterator[tuple[str, str, str]]]:
    """Yield an iterator of events of a page, each its kind, its id and its data."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/api/events", headers=dict(headers or {}))
        response = connection.getresponse()
        assert response.status == 200, response.read()
        yield _parsed(response)
    finally:
        connection.close()


def _parsed(response: HTTPResponse) -> Iterator[tuple[str, str, str]]:
    fields: dict[str, str] = {}
    for line in response:
        name, _, value = line.decode().rstrip("\n").partition(":")
        if name:
            fields[name] = value.strip()
        elif "event" in fields:
            yield fields["event"], fields.get("id", ""), fields.get("data", "")
            fields = {}


@contextmanager
def served(source: Any, **settings: Any) -> Iterator[PageServer]:
    """Serve a page while the block runs."""
    page = PageServer(source, **settings)
    try:
        yield page
    finally:
        page.close()
        source.close()
