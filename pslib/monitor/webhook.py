"""Webhook: begin, events and end of a run, each as JSON to a URL."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pslib.clock import utc_now_s
from pslib.monitor.outbox import Outbox
from pslib.recorder.callback import Callback
from pslib.settings import Setting, Settings
from pslib.text import cut

LAST_S = 15.0
"""Seconds that the end of a run may wait for the last messages."""
PAUSE_S = 1.0
"""Seconds before the second try of a message; twice as many before each further one."""
AGAIN = (408, 429)
"""Answers below 500 after which another try may succeed."""


@dataclass(frozen=True, kw_only=True)
class WebhookSettings(Settings):
    """Target of the messages of a run, with its retries."""

    url: Annotated[
        str,
        Setting(
            "Messages are posted there, as JSON; it is written into the run's job.yaml.",
            pattern=r"https?://\S+",
            texts="http:// or https:// and a host",
        ),
    ]
    timeout_s: Annotated[float, Setting("For one try.", ge=0.1, le=60, unit="seconds")] = 5.0
    retries: Annotated[
        int, Setting("Further tries of a message, 1, 2, 4 seconds apart and so on.", ge=0, le=6)
    ] = 3


class Webhook(Callback):
    """Callback that posts a message at the begin, the events and the end of a run.

    Each is a JSON object with ``event`` (``begin``, ``end``, or the kind of an event such as ``epoch`` or
    ``saved``), ``at_s``, ``text`` for people, ``run`` (name, folder, run_id), and ``about``: the event, the
    settings or the summary. A thread of its own sends them; a message that can't be delivered is left out.

    Parameters
    ----------
    settings : WebhookSettings
    """

    def __init__(self, settings: WebhookSettings) -> None:
        self._settings = settings
        self._run: dict[str, Any] = {}
        self._outbox: Outbox | None = None

    def on_run_begin(self, trainer: Any, info: Mapping[str, Any]) -> None:
        """Post that a run has begun, with its settings."""
        self._run = {name: info[name] for name in ("name", "folder", "run_id")}
        self._outbox = Outbox("webhook", self._post, LAST_S)
        self._send("begin", "the run has begun", info["settings"])

    def on_event(self, trainer: Any, event: Mapping[str, Any]) -> None:
        """Post an event."""
        self._send(str(event["kind"]), str(event["text"]), event)

    def on_run_end(self, trainer: Any, summary: Mapping[str, Any]) -> None:
        """Post the summary, and wait a moment for what is not delivered yet."""
        error = f": {summary['error']}" if summary.get("error") else ""
        self._send("end", f"the run is over, {summary['phase']}{error}", summary)
        if self._outbox:
            self._outbox.close()

    def _send(self, event: str, text: str, about: Mapping[str, Any]) -> None:
        name = self._run.get("name") or self._run.get("folder") or "a run"
        message = {"event": event, "at_s": utc_now_s(), "text": cut(f"{name}: {text}"), "run": self._run}
        if self._outbox:
            self._outbox.put(json.dumps({**message, "about": about}, default=str).encode())

    def _post(self, body: bytes) -> None:
        """Post a message, in the outbox's thread; repeat it while that may help.

        Raises
        ------
        OSError
            If it was not delivered.
        """
        from urllib.error import HTTPError
        from urllib.request import HTTPRedirectHandler, Request, build_opener

        class NoRedirect(HTTPRedirectHandler):
            """Refuses a redirection: what follows it is a GET, without the message."""

            def redirect_request(self, *_: Any) -> None:
                return None

        opener = build_opener(NoRedirect)
        headers = {"Content-Type": "application/json", "User-Agent": "pslib"}
        request = Request(self._settings.url, body, headers, method="POST")
        for tried in range(self._settings.retries + 1):
            try:
                with opener.open(request, timeout=self._settings.timeout_s):
                    return
            except OSError as error:
                lasting = isinstance(error, HTTPError) and error.code < 500 and error.code not in AGAIN
                if isinstance(error, HTTPError):
                    error.close()
                if lasting or tried == self._settings.retries:
                    raise
            assert self._outbox is not None
            if self._outbox.given_up.wait(PAUSE_S * (1 << tried)):
                raise TimeoutError("the run is over")
