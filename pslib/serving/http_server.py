"""HTTP server of models: Open Inference Protocol v2, plain records at ``/predict``, health, metrics.

Source: https://github.com/kserve/open-inference-protocol (REST), its extension for binary tensors, and the
model repository extension of Triton, as far as it lists models.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from hmac import compare_digest
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pslib.data.arrow_data import table_of
from pslib.errors import ConfigurationError, DataError, PslibError
from pslib.serving.batching import OverloadError, Scores
from pslib.serving.inference_protocol import (
    EXTENSIONS,
    HEADER_LENGTH,
    answer_of,
    json_of,
    metadata_of,
    parts_of,
    request_of,
)
from pslib.serving.repository import Repository, UnknownModelError, Version
from pslib.serving.settings import ServeSettings
from pslib.serving.tensors import check_rows

if TYPE_CHECKING:
    import pyarrow as pa

RETRY_AFTER_S = 1
LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")
"""Addresses of this machine's own requests; the last one where a socket of IPv6 takes those of IPv4 too."""
LATENCY_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Bounds of the histogram of request times."""


FOLLOWED = {
    "age_seconds": "Age of a model that follows a training.",
    "followed_version": "Versions that it has had.",
    "followed_rows": "Rows that have come for them.",
    "followed_bytes": "Bytes that have come for them.",
    "followed_failures": "Rounds of questions that have failed.",
}
"""Gauges of models that follow, see `Follower.figures`."""
SHADOW = {
    "rows": "Rows scored by both versions.",
    "difference_sum": "Sum of the absolute differences of both predictions: by rows, their mean.",
    "predictions_sum": "Sum of the shadow's predictions.",
    "answered_predictions_sum": "Sum of the predictions of the version that answered, on the same rows.",
    "dropped_rows": "Rows that the shadow was not asked for, since it was behind, or could not score.",
}
"""Counters of a version that scores requests beside the one that answers."""


class HttpError(Exception):
    """Answer other than 200."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Metrics:
    """Counters of requests, by model and version."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ("model", "version")
        self.requests = Counter(
            "pslib_serve_requests",
            "Requests, by status of the answer.",
            (*labels, "status"),
            registry=self.registry,
        )
        self.rows = Counter("pslib_serve_rows", "Rows scored.", labels, registry=self.registry)
        self.score_sum = Counter(
            "pslib_serve_predictions_sum",
            "Sum of the predictions: by rows, their mean.",
            labels,
            registry=self.registry,
        )
        self.seconds = Histogram(
            "pslib_serve_request_seconds",
            "Time from the whole request to its answer.",
            labels,
            buckets=LATENCY_S,
            registry=self.registry,
        )
        self.followed = {
            name: Gauge(f"pslib_serve_{name}", text, labels, registry=self.registry)
            for name, text in FOLLOWED.items()
        }
        self.waiting = Gauge("pslib_serve_waiting_rows", "Rows that wait.", labels, registry=self.registry)
        both = ("model", "version", "shadow")
        self.shadow = {
            name: Counter(f"pslib_serve_shadow_{name}", text, both, registry=self.registry)
            for name, text in SHADOW.items()
        }
        self._statuses: dict[tuple[str, str], set[str]] = {}
        """Statuses that were answered, of each model and version."""
        self._shadowed: set[tuple[str, str, str]] = set()
        """Model, version and shadow of all pairs that were compared."""
        self._dropped: set[tuple[str, str]] = set()

    def count(self, name: str, number: str, status: int, seconds: float) -> None:
        """Count a request."""
        self.requests.labels(name, number, status).inc()
        self.seconds.labels(name, number).observe(seconds)
        self._statuses.setdefault((name, number), set()).add(str(status))

    def text(self, repository: Repository) -> bytes:
        """Return all metrics in the text format of Prometheus.

        Those of a version that was dropped are told once more, with its last requests, and then forgotten: a
        server that takes a version an hour would tell of thousands.
        """
        for one in (self.waiting, *self.followed.values()):
            one.clear()
        kept = set()
        for name in repository.names:
            for number, version in list(repository.model(name).kept.items()):
                kept.add((name, number))
                self.waiting.labels(name, number).set(version.batcher.waiting_rows)
                if version.follower is not None:
                    for gauge, value in version.follower.figures().items():
                        self.followed[gauge].labels(name, number).set(value)
        for name, number in self._dropped - kept:
            self._forget(name, number)
        self._dropped = self._statuses.keys() - kept
        return generate_latest(self.registry)

    def compare(
        self, name: str, number: str, shadow: str, answered: Scores, found: Future[Scores] | None
    ) -> None:
        """Count the rows of a request that a shadow has scored too; None: it was not asked."""
        labels, served = (name, number, shadow), answered.values
        self._shadowed.add(labels)
        scores = None if found is None or found.exception() is not None else found.result().values
        if scores is None or scores.shape != served.shape:
            self.shadow["dropped_rows"].labels(*labels).inc(len(served))
            return
        self.shadow["rows"].labels(*labels).inc(len(served))
        self.shadow["difference_sum"].labels(*labels).inc(float(np.abs(scores - served).sum()))
        self.shadow["predictions_sum"].labels(*labels).inc(float(scores.sum()))
        self.shadow["answered_predictions_sum"].labels(*labels).inc(float(served.sum()))

    def _forget(self, name: str, number: str) -> None:
        for labels in [one for one in self._shadowed if one[0] == name and number in one[1:]]:
            self._shadowed.discard(labels)
            for counter in self.shadow.values():
                with suppress(KeyError):  # it has counted nothing
                    counter.remove(*labels)
        for status in self._statuses.pop((name, number)):
            self.requests.remove(name, number, status)
        for metric in (self.rows, self.score_sum, self.seconds):
            with suppress(KeyError):  # none of its requests was scored
                metric.remove(name, number)


class HttpServer:
    """Application that answers with the models of a repository.

    Parameters
    ----------
    repository : Repository
    settings : ServeSettings
    admin_token : str
        Token of requests that change which version answers; empty: none may, but of this machine.
    release : str
        Version of pslib, for the metadata.
    """

    def __init__(
        self, repository: Repository, settings: ServeSettings, admin_token: str = "", release: str = ""
    ) -> None:
        self._repository, self._settings, self._admin_token = repository, settings, admin_token
        self._release = release
        self.metrics = Metrics()
        self.leaving = False
        model = "/v2/models/{name}"
        self.app = Starlette(
            routes=[
                *_routes("/v2", self._server, "GET"),
                *_routes("/v2/health/live", self._live, "GET"),
                *_routes("/v2/health/ready", self._ready, "GET"),
                *_routes("/v2/repository/index", self._index, "POST"),
                *_routes("/v2/repository/models/{name}/load", self._load, "POST"),
                *_routes("/v2/repository/models/{name}/rollback", self._roll_back, "POST"),
                *_routes("/v2/repository/models/{name}/split", self._split, "POST"),
                *_routes("/v2/repository/models/{name}/shadow", self._set_shadow, "POST"),
                *(
                    route
                    for at in (model, f"{model}/versions/{{version}}")
                    for route in (
                        *_routes(at, self._metadata, "GET"),
                        *_routes(f"{at}/ready", self._model_ready, "GET"),
                        *_routes(f"{at}/infer", self._infer, "POST"),
                    )
                ),
                *_routes("/predict", self._predict, "POST"),
                *_routes("/metrics", self._metrics, "GET"),
            ],
            exception_handlers={404: _nothing_here, 405: _wrong_method, 500: _failed},
        )

    # --- health and metadata ----------------------------------------------------------------------------

    async def _live(self, request: Request) -> Response:
        return Response(status_code=200)

    async def _ready(self, request: Request) -> Response:
        return Response(status_code=200 if not self.leaving and self._repository.is_fresh else 503)

    async def _server(self, request: Request) -> Response:
        return JSONResponse({"name": "pslib", "version": self._release, "extensions": list(EXTENSIONS)})

    async def _model_ready(self, request: Request) -> Response:
        follower = self._version_of(request).follower
        is_fresh = follower is None or follower.is_fresh
        return Response(status_code=200 if not self.leaving and is_fresh else 503)

    async def _metadata(self, request: Request) -> Response:
        version = self._version_of(request)
        name = request.path_params["name"]
        kept = list(self._repository.model(name).kept)
        return JSONResponse(metadata_of(version.model.schema, version.model.key_kinds, name, kept))

    async def _index(self, request: Request) -> Response:
        return JSONResponse(self._repository.describe())

    async def _metrics(self, request: Request) -> Response:
        return Response(self.metrics.text(self._repository), media_type=CONTENT_TYPE_LATEST)

    # --- predictions ------------------------------------------------------------------------------------

    async def _infer(self, request: Request) -> Response:
        name = request.path_params["name"]

        async def answer(version: Version) -> Response:
            plain, rest = parts_of(await self._body(request), _header_length(request))
            asked = request_of(plain, rest, version.model.schema, self._settings.rows_max)
            scores = await self._scored(name, version, asked.table)
            body, head = answer_of(asked, scores.values, name, *version.stamp(scores))
            if head is None:
                return Response(body, media_type="application/json")
            return Response(body, media_type="application/octet-stream", headers={HEADER_LENGTH: str(head)})

        return await self._measured(name, request.path_params.get("version"), answer)

    async def _predict(self, request: Request) -> Response:
        names = self._repository.names
        name = request.query_params.get("model", names[0] if len(names) == 1 else "")
        if not name:
            raise HttpError(400, f"expected ?model=, one of {', '.join(names)}")

        async def answer(version: Version) -> Response:
            given = json_of(await self._body(request))
            records = given.get("records", given) if isinstance(given, dict) else given
            if not isinstance(records, dict | list) or not records:
                raise DataError('body: expected a record, records, or {"records": [...]}')
            table = table_of(cast(Any, records))
            if table is None:
                raise DataError("body: expected records, objects with the values of columns")
            check_rows(table.num_rows, self._settings.rows_max)
            scores = await self._scored(name, version, table)
            number, age_s = version.stamp(scores)
            age = {} if age_s is None else {"age_s": age_s}
            return JSONResponse(
                {"model": name, "version": number, **age, "predictions": scores.values.tolist()}
            )

        return await self._measured(name, request.query_params.get("version"), answer)

    async def _measured(
        self, name: str, number: str | None, answer: Callable[[Version], Awaitable[Response]]
    ) -> Response:
        """Answer with a version, which stays until then, and count the request."""
        try:
            with self._repository.using(name, number) as version:
                return await self._counted(name, version, answer)
        except UnknownModelError as error:
            raise HttpError(404, str(error)) from error

    async def _counted(
        self, name: str, version: Version, answer: Callable[[Version], Awaitable[Response]]
    ) -> Response:
        start, status = perf_counter(), 500
        try:
            answered = await answer(version)
            status = answered.status_code
            return answered
        except HttpError as error:
            status = error.status
            raise
        except OverloadError as error:
            status = 503
            raise HttpError(503, str(error)) from error
        except ConfigurationError as error:
            status = 400
            raise HttpError(400, str(error)) from error
        finally:
            self.metrics.count(name, version.number, status, perf_counter() - start)

    async def _scored(self, name: str, version: Version, table: pa.Table) -> Scores:
        if self.leaving:
            raise OverloadError("the server is leaving; ask another one")
        scores = await asyncio.wrap_future(version.batcher.submit(table))
        self.metrics.rows.labels(name, version.number).inc(table.num_rows)
        self.metrics.score_sum.labels(name, version.number).inc(float(scores.values.sum()))
        self._shadow(name, version, table, scores)
        return scores

    def _shadow(self, name: str, version: Version, table: pa.Table, scores: Scores) -> None:
        """Let the shadow of a model score a request that is answered; one that is behind is not asked."""
        shadow = self._repository.shadow_of(name, version)
        if shadow is None:
            return
        count = partial(self.metrics.compare, name, version.number, shadow.number, scores)
        try:
            if shadow.batcher.waiting_rows:
                raise OverloadError("the shadow is behind")
            shadow.batcher.submit(table).add_done_callback(count)
        except OverloadError:
            count(None)

    async def _body(self, request: Request) -> bytes:
        """Read a body, and refuse it as soon as it is larger than it may be."""
        limit = self._settings.body_bytes_max
        parts, size = [], 0
        try:
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    raise HttpError(413, f"body: expected at most {limit} bytes")
                parts.append(part)
        except ClientDisconnect as error:
            raise HttpError(400, "body: its end did not come") from error
        return b"".join(parts)

    # --- versions ---------------------------------------------------------------------------------------

    async def _load(self, request: Request) -> Response:
        return await self._change(request, lambda name, _given: self._repository.load(name))

    async def _roll_back(self, request: Request) -> Response:
        return await self._change(
            request, lambda name, given: self._repository.roll_back(name, given.get("version"))
        )

    async def _split(self, request: Request) -> Response:
        return await self._share(request, self._repository.split)

    async def _set_shadow(self, request: Request) -> Response:
        return await self._share(request, self._repository.set_shadow)

    async def _share(self, request: Request, give: Callable[[str, str, float], None]) -> Response:
        def change(name: str, given: Mapping[str, Any]) -> str:
            number, share = str(given.get("version", "")), given.get("share")
            if not isinstance(share, int | float):
                raise ConfigurationError("share: expected 0 to 1")
            give(name, number, float(share))
            return number

        return await self._change(request, change)

    async def _change(self, request: Request, change: Callable[[str, Mapping[str, Any]], str]) -> Response:
        """Change which version answers, in a thread: a model may have to be loaded."""
        self._check_admin(request)
        name, body = request.path_params["name"], await self._body(request)
        given = json_of(body) if body else {}
        if not isinstance(given, dict):
            raise HttpError(400, "body: expected a JSON object")
        try:
            number = await asyncio.to_thread(change, name, given)
        except UnknownModelError as error:
            raise HttpError(404, str(error)) from error
        except ConfigurationError as error:
            raise HttpError(400, str(error)) from error
        except PslibError as error:  # the checkpoint can't be read; the version before answers
            raise HttpError(500, str(error)) from error
        return JSONResponse({"name": name, "version": number})

    def _check_admin(self, request: Request) -> None:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self._admin_token:
            if not compare_digest(given.encode(), self._admin_token.encode()):
                raise HttpError(403, "expected the admin token: Authorization: Bearer TOKEN")
            return
        local = request.client is not None and request.client.host in LOOPBACK
        if not local or "origin" in request.headers or "sec-fetch-site" in request.headers:
            raise HttpError(403, "expected a request of this machine; with --admin-token-file also of others")

    def _version_of(self, request: Request) -> Version:
        try:
            return self._repository.version(request.path_params["name"], request.path_params.get("version"))
        except UnknownModelError as error:
            raise HttpError(404, str(error)) from error


def _routes(path: str, answer: Callable[[Request], Awaitable[Response]], method: str) -> list[Route]:
    async def guarded(request: Request) -> Response:
        try:
            return await answer(request)
        except HttpError as error:
            headers = {"Retry-After": str(RETRY_AFTER_S)} if error.status == 503 else None
            return JSONResponse({"error": str(error)}, status_code=error.status, headers=headers)
        except DataError as error:
            return JSONResponse({"error": str(error)}, status_code=400)

    return [Route(path, guarded, methods=[method])]


def _header_length(request: Request) -> int | None:
    given = request.headers.get(HEADER_LENGTH)
    if given is None:
        return None
    if not given.isdecimal() or len(given) > 12:
        raise DataError(f"{HEADER_LENGTH}: expected a number of bytes, got {given!r:.40}")
    return int(given)


async def _nothing_here(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": f"nothing at {request.url.path:.120}; see /v2"}, status_code=404)


async def _failed(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "internal error; the server's log has it"}, status_code=500)


async def _wrong_method(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": f"{request.method} is not for {request.url.path:.120}"}, status_code=405)
