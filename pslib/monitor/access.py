"""Access to the status page: which requests are answered, and the headers of every answer.

On loopback, everybody of this machine may look. A page of another site must not: it could send requests
through the reader's browser, or name this machine by a name of its own (DNS rebinding). So the ``Host`` must
be one of loopback, and what another site causes is refused. Elsewhere, and where a token is given, a request
needs that token, once, in the page's address; a cookie then stands for it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from urllib.parse import SplitResult, parse_qs, urlsplit

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
"""Headers of every answer; without inline scripts, a text that got into the page could run nothing."""

TOKEN = "token"
"""Parameter of the page's address."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Answer to a request that is refused: its status and one line."""

    status: int
    line: str


def is_loopback(host: str) -> bool:
    """Return whether a name or an address without port is one of loopback."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Access:
    """Rules by which requests are answered.

    Parameters
    ----------
    loopback : bool
        True if the page listens on loopback.
    token : str or None
        Token that the page's address must have; None: no token, which only loopback allows.
    port : int
        Of the page. It stands in the cookie's name: cookies of one host are the same for all its ports.
    """

    def __init__(self, loopback: bool, token: str | None, port: int = 0) -> None:
        assert loopback or token, "a page that others reach has a token"
        self._loopback, self._token = loopback, token
        self._name, self._session = f"pslib_page_{port}", secrets.token_urlsafe(32)

    def refusal(self, method: str, path: str, query: str, headers: Mapping[str, str]) -> Refusal | None:
        """Return why a request is refused; None when it is answered.

        Parameters
        ----------
        method, path, query : str
            Of the request.
        headers : mapping
            With names in lower case.
        """
        host = headers.get("host", "")
        if self._loopback and not is_loopback(_split(f"//{host}").hostname or ""):
            return Refusal(403, f"expected a Host of loopback, as localhost, got {host[:80]!r}")
        if of_other_site(method, path, headers):
            return Refusal(403, "this request was caused by a page of another site; open the page itself")
        if self._token is None or self._is_known(headers) or (path == "/" and self.is_token(query)):
            return None
        return Refusal(401, "expected the token: open the address that pslib printed when the page began")

    def is_token(self, query: str) -> bool:
        """Return whether the query of an address holds the token."""
        given = parse_qs(query).get(TOKEN, [""])[0]
        return self._token is not None and _equal(given, self._token)

    @property
    def cookie(self) -> str:
        """Value of ``Set-Cookie`` for one who has shown the token: for this site's own requests only."""
        return f"{self._name}={self._session}; Path=/; HttpOnly; SameSite=Strict"

    def _is_known(self, headers: Mapping[str, str]) -> bool:
        try:
            given = SimpleCookie(headers.get("cookie", "")).get(self._name)
        except CookieError:
            return False
        return given is not None and _equal(given.value, self._session)


def of_other_site(method: str, path: str, headers: Mapping[str, str]) -> bool:
    """Return whether a browser says that another site has caused a request.

    A link to the page may stand anywhere: to follow it shows the other site nothing.
    """
    if "origin" in headers and _split(headers["origin"]).netloc != headers.get("host"):
        return True
    site = headers.get("sec-fetch-site", "none")
    link = (method, path, headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest"))
    return site not in ("none", "same-origin") and link != ("GET", "/", "navigate", "document")


def _split(address: str) -> SplitResult:
    """Split an address; one that is malformed has no host."""
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")


def _equal(given: str, expected: str) -> bool:
    """Compare in a time that tells nothing about where they differ."""
    return secrets.compare_digest(given.encode(), expected.encode())
