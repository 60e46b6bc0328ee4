"""Client of a ZeroMQ server of models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslib.clock import SystemClock
from pslib.errors import ConfigurationError, DataError, PslibError, UnavailableError, WaitTimeoutError
from pslib.serving.tensors import NUMBERS, texts_of
from pslib.transport import Keys, ZmqTransport

DATATYPES = {np.dtype(kind): name for name, kind in NUMBERS.items()}


class ScoringClient:
    """Client of one server; used by one thread at a time.

    Parameters
    ----------
    address : str
        The server's, ``tcp://host:port``.
    keys : Keys or None
        Of an encrypted server.

    Examples
    --------
    >>> client = ScoringClient("tcp://127.0.0.1:8081")                                     # doctest: +SKIP
    >>> client.predict("clicks", {"user": ["u1", "u2"], "price": np.float32([0.5, 2.0])})  # doctest: +SKIP
    array([0.04, 0.11], dtype=float32)
    """

    def __init__(self, address: str, keys: Keys | None = None) -> None:
        self._address, self._clock = address, SystemClock()
        self._transport = ZmqTransport(keys=keys)
        self._link = self._transport.connect()
        self._numbers = count()

    def predict(
        self,
        model: str,
        columns: Mapping[str, Any],
        *,
        version: str | None = None,
        timeout_s: float = 5.0,
    ) -> NDArray[np.float32]:
        """Return the predictions of examples: (n,), or (n, T) of a model with T labels.

        Parameters
        ----------
        model : str
        columns : mapping of str to array, or list of text
            Arrays of numbers, or lists of texts; of a column of lists NAME has the elements of all rows, and
            ``NAME.lengths`` how many each row has; ``NAME.valid`` is false where a value is missing.
        version : str or None
        timeout_s : float

        Raises
        ------
        DataError
            If the request is wrong.
        ConfigurationError
            If there is no such model or version.
        UnavailableError
            If the server has too much to do; WaitTimeoutError without an answer in time.
        PslibError
            If the server failed.
        """
        number = str(next(self._numbers))
        inputs, frames = [], []
        for name, column in columns.items():
            given, data = _packed(name, column)
            inputs.append(given)
            frames.append(data)
        head = {"model": model, "id": number, "inputs": inputs, "parameters": {"binary_data_output": True}}
        head |= {} if version is None else {"version": version}
        self._link.send(self._address, [json.dumps(head).encode(), *frames])
        return self._awaited(number, timeout_s)

    def close(self) -> None:
        """Close the connection."""
        self._link.close()
        self._transport.close()

    def __enter__(self) -> ScoringClient:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _awaited(self, number: str, timeout_s: float) -> NDArray[np.float32]:
        """Wait for the answer with this id; those of requests that were given up are dropped."""
        end_s = self._clock.now_s() + timeout_s
        while True:
            for _peer, frames in self._link.receive():
                plain = json.loads(bytes(frames[0]))
                if plain.get("id") == number:
                    return _scores(plain, bytes(frames[1]) if len(frames) > 1 else b"")
            for _peer, reason in self._link.refusals():
                raise UnavailableError(f"{self._address}: {reason}")
            left_s = end_s - self._clock.now_s()
            if left_s <= 0:
                raise WaitTimeoutError(
                    f"{self._address}: expected an answer within {timeout_s:g} s, got none"
                )
            self._link.wait(left_s)


def _packed(name: str, column: Any) -> tuple[dict[str, Any], bytes]:
    """Return a column as an input and its bytes."""
    if isinstance(column, np.ndarray) and column.dtype in DATATYPES:
        datatype, data, shape = DATATYPES[column.dtype], np.ascontiguousarray(column).tobytes(), column.shape
    elif all(isinstance(one, str) for one in column):
        datatype, data, shape = "BYTES", texts_of(list(column)), (len(column),)
    else:
        raise DataError(f"column {name!r}: expected an array of numbers, or texts")
    parameters = {"binary_data_size": len(data)}
    return {"name": name, "datatype": datatype, "shape": list(shape), "parameters": parameters}, data


def _scores(plain: Mapping[str, Any], data: bytes) -> NDArray[np.float32]:
    if "error" in plain:
        kinds = {400: DataError, 404: ConfigurationError, 503: UnavailableError}
        raise kinds.get(int(plain.get("status") or 500), PslibError)(plain["error"])
    shape = plain["outputs"][0]["shape"]
    return np.frombuffer(data, "<f4").reshape(shape).astype(np.float32)
