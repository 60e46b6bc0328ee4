"""Requests to a server of models over HTTP, for the commands that ask one."""

from __future__ import annotations

import json
from http.client import HTTPException
from typing import Any
from urllib.request import HTTPErrorProcessor, Request, build_opener

from pslib.errors import ConfigurationError, PslibError, UnavailableError

ANSWER_S = 30.0
"""Time for a server to answer."""


class BusyError(UnavailableError):
    """The server has too much to do; the caller may ask again."""


class _EveryStatus(HTTPErrorProcessor):
    """Gives each answer as it is: a redirection that is followed would get the token, by GET."""

    def http_response(self, request: Request, response: Any) -> Any:
        return response

    https_response = http_response


def ask(url: str, path: str, given: Any, token: str = "") -> dict[str, Any]:
    """Ask a server of models by POST; return its answer.

    Parameters
    ----------
    url : str
        Of the server, ``http://host:port`` or ``https://host``.
    path : str
        Begins with a slash.
    given : object
        Sent as JSON.
    token : str
        The server's, where a request needs one.

    Raises
    ------
    ConfigurationError
        If no such server can be at the URL, or the request is wrong.
    BusyError
        If it has too much to do.
    UnavailableError
        If it does not answer.
    PslibError
        If it failed.
    """
    if not url.lower().startswith(("http://", "https://")):
        raise ConfigurationError(f"URL: expected http://HOST:PORT or https://HOST, got {url!r:.80}")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        request = Request(url.rstrip("/") + path, json.dumps(given).encode(), headers, method="POST")
        with build_opener(_EveryStatus).open(request, timeout=ANSWER_S) as answer:
            body = answer.read()
    except (OSError, HTTPException, ValueError) as error:  # URLError is an OSError
        reason = getattr(error, "reason", error)
        raise UnavailableError(f"{url}: expected an answer of pslib serve: {reason}") from error
    if 300 <= answer.status < 400:
        place = answer.headers["Location"]
        raise ConfigurationError(f"{url}: it redirects to {place}; expected the URL of pslib serve itself")
    found = _plain(body, url)
    if answer.status >= 400:
        kind = (
            ConfigurationError if answer.status < 500 else BusyError if answer.status == 503 else PslibError
        )
        raise kind(f"{url}: {found.get('error', answer.reason)}")
    return found


def _plain(body: bytes, url: str) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigurationError(f"{url}: expected pslib serve there, got {body!r:.60}")
    return found
