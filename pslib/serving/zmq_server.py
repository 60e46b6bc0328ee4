"""ZeroMQ server of models, for callers inside a cluster: a request of the inference protocol in a message.

A message has the JSON of a request of the Open Inference Protocol v2 as its first frame, with ``model`` and
perhaps ``version`` beside ``inputs``, and a frame for each binary tensor. An answer has the JSON of the
answer, and a frame with the predictions; or JSON with ``error`` and ``status``, as over HTTP. Both have the
request's ``id``.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslib.errors import ConfigurationError, DataError, PslibError
from pslib.serving.batching import OverloadError
from pslib.serving.inference_protocol import InferenceRequest, answer_of, json_of, request_of
from pslib.serving.repository import Repository, UnknownModelError, Version
from pslib.serving.settings import ServeSettings
from pslib.transport import ServerLink
from pslib.wire.codec import Buffer

TURN_S = 0.25


class ZmqServer:
    """Server that answers messages of a link, in a thread of its own, with the models of a repository.

    Parameters
    ----------
    repository : Repository
    settings : ServeSettings
    link : ServerLink
        Closed with the server.
    """

    def __init__(self, repository: Repository, settings: ServeSettings, link: ServerLink) -> None:
        self._repository, self._settings, self._link = repository, settings, link
        self._done: deque[tuple[bytes, Sequence[Buffer]]] = deque()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="pslib-serve-zmq", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Address at which clients reach it."""
        return self._link.address

    def close(self) -> None:
        """Answer what is done, and stop."""
        self._stopped = True
        self._link.wake()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopped or self._done:
                for peer, frames in self._link.poll(TURN_S):
                    self._receive(peer, frames)
                while self._done:
                    self._link.send(*self._done.popleft())
        finally:
            self._link.close()

    def _receive(self, peer: bytes, frames: list[Buffer]) -> None:
        """Begin to answer a message; its scores are sent when they are there."""
        held, given = ExitStack(), ""
        try:
            head = json_of(bytes(frames[0]))
            if not isinstance(head, dict) or not isinstance(head.get("model"), str):
                raise DataError("message: expected JSON with model, the name of a model")
            given = head["id"] if isinstance(head.get("id"), str) else ""
            version = held.enter_context(self._repository.using(head["model"], head.get("version")))
            asked = request_of(b"".join(map(bytes, frames)), len(bytes(frames[0])), version.model.schema)
            if not 1 <= asked.table.num_rows <= self._settings.rows_max:
                raise DataError(
                    f"request: expected 1 to {self._settings.rows_max} rows, got {asked.table.num_rows}"
                )
            future = version.batcher.submit(asked.table)
        except PslibError as error:
            held.close()
            self._done.append((peer, _refusal(error, given)))
            return

        def finish(scores: Future[NDArray[np.float32]]) -> None:
            held.close()
            self._done.append((peer, _answer(scores, asked, head["model"], version)))
            self._link.wake()

        future.add_done_callback(finish)


def _answer(
    scores: Future[NDArray[np.float32]], asked: InferenceRequest, model: str, version: Version
) -> Sequence[Buffer]:
    error = scores.exception()
    if error is not None:
        return _refusal(error, asked.id)
    body, head = answer_of(asked, scores.result(), model, version.number, {})
    return [body] if head is None else [body[:head], body[head:]]


def _refusal(error: BaseException, given: str) -> Sequence[Buffer]:
    """Return an error with its status; one that is our fault is no reason to keep a client waiting."""
    status = (
        404
        if isinstance(error, UnknownModelError)
        else 503
        if isinstance(error, OverloadError)
        else 400
        if isinstance(error, ConfigurationError)
        else 500
    )
    plain: dict[str, Any] = {"error": str(error), "status": status, "id": given}
    return [json.dumps(plain).encode()]
