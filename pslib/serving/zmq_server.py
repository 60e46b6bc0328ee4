"""ZeroMQ server of models, for callers inside a cluster: a request of the inference protocol in a message.

A message has the JSON of a request of the Open Inference Protocol v2 as its first frame, with ``model`` and
perhaps ``version`` beside ``inputs``, and a frame for each binary tensor. An answer has the JSON of the
answer, and a frame with the predictions; or JSON with ``error`` and ``status``, as over HTTP. Both have the
request's ``id``.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from math import inf

from pslib.clock import Clock
from pslib.errors import ConfigurationError, DataError, PslibError
from pslib.serving.batching import OverloadError, Scores
from pslib.serving.inference_protocol import InferenceRequest, answer_of, json_of, request_of
from pslib.serving.repository import Repository, UnknownModelError, Version
from pslib.serving.settings import ServeSettings
from pslib.transport import ServerLink
from pslib.wire.codec import Buffer

TURN_S = 0.25

_log = logging.getLogger(__name__)


class ZmqServer:
    """Server that answers messages of a link, in a thread of its own, with the models of a repository.

    Parameters
    ----------
    repository : Repository
    settings : ServeSettings
    link : ServerLink
        Closed with the server.
    clock : Clock
    """

    def __init__(
        self, repository: Repository, settings: ServeSettings, link: ServerLink, clock: Clock
    ) -> None:
        self._repository, self._settings, self._link, self._clock = repository, settings, link, clock
        self._done: deque[tuple[bytes, Sequence[Buffer]]] = deque()
        self._unanswered = 0
        self._leaving = False
        self._end_s = inf
        self._thread = threading.Thread(target=self._run, name="pslib-serve-zmq", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Address at which clients reach it."""
        return self._link.address

    def leave(self) -> None:
        """Refuse new requests; those under way are answered."""
        self._leaving = True

    def close(self) -> None:
        """Answer what is under way, for ``drain_s`` at most, and stop."""
        self._leaving, self._end_s = True, self._clock.now_s() + self._settings.drain_s
        self._link.wake()
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._end_s == inf or (self._unanswered and self._clock.now_s() < self._end_s):
                for peer, frames in self._link.poll(TURN_S):
                    self._unanswered += 1
                    self._receive(peer, frames)
                while self._done:
                    self._link.send(*self._done.popleft())
                    self._unanswered -= 1
        finally:
            self._link.close()

    def _receive(self, peer: bytes, frames: list[Buffer]) -> None:
        """Begin to answer a message; its scores are sent when they are there."""
        held, given = ExitStack(), ""
        try:
            most, first = self._settings.body_bytes_max, frames[0] if frames else b""
            head = json_of(first) if len(first) <= most else {}
            if isinstance(head, dict) and isinstance(head.get("id"), str):
                given = head["id"]  # first of all: a client waits for the answer that has it
            if sum(len(one) for one in frames) > most:
                raise DataError(f"message: expected at most {most} bytes")
            if self._leaving:
                raise OverloadError("the server is leaving; ask another one")
            if not isinstance(head, dict) or not isinstance(head.get("model"), str):
                raise DataError("message: expected JSON with model, the name of a model")
            version = held.enter_context(self._repository.using(head["model"], head.get("version")))
            rest = memoryview(b"".join(frames[1:]))
            asked = request_of(head, rest, version.model.schema, self._settings.rows_max)
            future = version.batcher.submit(asked.table)
        except Exception as error:  # a message that shows a fault of ours must not end the server
            held.close()
            self._done.append((peer, _refusal(error, given)))
            return

        def finish(scores: Future[Scores]) -> None:
            try:
                answer = _answer(scores, asked, head["model"], version)
            except Exception as error:
                answer = _refusal(error, given)
            held.close()
            self._done.append((peer, answer))
            self._link.wake()

        future.add_done_callback(finish)


def _answer(
    scores: Future[Scores], asked: InferenceRequest, model: str, version: Version
) -> Sequence[Buffer]:
    found = scores.result()
    body, head = answer_of(asked, found.values, model, *version.stamp(found))
    return [body] if head is None else [body[:head], body[head:]]


def _refusal(error: Exception, given: str) -> Sequence[Buffer]:
    """Return an error with its status; one that is our fault is no reason to keep a client waiting."""
    status = 500
    for kind, its_status in ((UnknownModelError, 404), (OverloadError, 503), (ConfigurationError, 400)):
        if isinstance(error, kind):
            status = its_status
            break
    else:
        _log.exception("a request failed", exc_info=error)
    text = str(error) if isinstance(error, PslibError) else "internal error; the server's log has it"
    return [json.dumps({"error": text, "status": status, "id": given}).encode()]
